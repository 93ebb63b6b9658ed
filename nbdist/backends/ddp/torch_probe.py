"""Tests whether this build of torch can be recovered as nbdist needs, by running it.

Two processes join, train, are interrupted in a collective and in a backward pass, renew their
groups in place, and train on; their gradients must equal those of an uninterrupted run. The probe
runs in a fork that has not run any torch operation, or as ``python -m
nbdist.backends.ddp.torch_probe``.
"""

from __future__ import annotations

import copy
import importlib
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from nbdist.backends.groups.recovery import Recovery
from nbdist.machine.operating_system import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable

STUCK_SECONDS, STUCK_LIMIT = 0.05, 10.0
"""How long a rank waits in a collective before it is freed; the collective's own time limit."""
SIZE, WIDTH, CLOSE = 2, 4, 1e-6
NICER = 10
WHY_CHARACTERS = 300


class Broken(Exception):
    """Raised in the middle of a backward pass."""


class Wrong(Exception):
    """A result differs from what nbdist needs."""


class Partner:
    """The other of the two processes, connected by a socket pair."""

    def __init__(self, rank: int, line: socket.socket) -> None:
        self.rank, self._line = rank, line.makefile("rwb", buffering=0)

    def agree(self, value: str) -> str:
        """Exchange a word with the other process; both must call it."""
        self._line.write(f"{value}\n".encode())
        word = self._line.readline()
        if not word:
            raise RuntimeError("the other process of the two has died")
        return word.decode().rstrip("\n")


def probe(tell: Callable[[Recovery], None]) -> None:
    """Test everything; report on groups first, then on all. The process must end afterwards."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # groups on CPUs are enough, and no GPU is opened
    mine, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        mine.close()
        try:
            die_with_parent()
            _try(Partner(1, theirs), lambda _: None)
        finally:
            os._exit(0)  # also after an error: the other process notices and reports it
    theirs.close()
    try:
        _try(Partner(0, mine), tell)
    finally:
        mine.close()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _try(partner: Partner, tell: Callable[[Recovery], None]) -> None:
    """Test part after part; a failed part ends the test."""
    import torch

    torch.set_num_threads(1)
    trial, version = Trial(partner), str(torch.__version__)
    why, sure = _why_not(trial.groups)
    if why:
        tell(Recovery(version, groups=why, whole=True, sure=sure))
        return
    found = Recovery(version, talks=trial.talks)
    tell(found)
    os.nice(NICER)  # the ranks start now, and need the cores
    why, sure = _why_not(trial.models)
    if why:
        tell(msgspec.structs.replace(found, models=why, fsdp=why, whole=True, sure=sure))
        return
    why, sure = _why_not(trial.fsdp)
    tell(msgspec.structs.replace(found, fsdp=why, whole=True, sure=sure))


def _why_not(part: Callable[[], None]) -> tuple[str, bool]:
    """Return why a part fails ('' if it works), and whether a second run would find the same."""
    try:
        part()
    except Exception as err:  # a future torch may raise anything
        # A lost connection or a timeout may come from a busy machine.
        passing = isinstance(err, (RuntimeError, OSError)) and type(err) is not NotImplementedError
        return f"{type(err).__name__}: {err}"[:WHY_CHARACTERS], not passing
    return "", True


class Trial:
    """The test as one of the two processes runs it; both run the same steps."""

    def __init__(self, partner: Partner) -> None:
        self._partner = partner
        self._generation = 0
        self._ddp: Any = None
        self.talks = False

    def groups(self) -> None:
        """Create groups, wait in one, be freed, renew the groups."""
        import torch.distributed as dist

        from nbdist.backends.ddp.rank_group import Ddp

        self._ddp = Ddp(rank=self._partner.rank, local_rank=0, world_size=SIZE, timeout=STUCK_LIMIT)
        self._ddp.install()
        with tempfile.TemporaryFile() as said:
            kept = os.dup(1)
            os.dup2(said.fileno(), 1)
            try:
                self._form()
            finally:
                os.dup2(kept, 1)
                os.close(kept)
            self.talks = said.seek(0, os.SEEK_END) > 0
        world, part = dist.group.WORLD, dist.new_group([0, 1])
        for stuck in (world, part):
            self._break_off(partial(_sum, stuck), alone=True)
            self._form()
            _demand(dist.group.WORLD is world, "renewing WORLD makes a new object")
            _demand(
                _sum(world) == _sum(part) == SIZE, "all_reduce in a renewed group gives a wrong sum"
            )
        _demand(_sum(dist.new_group([0, 1])) == SIZE, "all_reduce in a new group gives a wrong sum")

    def models(self) -> None:
        """Interrupt the backward of DDP models on WORLD and on a subgroup; they must train on."""
        import torch.distributed as dist

        self._import("torch._dynamo")
        part = dist.new_group([0, 1])
        models = [self._ddp_model(None), self._ddp_model(part, static_graph=True)]
        hook = _raise if self._partner.rank else None
        for model in models:
            _step(model)
            self._break_off(partial(_step, model, hook), alone=False)
            self._form()
            for renewed in models:
                right = self._gradients_are_right(renewed)
                _demand(right, "the gradients of a renewed DDP model are wrong")

    def fsdp(self) -> None:
        """Interrupt a step of an FSDP2 model in forward and in backward; it must train on."""
        import torch

        self._import("torch.distributed.fsdp")
        from torch.distributed.fsdp import fully_shard

        from nbdist.backends.torch_private import renew_models as insides

        net = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1))
        for parameter in net.parameters():
            torch.nn.init.constant_(parameter, 0.5)
        fully_shard(net[0])
        fully_shard(net)
        _step(net)
        right, rest = _whole_gradients(net), insides.rest_of_fsdp()
        for place in ("forward", "backward"):
            for parameter in net.parameters():
                parameter.grad = None
            self._break_fsdp(net, place)
            self._form()
            found = insides.rest_of_fsdp()
            _demand(found == rest, f"FSDP2's state is wrong after an error in {place}")
            _step(net)
            apart = max(
                float((a - b).abs().max())
                for a, b in zip(right, _whole_gradients(net), strict=True)
            )
            _demand(apart < CLOSE, f"gradients are wrong by {apart:g} after an error in {place}")

    def _import(self, name: str) -> None:
        """Import a module that the first model needs, so that no process waits in a collective.

        The import takes a second of CPU time, and this process may get little of it: see `NICER`.
        """
        with suppress(ImportError):  # a future torch may not have it
            importlib.import_module(name)
        self._partner.agree("imported")

    def _form(self) -> None:
        self._generation += 1
        port = self._ddp.open_store() if self._partner.rank == 0 else 0
        port = port or int(self._partner.agree("ready"))
        if self._partner.rank == 0:
            self._partner.agree(str(port))
        self._ddp.form(port, self._generation)

    def _ddp_model(self, group: Any, *, static_graph: bool = False) -> Any:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1))
        return DistributedDataParallel(net, process_group=group, static_graph=static_graph)

    def _break_off(self, work: Callable[[], object], *, alone: bool) -> None:
        """Let rank 0 wait until freed, in work that rank 1 leaves or never begins (`alone`)."""
        if self._partner.rank == 1:
            if not alone:
                with suppress(Broken):
                    work()
            self._partner.agree("gone")
            self._ddp.abort()
            return
        freer = threading.Thread(target=self._free_soon)
        freer.start()
        freed = False
        try:
            work()
        except RuntimeError:
            freed = True
        freer.join()
        _demand(freed, "a rank that waits for other ranks cannot be freed")

    def _free_soon(self) -> None:
        self._partner.agree("waiting")
        time.sleep(STUCK_SECONDS)
        self._ddp.abort()

    def _break_fsdp(self, net: Any, place: str) -> None:
        """Fail on both ranks at once, so that no rank waits."""
        import torch

        with suppress(Broken):
            if place == "forward":
                handle = net[1].register_forward_pre_hook(_raise)
                try:
                    net(torch.ones(1, WIDTH))
                finally:
                    handle.remove()
            else:
                _step(net, _raise)

    def _gradients_are_right(self, model: Any) -> bool:
        """Compare a step's gradients with averaged gradients of the module without DDP."""
        import torch

        rank = self._partner.rank
        # A copy: DDP counts uses of the parameters of a static graph.
        bare = copy.deepcopy(model.module)
        expected: list[Any] = [0.0] * len(list(bare.parameters()))
        for other in (0, 1):
            bare.zero_grad()
            bare(torch.full((1, WIDTH), other + 1.0)).sum().backward()
            grads = [parameter.grad.clone() for parameter in bare.parameters()]
            expected = [total + grad / 2 for total, grad in zip(expected, grads, strict=True)]
        model.zero_grad()
        model(torch.full((1, WIDTH), rank + 1.0)).sum().backward()
        pairs = zip(expected, model.parameters(), strict=True)
        return all(float((right - got.grad).abs().max()) < CLOSE for right, got in pairs)


def _sum(group: Any) -> float:
    import torch
    import torch.distributed as dist

    value = torch.ones(1)
    dist.all_reduce(value, group=group)
    return float(value)


def _step(model: Any, hook: Any = None) -> None:
    import torch

    model.zero_grad()
    out = model(torch.ones(1, WIDTH))
    if hook is not None:
        out.register_hook(hook)
    out.sum().backward()


def _raise(*_: object) -> None:
    raise Broken


def _whole_gradients(net: Any) -> list[Any]:
    return [parameter.grad.full_tensor().clone() for parameter in net.parameters()]


def _demand(holds: object, why: str) -> None:
    if not holds:
        raise Wrong(why)


def main(answer: int) -> None:
    """Write results to a file descriptor, one per line; discard all other output."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    probe(lambda found: _write(answer, msgspec.json.encode(found)))


def _write(answer: int, line: bytes) -> None:
    os.write(answer, line + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
