"""What torch_xla does not promise: whether its runtime runs here, and on what hardware."""

from __future__ import annotations

import torch_xla
from torch_xla._internal import tpu


def runtime_runs() -> bool:
    """Whether XLA's runtime has started here; it does with the first use of a device."""
    return bool(torch_xla._XLAC._xla_runtime_is_initialized())


def tpu_processes() -> int:
    """Return how many processes, one for each chip, use this host's TPU; 0 if there is none."""
    if not (torch_xla._found_libtpu and tpu.num_available_chips()):
        return 0
    return int(tpu.num_local_processes())
