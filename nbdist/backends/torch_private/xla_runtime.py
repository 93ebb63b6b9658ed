"""Private parts of torch_xla: whether its runtime runs in this process, and its hardware."""

from __future__ import annotations

import torch_xla
from torch_xla._internal import tpu
from torch_xla.experimental import plugins


def runtime_runs() -> bool:
    """Whether XLA's runtime has started in this process, with the first use of a device."""
    return bool(torch_xla._XLAC._xla_runtime_is_initialized())


def why_no_device(kind: str) -> str:
    """Say why ``PJRT_DEVICE`` cannot be `kind`; '' if no reason is known.

    The runtime keeps its first value, so it must not be tested by starting the runtime.
    """
    known = {"CPU", "TPU", *plugins._plugin_registry}
    if kind not in known:
        return f"torch_xla knows {', '.join(sorted(known))}, in capital letters"
    plugin = plugins._plugin_registry.get(kind)
    try:
        if plugin is not None:
            plugin.library_path()
    except Exception as err:  # a plugin may raise anything if its library is missing
        return str(err) or type(err).__name__
    return ""


def tpu_processes() -> int:
    """Return how many processes, one for each chip, use this host's TPU; 0 without a TPU."""
    if not (torch_xla._found_libtpu and tpu.num_available_chips()):
        return 0
    return int(tpu.num_local_processes())
