"""Renews or resets the private state of DDP and FSDP2 models after an interrupted step."""

from __future__ import annotations

import sys
from contextlib import suppress
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from nbdist.backends.torch_private import process_groups
from nbdist.backends.torch_private.releases import EMPTY, clear, fsdp_groups
from nbdist.errors import UsageError


def has_group(model: torch.nn.parallel.DistributedDataParallel) -> bool:
    """Return whether torch still knows the model's process group."""
    return model.process_group in c10d._world.pg_map


def unhook(model: torch.nn.parallel.DistributedDataParallel) -> None:
    """Let a DDP model's present reducer see no more gradients, before the model gets another.

    Freeing it would do the same, but ``torch.compile`` has a copy of the model's attributes, and
    so keeps it. Then one rank's old reducer, stopped before its buckets were reduced, would reduce
    them in the next backward pass, and the ranks would add up different things.
    """
    reducer = vars(model).get("reducer")  # a model that is put together has none yet
    if reducer is not None:
        reducer._remove_autograd_hooks()


def renew_ddp(model: torch.nn.parallel.DistributedDataParallel, builtin: Any = None) -> None:
    """Give a DDP model a new reducer, as its constructor does (`DDP.__setstate__` in torch).

    The old reducer may have stopped in the middle of a backward pass, or have ordered its buckets
    by a backward pass that a replaced rank has never run. This needs no communication.

    Parameters
    ----------
    model
        The model; it must have a group.
    builtin
        The argument of ``_register_builtin_comm_hook``, which only the old reducer knew.
    """
    private: Any = model
    unhook(model)
    for name in ("reducer", "logger"):
        private.__dict__.pop(name, None)
    clear(private, _DDP)
    parameters, sparse = private._build_params_for_reducer()
    names = private._build_debug_param_to_name_mapping(parameters)
    private._ddp_init_helper(parameters, sparse, names, private.static_graph)
    if private.static_graph:
        private.reducer._set_static_graph()
        private.logger._set_static_graph()
    for hook, state in private._comm_hooks:
        dist._register_comm_hook(private.reducer, state, hook)  # type: ignore[attr-defined]
    if builtin is not None:
        private._register_builtin_comm_hook(builtin)


def expect_backward(
    model: torch.nn.parallel.DistributedDataParallel, outputs: list[torch.Tensor]
) -> None:
    """Let a new reducer take part in a backward pass whose forward the old one has seen.

    Parameters
    ----------
    model
        The model, which `renew_ddp` has given a new reducer.
    outputs
        The tensors from which the backward pass may come.
    """
    private: Any = model
    private.reducer.prepare_for_forward()
    unused = private.find_unused_parameters and not private.static_graph
    private.reducer.prepare_for_backward(outputs if unused else [])
    if not private.static_graph:
        return

    # The first pass of a static graph is reduced at its end, for which the forward arranges.
    def reduce_at_end(_grad: torch.Tensor) -> None:
        if not private._static_graph_delay_allreduce_enqueued:
            private._static_graph_delay_allreduce_enqueued = True
            torch.autograd.Variable._execution_engine.queue_callback(
                private.reducer._delay_all_reduce
            )

    for output in outputs:
        output.register_hook(reduce_at_end)


_DDP = {
    "_static_graph_delay_allreduce_enqueued": False,
    "_has_rebuilt_buckets": False,
    "require_forward_param_sync": True,
}
"""Attributes in which a DDP model records its steps, with their values before the first step."""


def ddp_rests(model: torch.nn.Module) -> bool:
    """Return whether no backward pass of a DDP model was left unfinished; False if unknown.

    A forward may be pending: its backward may still come. One that was broken off while it waited
    for the last reductions looks finished to its reducer, which is not ready for the next.
    """
    private: Any = model
    if process_groups.keeps_old():
        return False  # the reducer would go on with what the old backend has left
    try:
        private.reducer._check_reducer_finalized()
    except Exception:  # it is not, or another torch cannot tell
        return False
    # A static graph's first backward reduces nothing before its end.
    begun = private.static_graph and private._static_graph_delay_allreduce_enqueued
    return not begun or rebuilt(model)


def rebuilt(model: torch.nn.Module) -> bool:
    """Return whether a DDP model has formed its buckets again, as it does after its first pass."""
    return bool(getattr(model, "_has_rebuilt_buckets", False))


def take_apart(model: torch.nn.parallel.DistributedDataParallel) -> dict[str, Any]:
    """Return the parts of a DDP model that can be sent to a rank, its group as a name."""
    if not has_group(model):
        raise UsageError("its process group was destroyed")
    state = {k: v for k, v in vars(model).items() if k not in ("reducer", "logger")}
    state["process_group"] = model.process_group.group_name
    return state


def put_together(
    model: torch.nn.parallel.DistributedDataParallel, state: dict[str, Any], builtin: Any
) -> None:
    """Build a DDP model from what `take_apart` returned, without communication.

    Torch's own unpickling supports only models on WORLD, and communicates.
    """
    group = process_groups.group_named(state["process_group"])
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise UsageError("it is trained by a process group that does not contain the new rank")
    vars(model).update(state)
    model.process_group = group
    renew_ddp(model, builtin)


def without_groups() -> list[torch.nn.Module]:
    """Return the FSDP2 modules whose process groups were destroyed."""
    found = []
    for state in _fsdp_states():
        for group in fsdp_groups(state):
            with suppress(AttributeError):  # other releases use other names
                if group.mesh_info.shard_process_group not in c10d._world.pg_map:
                    found += list(group.modules)
    return found


def fsdp_rests() -> bool:
    """Return whether no pass of an FSDP2 model was left unfinished; a backward may be pending."""
    states = _fsdp_states()
    if not states:
        return True
    from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

    stages = [each._training_state for state in states for each in (state, *fsdp_groups(state))]
    contexts = [state._state_ctx for state in states]
    return all(stage is TrainingState.IDLE for stage in stages) and not any(
        getattr(context, name, None) for context in contexts for name in _IN_A_PASS
    )


def accumulating() -> list[torch.nn.Module]:
    """Return the modules of FSDP2 whose gradients wait for a later reduction."""
    groups = [group for state in _fsdp_states() for group in fsdp_groups(state)]
    return [module for group in groups if _accumulates(group) for module in group.modules]


def settle_fsdp() -> None:
    """Reset every FSDP2 model: parameters sharded, no collective pending.

    A forward or backward pass that raised leaves traces (a final callback "already queued", a
    pending result) that would silently spoil the next pass.
    """
    for state in _fsdp_states():
        _settle(state)


def _accumulates(group: Any) -> bool:
    """Whether gradients wait in a parameter group for a later reduction."""
    held = [getattr(group, "_partial_reduce_output", None)]
    for param in group.fsdp_params:
        held.append(getattr(param, "unsharded_accumulated_grad", None))
        held.append(getattr(getattr(param, "_unsharded_param", None), "grad", None))
    return any(each is not None for each in held)


def rest_of_fsdp() -> list[dict[str, str]]:
    """Return the plain attributes of FSDP2's state as text, equal after each complete step."""
    things = [
        thing
        for state in _fsdp_states()
        for thing in (state, state._state_ctx, state._comm_ctx, *fsdp_groups(state))
    ]
    return [
        {name: repr(value) for name, value in vars(thing).items() if _is_plain(thing, name, value)}
        for thing in things
    ]


def _is_plain(thing: object, name: str, value: object) -> bool:
    """Whether a value can be compared as text, and differs from its class's default."""
    if value is None or isinstance(value, (bool, int, str, Enum)):
        return getattr(type(thing), name, thing) is not value
    return isinstance(value, (list, dict, set, tuple)) and not value


def _fsdp_states() -> list[Any]:
    # Not imported here: the import takes half a second, wasted in a rank without FSDP2 models.
    if "torch.distributed.fsdp._fully_shard._fsdp_state" not in sys.modules:
        return []
    from torch.distributed import _composable_state
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    states = (reference() for reference in _composable_state._module_state_mapping.values())
    return list({id(state): state for state in states if isinstance(state, FSDPState)}.values())


_STATE = {"_modules_to_run_forward": EMPTY}
_CONTEXT = {
    "iter_forward_root": None,
    "post_backward_final_callback_queued": False,
    "manual_backward_finalization_active": None,
    "gradient_reduction_pending": False,
}
_IN_A_PASS = ("iter_forward_root", "post_backward_final_callback_queued")
"""Those of them that are set only within a forward or a backward pass."""
_SHARED = {
    "all_gather_state": None,
    "reduce_scatter_state": None,
    "reduce_scatter_states": EMPTY,
    "post_forward_order": EMPTY,
    "_last_post_reduce_events": EMPTY,
    "active_gradient_reduction": None,
}
_GROUP = {
    "_all_gather_result": None,
    "_reshard_after_forward_event": None,
    "_post_reduce_event": None,
    "_all_reduce_state": None,
    "_partial_reduce_output": None,
    "_partial_reduce_output_layout": EMPTY,
    "_post_forward_indices": EMPTY,
    "_post_backward_pending": False,
}
"""Attributes that an interrupted step changes, by the object that has them, with their values
between two steps."""


def _settle(state: Any) -> None:  # an FSDPState, which is private
    from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState

    idle = {"_training_state": TrainingState.IDLE}
    clear(state, _STATE | idle)
    clear(state._state_ctx, _CONTEXT)
    clear(state._comm_ctx, _SHARED)  # attributes are missing before the first forward
    for group in fsdp_groups(state):
        clear(group, _GROUP | idle)
        for param in group.fsdp_params:
            if hasattr(param, "_unsharded_param"):
                param._unsharded_param.grad = None
            with suppress(AttributeError):  # since 2.15 it is the gradient itself
                param.unsharded_accumulated_grad = None
        group._to_sharded()
