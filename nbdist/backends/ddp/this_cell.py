"""What the present cell does with groups and models, by which a fault is judged. Main thread."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import msgspec

from nbdist.backends.models.gradients import Gradients
from nbdist.backends.models.scalers import SCALER, Scalers
from nbdist.backends.models.steps import Steps
from nbdist.wire.group_reports import BACKWARD, Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import torch

    from nbdist.backends.ddp.renew_in_place import InPlace
    from nbdist.backends.ddp.standing import Since
    from nbdist.backends.groups.registry import Made


class ThisCell:
    """The present cell.

    Parameters
    ----------
    made
        The DDP models.
    whole
        Returns whether nothing has freed this rank from a collective in this cell.
    """

    def __init__(self, made: Made, whole: Callable[[], bool]) -> None:
        self._made = made
        self.steps, self.scalers = Steps(whole), Scalers()
        self._gradients = Gradients()
        self.since: Since | None = None
        """What it did with the groups; None if this torch does not tell."""
        self.broke_backward = False
        """Whether an error, or our abort, has broken off a backward pass. The agent writes, too."""
        self._accumulated: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()

    def install(self) -> None:
        """Hear of optimizer steps and of scalers; once in each process."""
        self.steps.install()
        self.scalers.install()

    def begin(self, namespace: dict[str, object], job: str, in_place: InPlace | None) -> None:
        """Note how all stands when a cell begins."""
        self.broke_backward = False
        self.steps.begin(namespace, job)
        self.scalers.begin()
        if in_place is not None and self.since is not None:
            self.since.begin()
            self._gradients.begin(self._made.models)
            self._accumulated = weakref.WeakSet(in_place.accumulating())

    def settle(
        self, namespace: dict[str, object], broken_in: str, changed: Callable[[], int]
    ) -> Standing:
        """Return how the groups stand after the cell has failed; see `rank_group.Ddp.settle`."""
        if SCALER in broken_in:
            self.scalers.settle(namespace)
        self.broke_backward |= BACKWARD in broken_in
        if self.since is None or self.broke_backward:
            return Standing(broken=True)
        found = self.since.standing(self._made.models)
        return msgspec.structs.replace(found, steps=self.steps.total(), changed=changed())

    def unbroken(self) -> Collection[torch.nn.Module]:
        """Return the DDP models of which it has broken off no backward pass."""
        return self._gradients.kept() if self.broke_backward else list(self._made.models)

    def dropped(self, in_place: InPlace) -> list[torch.nn.Module]:
        """Return the FSDP2 modules that had accumulated gradients when the cell began."""
        still = {id(module) for module in in_place.accumulating()}
        return [module for module in self._accumulated if id(module) not in still]
