"""Measure nbdist and its peers in one run; the complete run writes RESULTS.md."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks import environment

FIGURES = (  # one module for each
    "empty_cell", "ready", "training", "fault", "footprint", "output", "names", "scripts",
    "metrics", "sidebar", "page",
)  # fmt: skip
RESULTS = Path(__file__).parent / "RESULTS.md"


def main() -> None:
    """Measure what the command line names."""
    arguments = _arguments()
    if not arguments.here and not arguments.in_place:
        environment.enter(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _unwind)
    _measure(arguments)


def _unwind(number: int, _: object) -> None:
    """Leave all `with` blocks, which ends all kernels and ranks; a second Ctrl-C is ignored."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=FIGURES, help="just this; repeatable")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, wider spread")
    parser.add_argument("--mine", action="store_true", help="leave the peers out")
    parser.add_argument("--here", action="store_true", help="in this Python's environment")
    parser.add_argument("--in-place", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure(arguments: argparse.Namespace) -> None:
    # Imported here, as these need packages of the benchmarks' environment.
    from benchmarks import report
    from benchmarks.systems import ALL, NBDIST, Options

    options = Options(arguments.quick, (NBDIST,) if arguments.mine else ALL)

    load = os.getloadavg()[0]
    sections = []
    for name in arguments.only or FIGURES:
        start = time.monotonic()
        take = importlib.import_module(f"benchmarks.{name}").measure
        section = take(options)
        section = replace(section, seconds=time.monotonic() - start)
        print(report.show(section), flush=True)
        sections.append(section)
    if arguments.here or arguments.only or arguments.mine or arguments.quick:
        return  # only the results of a complete run are kept
    report.write(RESULTS, sections, load)
    print(f"Wrote {RESULTS.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
