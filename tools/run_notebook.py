"""Run a notebook without a browser: print what its cells print, as they print it, and save it."""

from __future__ import annotations

import argparse
import re
import time
import uuid
from pathlib import Path
from typing import Any

import nbformat
from jupyter_core.paths import jupyter_runtime_dir
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class TalkingClient(NotebookClient):
    """Runs a notebook and prints each output when it arrives."""

    def output(self, outs: list[Any], msg: dict[str, Any], *where: Any) -> Any:
        """Print one output message, then let nbclient keep it."""
        content = msg["content"]
        if msg["msg_type"] == "stream":
            print(content["text"], end="", flush=True)
        elif msg["msg_type"] == "error":
            print(ANSI.sub("", "\n".join(content["traceback"])), flush=True)
        elif "text/plain" in content.get("data", {}):
            print(content["data"]["text/plain"], flush=True)
        return super().output(outs, msg, *where)


def announce(cell: dict[str, Any], cell_index: int) -> None:
    """Print a cell before it runs: headings and text as they are, code indented."""
    if cell["cell_type"] == "code":
        print(f"\n--- cell {cell_index}")
        print("\n".join(f"    {line}" for line in cell["source"].splitlines()), flush=True)
    else:
        print(f"\n{cell['source']}", flush=True)


def sockets() -> Config:
    """Let the kernel listen on sockets in the runtime folder of Jupyter.

    A TCP port is free when it is chosen, and another process may have it when the kernel binds it.
    """
    folder = Path(jupyter_runtime_dir())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # as Jupyter makes it
    # A socket's path may have some 100 characters: the name is short.
    return Config(KernelManager={"transport": "ipc", "ip": str(folder / uuid.uuid4().hex[:12])})


def main() -> int:
    """Run the notebook named on the command line; 1 when a cell fails that should not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("executed", type=Path, help="where the notebook with its outputs goes")
    parser.add_argument("--timeout", type=float, default=300, help="seconds a cell may take")
    arguments = parser.parse_args()

    notebook = nbformat.read(arguments.notebook, as_version=4)
    client = TalkingClient(
        notebook,
        timeout=arguments.timeout,
        kernel_name="python3",
        config=sockets(),
        extra_arguments=["--log-level=ERROR"],  # not that others of this machine might listen
        resources={"metadata": {"path": str(arguments.notebook.parent)}},
        on_cell_start=announce,
    )
    started = time.monotonic()
    failed = False
    try:
        client.execute()
    except CellExecutionError as error:
        failed = True
        print(f"\nStopped at a cell that failed: {error.ename}: {error.evalue}")
    finally:
        arguments.executed.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, arguments.executed)
    print(f"\n{'FAILED' if failed else 'Done'} in {time.monotonic() - started:.1f} s.")
    print(f"The executed notebook: {arguments.executed.resolve()}")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
