"""Leave these tests out where Horovod was not built for TensorFlow, as in `make test`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbdist.backends.horovod import parts
from tests.kernel import Kernel
from tests.tensorflow import digits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

collect_ignore_glob = [] if "tensorflow" in parts() else ["test_*.py"]


@pytest.fixture(scope="session")
def ranks(scratch: Path) -> Iterator[Kernel]:
    """Return a kernel with the digits, and two ranks that Horovod has joined, for all modules."""
    kernel = Kernel(scratch / "homes" / "digits")
    digits.start(kernel)
    yield kernel
    kernel.shutdown()
