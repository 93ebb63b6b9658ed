"""Metrics and sidebar in real JupyterLab and Notebook pages: `tests/browser`, in Chromium.

It is one test here, so that a worker runs it beside the others and what it leaves behind is seen;
`make test-browser` runs it alone, and shows more.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.helpers.waiting import allowed

pytestmark = [pytest.mark.starts_processes, pytest.mark.repeats]

ROOT = Path(__file__).parent.parent
LIMIT = 1200
"""Seconds; each test in there has a limit of its own."""


@pytest.mark.timeout(LIMIT + 60)
def test_pages_in_a_browser() -> None:
    command = [str(ROOT / "tools" / "page"), "browser"]
    # Short, for sockets of Chromium; Playwright and Galata leave files there.
    with tempfile.TemporaryDirectory(prefix="nbdist-pages-", dir="/tmp") as temp:
        venv = os.path.relpath(sys.prefix, ROOT)
        env = os.environ | {"NBDIST_TEST_VENV": venv, "TMPDIR": temp}
        ran = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, timeout=allowed(LIMIT)
        )
        left = [path.name for path in Path(temp).glob("nbd*")]
    told = ran.stdout + ran.stderr
    assert ran.returncode == 0, told
    if " passed (" not in told:  # it says what is lacking; CI lacks nothing
        assert "CI" not in os.environ, told
        pytest.skip(told)
    assert not left
