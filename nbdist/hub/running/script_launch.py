"""Starts the launcher of a script: writes what its ranks read, orders the warm process.

Hub's thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from nbdist.hub.running.launch_plan import SCRIPT
from nbdist.launchers.host.protocol import LAUNCHER, StartLauncher
from nbdist.launchers.scripts.launcher import Launch
from nbdist.machine.operating_system import private
from nbdist.rank.script_program import Program

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.hub.link.agent_connections import Line
    from nbdist.hub.running.launch_plan import Plan
    from nbdist.job.job import Job
    from nbdist.launchers.host.engines import Host
    from nbdist.launchers.scripts.hosts import Reached
    from nbdist.launchers.scripts.launcher import Launcher

PROGRAM = "program.json"
"""In the job's folder: what its ranks read."""


@dataclass(frozen=True)
class ScriptLaunch:
    """A script that is about to be launched, on a machine's warm process."""

    host: Host
    job: Job
    plan: Plan
    how: Launcher

    @property
    def name(self) -> str:
        """What the warm process calls the launcher."""
        return LAUNCHER + self.job.folder.name

    @property
    def temp(self) -> Path:
        """A folder for what its ranks write meanwhile."""
        return self.host.temp / self.job.id

    def order(self, line: Line, reached: Reached | None) -> StartLauncher:
        """Make the files that the launcher and its ranks need; return what starts the launcher.

        Parameters
        ----------
        line
            What the ranks connect to.
        reached
            The other hosts; None if all ranks are on this machine.

        Raises
        ------
        OSError
            If a file cannot be made.
        """
        plan, folder = self.plan, self.job.folder
        self.temp.mkdir(mode=0o700)
        file = folder / PROGRAM
        with open(file, "wb", opener=private) as out:
            out.write(msgspec.json.encode(self._program(line, loopback=reached is None)))
        environ = {**self.host.environ_changes(), **self.how.environ(folder.name), **plan.environ}
        launch = Launch(
            plan.np, plan.max_restarts, plan.hosts, reached, plan.elastic, plan.passed_on,
            str(self.temp), plan.cold,
        )  # fmt: skip
        return StartLauncher(
            self.name, plan.launcher, self.how.arguments(launch, folder, folder.name),
            str(file), environ, plan.cwd, str(folder / "launcher.log"), plan.cold,
        )  # fmt: skip

    def _program(self, line: Line, *, loopback: bool) -> Program:
        job, plan = self.job, self.plan
        return Program(
            job=job.id,
            url=line.url,
            keys=line.keys,
            path=str(job.folder / SCRIPT),
            cell_line=plan.cell_line,
            cell_lines=job.code.count("\n") + 1,
            lines=job.lines,
            shows_last=plan.shows_last,
            label=plan.label or f"Cell In[{job.number}]",
            launcher=plan.launcher,
            shown=job.ranks[0],
            returning=plan.returning,
            returns=plan.returns,
            arguments=plan.arguments,
            cwd=plan.cwd,
            sys_path=plan.sys_path,
            temp=str(self.temp),
            loopback=loopback,
            began=job.began or time.time(),
        )
