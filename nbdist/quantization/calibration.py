"""`calibrate`: post-training quantization with the calibration data split over ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from nbdist.backends.models.equality import digest
from nbdist.collectives import ranks
from nbdist.errors import UsageError
from nbdist.quantization import observers
from nbdist.quantization.observers import Average, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

    from nbdist.collectives import Ranks
    from nbdist.quantization.observers import Extremes

    Forwards = dict[nn.Module, Callable[[Tensor], Tensor]]


def calibrate(
    model: nn.Module,
    run_fn: Callable[[nn.Module], object],
    *,
    process_group: ProcessGroup | None = None,
) -> None:
    """Calibrate a prepared model on each rank's part of the data, as one rank on all data would.

    Afterwards the observers on every rank have the statistics of all ranks. So scales, zero points
    and the converted model are the same on every rank, and the same as one rank gets from the same
    batches. Earlier statistics of the observers are discarded. Every rank must call this function.

    Parameters
    ----------
    model
        The result of torchao's ``prepare_pt2e`` or neural-compressor's ``prepare``, with observers
        of minimum and maximum, of their moving average (over the first batch of each rank, then
        the second batch of each rank, the order of `ShardedBatchSampler`) or of a histogram.
    run_fn
        Called with the model, to run the model on this rank's part of the calibration data, which
        may be empty. With histograms it is called twice, and must use the same data: the first
        call finds the range over all ranks, the second call counts within this range.
    process_group
        The ranks that calibrate together; by default all ranks.

    Raises
    ------
    UsageError
        If the statistics of an observer cannot be combined, or the ranks have different observers.
        Nothing was changed.

    Examples
    --------
    >>> batches = DataLoader(data, batch_sampler=ShardedBatchSampler(data, batch_size=64))
    >>> def run(model):
    ...     for x, _ in batches:
    ...         model(x)
    >>> nbdist.quantization.calibrate(prepared, run)
    """
    everyone = ranks(process_group)
    kept = observers.statistics(_agreed(model, everyone))
    for one in kept.values():
        one.begin()
    histograms = {name: one for name, one in kept.items() if isinstance(one, Histogram)}
    averages = [one for one in kept.values() if isinstance(one, Average)]
    forwards: Forwards = {one.observer: one.stretch for one in histograms.values()}
    forwards |= {one.observer: one.note for one in averages}
    _run(model, run_fn, forwards, averages)
    _combine(kept, everyone)
    if histograms:
        forwards = {
            one.observer: _pass_by for one in kept.values()
        }  # their statistics are complete
        _run(model, run_fn, forwards | {one.observer: one.count for one in histograms.values()})
        _add(histograms, everyone)


@torch.no_grad()
def _run(
    model: nn.Module,
    run_fn: Callable[[nn.Module], object],
    forwards: Forwards,
    averages: Sequence[Average] = (),
) -> None:
    """Run the model with replaced `forward` methods of these observers."""

    def next_batch(*_: object) -> None:
        for one in averages:
            one.next_batch()

    hook = model.register_forward_pre_hook(next_batch)
    for module, forward in forwards.items():
        module.forward = forward  # on the instance, before the class's own
    try:
        run_fn(model)
    finally:
        hook.remove()
        for module in forwards:
            del module.forward


def _pass_by(x: Tensor) -> Tensor:
    return x


def _agreed(model: nn.Module, everyone: Ranks) -> dict[str, Any]:
    """Return the model's observers, after a check that all ranks have the same ones.

    An error on one rank is raised on all ranks, so that no rank waits.
    """
    found = observers.find(model)
    problem = None
    try:
        observers.check(found)
    except UsageError as error:
        problem = error
    mine = [(name, observers.described(one)) for name, one in found.items()]
    told = everyone.gather((mine, digest(model), problem and str(problem)))
    for rank, (*_, elsewhere) in enumerate(told):
        if elsewhere:
            raise problem or UsageError(f"rank {rank}: {elsewhere}")
    for rank, (theirs, weights, _) in enumerate(told):
        if theirs != told[0][0]:
            raise UsageError(
                f"rank {rank} has other observers than rank 0; prepare the same model on all: "
                f"{_difference(told[0][0], theirs)}"
            )
        if weights != told[0][1]:
            raise UsageError(
                f"rank {rank} has other weights than rank 0: make the model the same on all "
                "ranks (`%dist sync`), then prepare it"
            )
    return found


def _difference(first: list[tuple[str, str]], other: list[tuple[str, str]]) -> str:
    there, here = (", ".join(map(" ".join, a)) or "none" for a in (first, other))
    return f"[{there}] and [{here}]"


def _combine(kept: dict[str, Extremes], everyone: Ranks) -> None:
    told = everyone.gather({name: one.seen() for name, one in kept.items()})
    if not any(pair for seen in told for pair in seen.values()):
        raise UsageError(
            "no rank has shown the model any calibration data: run_fn must call the model"
        )
    for rank, seen in enumerate(told):
        odd = [name for name, one in seen.items() if any(map(_has_nan, tree_leaves(one)))]
        if odd:
            raise UsageError(f"rank {rank} has shown the model data that give NaN at `{odd[0]}`")
    for name, one in kept.items():
        one.combine([seen[name] for seen in told])


def _has_nan(tensor: Tensor | None) -> bool:
    return tensor is not None and bool(tensor.isnan().any())


def _add(histograms: dict[str, Histogram], everyone: Ranks) -> None:
    told = everyone.gather(
        {name: (one.counts(), one.elements, one.counted) for name, one in histograms.items()}
    )
    for rank, counted in enumerate(told):
        for name, (_, before, after) in counted.items():
            if before != after:
                raise UsageError(
                    f"rank {rank}'s run_fn showed `{name}` {before} values when it was first "
                    f"called and {after} the second time; it must go through the same data twice "
                    "(a generator that was used up shows nothing)"
                )
    for name, one in histograms.items():
        one.add([counted[name][0] for counted in told])
