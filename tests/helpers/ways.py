"""Runs programs in several ways: in the notebook, on ranks that stay, by torchrun, as a script.

A `Ways` has one kernel with one cluster, and runs programs there one after the other. Before each
program, the notebook and its ranks forget the last one. A cell that observes is first run on the
ranks, then saved as a script, and finally run in the notebook: what it prints there is right by
definition.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.helpers.notebook import plain
from tests.helpers.plain_process import PlainProcess
from tests.helpers.programs import shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.helpers.cell import Cell as Run
    from tests.helpers.kernel import Kernel
    from tests.helpers.programs import Program

ENGINES = "%%distributed --launcher engines -np 1 --backend none"
MAGIC = {
    "ranks": ENGINES,
    "torchrun": "%%distributed --launcher torchrun -np 1 --backend none",
    "script": f"{ENGINES} --save {{}}",
}
"""The first line of a cell that observes, for each way."""
KEEP = "get_ipython().kept_names = {*get_ipython().user_ns};"
FORGET = (
    "(lambda shell: [shell.user_ns.pop(name) for name in {*shell.user_ns} - shell.kept_names])"
    "(get_ipython());\n"
)
PATIENT = (
    "from nbdist.magics import own_values\nfrom nbdist.notebook import names_both_ways\n"
    "own_values.LOOK_SECONDS = names_both_ways.LOOK_SECONDS = 20"
)
"""Ranks may answer late, on a machine that has more to do, before the notebook looks no more."""
FORGET_CELLS = "del get_ipython().history_manager.input_hist_parsed[1:]"
REFUSALS = re.compile(
    r"UsageError: .*(cannot be brought to the ranks|cannot be put into a script|is not valid in "
    r"a script|has no value in the notebook or in the cell|the script needs)"
)
"""The errors with which a cell may be refused before anything has started."""
SAID = re.compile(
    r"`\w+` (was (deleted in the notebook; the ranks keep|changed in place in the notebook after|"
    r"changed in the notebook, but cells have|defined again in the notebook after|"
    r"brought with the notebook's)|has got other gradients|"
    r"got .*? in the notebook(, but cells have|\s+after a cell had))|"
    r"This cell has read the notebook's own"
)
"""The notes with which a value may differ from the notebook's."""
FAILED = re.compile(r"CellFailed: Rank 0 failed: (\w+)")


@dataclass(frozen=True)
class Seen:
    """What a cell has printed, and the name of its error."""

    lines: str
    error: str = ""
    refused: str = ""
    """The message that refuses the cell."""
    text: str = field(default="", compare=False)
    """All that the cell has shown."""

    def __str__(self) -> str:
        return f"{self.lines}{self.error}"


@dataclass(frozen=True)
class Difference:
    """A cell that printed something else in one of the ways than in the notebook."""

    way: str
    cell: int
    expected: Seen
    seen: Seen

    def __str__(self) -> str:
        return (
            f"Cell {self.cell + 1} printed in the notebook:\n{self.expected}\n"
            f"{self.way}:\n{self.seen}\n----\n{self.seen.text[-3000:]}"
        )


class Ways:
    """A notebook with a rank, in which programs are run one after the other.

    Parameters
    ----------
    kernel
        The notebook's kernel.
    folder
        The folder for scripts.
    """

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self._kernel, self._folder = kernel, folder
        self.counts: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        kernel.run("%load_ext nbdist")
        kernel.run(PATIENT)
        kernel.run(f"{ENGINES}\n{KEEP}")
        kernel.run(KEEP)
        self._scripts = PlainProcess(folder)

    def close(self) -> None:
        """End the process that runs scripts."""
        self._scripts.close()

    def differences(
        self, program: Program, ways: Sequence[str] = ("ranks", "script")
    ) -> list[Difference]:
        """Run a program; return the cells whose values differ from the notebook's."""
        kernel = self._kernel
        kernel.start(f"{ENGINES} --no-bring\n{FORGET}")
        kernel.start(FORGET + FORGET_CELLS)
        observed: list[tuple[int, dict[str, Run], Run]] = []
        for number, cell in enumerate(program):
            if cell.observes:
                runs = {
                    way: kernel.start(f"{MAGIC[way].format(self._path(number))}\n{cell.text}")
                    for way in ways
                }
                observed.append((number, runs, kernel.start(cell.text)))
            else:
                kernel.start(cell.text)
        kernel.wait()
        self.counts["programs"] += 1
        found, told = [], set[str]()
        for number, runs, own in observed:
            expected = Seen(_told(own.stdout), own.error.partition(":")[0])
            for way, run in runs.items():
                script = way == "script" and run.ok
                seen = self._run(self._path(number)) if script else _seen(run)
                if SAID.search(seen.text):  # once for a change, so later cells do not say it again
                    told.add(way)
                if not self._is_right(way, seen, expected, said=way in told):
                    found.append(Difference(way, number, expected, seen))
        return found

    def check(
        self, program: Program, ways: Sequence[str] = ("ranks", "script"), *, about: str = ""
    ) -> None:
        """Fail if any value differs; the message has the program as cells to paste."""
        found = self.differences(program, ways)
        assert not found, "\n\n".join([about, shown(program), *map(str, found)])

    def slips(self, program: Program, single: Kernel) -> None:
        """Run the cells that observe on the ranks only, the others in the notebook only.

        Each must show what it shows in `single`, a kernel that runs all of them, or say a word.
        """
        self._kernel.start(f"{ENGINES} --no-bring\n{FORGET}")
        self._kernel.start(FORGET + FORGET_CELLS)
        single.start(FORGET)
        runs = [
            (
                self._kernel.start(f"{ENGINES}\n{cell.text}" if cell.observes else cell.text),
                single.start(cell.text),
            )
            for cell in program
        ]
        self._kernel.wait()
        single.wait()
        self.counts["slips"] += 1
        for number, (run, own) in enumerate(runs):
            expected = Seen(_told(own.stdout), own.error.partition(":")[0])
            seen = _seen(run)
            if seen.refused or SAID.search(seen.text) or seen.error == "NameError":
                self.counts["slips, said"] += 1
                return
            assert seen == expected, "\n\n".join(
                [shown(program), str(Difference("slip", number, expected, seen))]
            )

    def bundles(self, program: Program) -> None:
        """Run the cells that observe on the ranks, the others in the notebook, the last in both.

        It must print the same, unless it changes what a word says is separate.
        """
        self._kernel.start(f"{ENGINES} --no-bring\n{FORGET}")
        self._kernel.start(FORGET + FORGET_CELLS)
        runs = [
            self._kernel.start(f"{ENGINES}\n{cell.text}" if cell.observes else cell.text)
            for cell in program
        ]
        here = self._kernel.start(program[-1].text)
        self._kernel.wait()
        self.counts["bundles"] += 1
        texts = [_seen(run).text for run in runs]
        if program[-1].text.startswith("pass") or not any(map(SAID.search, texts)):
            right = _seen(runs[-1]).lines == here.stdout
            assert right, "\n\n".join([shown(program), *texts, here.text])

    def _is_right(self, way: str, seen: Seen, expected: Seen, *, said: bool) -> bool:
        if seen.refused:
            self.counts[f"{way}, refused"] += 1
            self.refusals[re.sub(r"`[^`]*`|0x\w+", "...", seen.refused)] += 1
            return True
        if said:
            self.counts[f"{way}, said"] += 1
            return True
        self.counts[way] += 1
        return seen == expected

    def _path(self, number: int) -> Path:
        return self._folder / f"cell{number}.py"

    def _run(self, path: Path) -> Seen:
        """Run a script in a process without nbdist."""
        code, out, err = self._scripts.run(path)
        error = err.strip().splitlines()[-1].partition(":")[0] if code else ""
        return Seen(_told(out), error, text=path.read_text() + err)


def _told(output: str) -> str:
    """Return an output without the addresses of objects, which differ between processes."""
    return re.sub(r"\b0x[0-9a-f]+", "0x", output)


def _seen(run: Run) -> Seen:
    text = plain(run.text)
    failed, refused = FAILED.match(run.error), REFUSALS.search(text)
    error = failed[1] if failed else run.error.partition(":")[0]
    return Seen(_told(run.stdout), error, refused[0] if refused else "", text)
