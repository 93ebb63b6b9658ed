"""Answers the hub's calls to a persistent rank, each on the thread that the call needs.

Each `match` has all calls of its kind: mypy finds missing calls, wrong fields, and answers that do
not have the call's type.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from nbdist.machine import sockets
from nbdist.rank.looking import vitals
from nbdist.rank.looking.completion import Completing
from nbdist.rank.looking.rank_names import Names
from nbdist.rank.looking.who import Who, free
from nbdist.wire.inspection import Completions, Condition, Freed, State
from nbdist.wire.rank_calls import (
    BindParcel,
    CompleteCode,
    DescribeVariables,
    DigestModels,
    DropParcel,
    FindNames,
    FindVersions,
    Formed,
    FormGroup,
    FreeMemory,
    GiveNames,
    GlanceAtVariables,
    ListGroups,
    ListNames,
    LookAtNames,
    OfferNames,
    OpenStore,
    OutlineModel,
    Ports,
    PutMarksRight,
    ReceiveParcel,
    ReleaseOffer,
    SettleCell,
    SyncModel,
    TakeNames,
    TellCondition,
    TellMarks,
    TellStacks,
    TryGroups,
    TryNames,
    WeighModels,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket

    from IPython.core.interactiveshell import InteractiveShell

    from nbdist.backends.choice import Backend
    from nbdist.rank.running.execute import CellRunner
    from nbdist.wire.messages import Pulse

AtOnce = (
    OpenStore | TellStacks | TellCondition | FindVersions | ReleaseOffer | FindNames
    | GlanceAtVariables
)  # fmt: skip
"""Answered by the agent's thread at once, also while the main thread is busy."""
IfIdle = DescribeVariables | CompleteCode | FreeMemory | LookAtNames
"""Done by the main thread if this is idle; else the agent's thread gives a shorter answer."""
OfGroup = (
    FormGroup | SettleCell | TryGroups | ListGroups | OutlineModel | SyncModel | WeighModels
    | DigestModels
)  # fmt: skip
OfNames = ReceiveParcel | BindParcel | DropParcel | OfferNames | TryNames
OfCopies = ListNames | GiveNames | TakeNames | TellMarks | PutMarksRight
"""Of a rank that is made like another one."""
OnMain = OfGroup | OfNames | OfCopies
"""Done by the main thread as soon as no cell is running."""


class Answers:
    """Answers the hub's calls to one rank.

    Parameters
    ----------
    shell, runner, backend
        The rank's shell, runner and backend.
    doing
        Returns what the rank is doing; called by the agent's thread.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        runner: CellRunner,
        backend: Backend,
        doing: Callable[[], Pulse],
    ) -> None:
        self._shell, self._runner, self._backend, self._doing = shell, runner, backend, doing
        self._who, self._completing = Who(shell), Completing(shell)
        self._engine = {thread.ident for thread in threading.enumerate() if thread.ident}
        self._engine -= {runner.main}
        self._reserved: socket | None = None
        """Keeps free the port at which programs of the ranks meet."""
        self.names = Names(shell)

    def at_once(self, call: AtOnce) -> object:
        """Answer at once. Agent's thread."""
        match call:
            case OpenStore():
                return call.answer(self._open_store())
            case TellStacks():
                return call.answer(self._stacks())
            case TellCondition():
                return call.answer(Condition(self._doing(), vitals.memory()))
            case FindVersions():
                versions = self.names.holds(call.names, call.edited, compared=call.compared)
                return call.answer(versions)
            case ReleaseOffer():
                self.names.let_go()
                return call.answer(None)
            case FindNames():
                return call.answer(self._completing.names(call.prefix))
            case GlanceAtVariables():
                return call.answer(self._who.glance(self._busy(), call.patterns, call.most))

    def idle(self, call: IfIdle) -> object:
        """Answer, reading the user's values. Main thread, no cell running."""
        match call:
            case DescribeVariables():
                return call.answer(self._who.look(call.patterns, call.most))
            case CompleteCode():
                found = self._completing.complete(call.code, call.cursor, call.within)
                return call.answer(found)
            case FreeMemory():
                return call.answer(free(self._shell, self._runner.forget_value))
            case LookAtNames():
                return call.answer(self.names.look(call.names, idle=True))

    def busy(self, call: IfIdle) -> object:
        """Answer without reading the user's values. Any thread."""
        match call:
            case DescribeVariables():
                return call.answer(self._who.glance(self._busy(), call.patterns, call.most))
            case CompleteCode():
                return call.answer(Completions(self._busy()))
            case FreeMemory():
                return call.answer(Freed(self._busy()))
            case LookAtNames():
                return call.answer(self.names.look(call.names, idle=False))

    def on_main(self, call: OnMain) -> object:
        """Carry out a call. Main thread, no cell running."""
        if isinstance(call, OfGroup):
            return self._of_group(call)
        return self._of_names(call) if isinstance(call, OfNames) else self._of_copies(call)

    def _of_group(self, call: OfGroup) -> object:
        backend, space = self._backend, self._shell.user_ns
        match call:
            case FormGroup():
                return call.answer(self._form(call))
            case SettleCell():
                return call.answer(backend.settle(space, self._runner.broken_in))
            case TryGroups():
                return call.answer(backend.works())
            case ListGroups():
                return call.answer(backend.groups())
            case OutlineModel():
                return call.answer(backend.outline(space, call.path))
            case SyncModel():
                backend.sync(space, call.path, call.source, call.group)
                return call.answer(None)
            case WeighModels():
                return call.answer(backend.weigh(space))
            case DigestModels():
                return call.answer(backend.checksums(space, call.jobs, every=call.every))

    def _of_names(self, call: OfNames) -> object:
        names = self.names
        match call:
            case ReceiveParcel():
                # Unpickling imports modules from the same paths as the cell.
                self._runner.mirror.follow(call.run)
                return call.answer(names.receive(call.parcel))
            case BindParcel():
                names.bind(call.parcel)
                return call.answer(None)
            case DropParcel():
                names.drop()
                return call.answer(None)
            case OfferNames():
                return call.answer(names.offer(call.names))
            case TryNames():
                return call.answer(names.refused_by_kind(call.names))

    def _of_copies(self, call: OfCopies) -> object:
        names = self.names
        match call:
            case ListNames():
                return call.answer(names.mine())
            case GiveNames():
                return call.answer(names.give(call.path, call.names))
            case TakeNames():
                return call.answer(names.take(call.path))
            case TellMarks():
                return call.answer(names.marks())
            case PutMarksRight():
                names.put_right(call.paths)
                return call.answer(None)

    def _open_store(self) -> Ports:
        if self._reserved is not None:
            self._reserved.close()
        self._reserved = sockets.reserve()
        return Ports(self._backend.open_store(), self._reserved.getsockname()[1])

    def _form(self, call: FormGroup) -> Formed:
        backend, ports = self._backend, call.ports
        lost = backend.form(
            ports.store, call.generation, call.way, self._shell.user_ns, fsdp=call.fsdp
        )
        backend.meet_at(ports.master)
        os.environ["MASTER_PORT"] = str(ports.master)
        broken, backend.broken_off = sorted(backend.broken_off), set()
        reset, backend.reset = backend.reset, {}
        return Formed(lost, broken, reset)

    def _stacks(self) -> str:
        runner = self._runner
        return vitals.stacks(runner.main, self._engine, runner.cell_file, runner.named)

    def _busy(self) -> State:
        runner = self._runner
        return State(busy=True, line=runner.line() if runner.job else None)
