"""Leave these tests out where Horovod was not built for TensorFlow, as in `make test`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbdist.backends.horovod import parts
from tests.tensorflow import digits

if TYPE_CHECKING:
    from tests.kernel import Kernel

collect_ignore_glob = [] if "tensorflow" in parts() else ["test_*.py"]


@pytest.fixture(scope="module")
def ranks(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with the digits, and two ranks that Horovod has joined."""
    digits.start(shared_kernel)
    return shared_kernel
