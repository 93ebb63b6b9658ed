"""Leave these tests out where Horovod was not built for TensorFlow, as in `make test`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbdist.backends.horovod.engine_ranks import parts
from tests.helpers.kernel import Kernel
from tests.helpers.notebook import on_ranks
from tests.tensorflow import digits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORGET = """
for name in [name for name in globals() if name not in begun_with and not name.startswith("_")]:
    del globals()[name]
"""
"""What another test has trained is compared after each fault, too."""
collect_ignore_glob = [] if "tensorflow" in parts() else ["test_*.py"]


@pytest.fixture(scope="session")
def with_digits(scratch: Path) -> Iterator[Kernel]:
    """Return a kernel with the digits, and two ranks that Horovod has joined, for all modules."""
    kernel = Kernel(scratch / "homes" / "digits")
    digits.start(kernel)
    on_ranks(kernel, "begun_with = {*globals(), 'begun_with'}")
    yield kernel
    kernel.shutdown()


@pytest.fixture
def ranks(with_digits: Kernel) -> Kernel:
    """Return that kernel; its cells run on ranks that stay and have nothing of other tests."""
    on_ranks(with_digits, FORGET, digits.ENGINES)
    return with_digits
