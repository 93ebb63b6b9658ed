"""What torch_xla does not promise: whether its runtime runs in this process."""

from __future__ import annotations

import torch_xla


def runtime_runs() -> bool:
    """Whether XLA's runtime has started here; it does with the first use of a device."""
    return bool(torch_xla._XLAC._xla_runtime_is_initialized())
