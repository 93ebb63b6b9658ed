"""Run a notebook without a browser: print the outputs of its cells at once, and save the notebook.

With ``--store`` the outputs go into the notebook itself, for the repository: without the times of
the run, and without outputs about this machine. ``python tools/run_notebook.py
notebooks/quickstart.ipynb --store`` is ``make quickstart``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import socket
import time
import uuid
from pathlib import Path
from typing import Any

import nbformat
from jupyter_core.paths import jupyter_runtime_dir
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

HERE_ONLY = "about-this-machine"
"""The tag of cells whose outputs (host, pids) only hold for this machine, and are not stored."""
ADDRESS = r"\b(?:127\.0\.0\.1|localhost)\b"
PATH = r"(?<![\w.<])/(?:tmp|home|root|usr|work|run|Users)/[^\s\"]*"
CONTROLS = re.compile(r"\\u001b\[[0-9;]*[A-Za-z]|\\[nrt]")
"""Colours and ends of lines, as JSON writes them: a new word begins after each."""
BYTES = re.compile(r'"(?:image/png|state)": "[^"]*"|data:image/png;base64,[\w+/=]*')
ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class TalkingClient(NotebookClient):
    """Runs a notebook and prints each output when it arrives."""

    def output(self, outs: list[Any], msg: dict[str, Any], *where: Any) -> Any:
        """Print an output, then pass it on to nbclient."""
        content = msg["content"]
        if msg["msg_type"] == "stream":
            print(content["text"], end="", flush=True)
        elif msg["msg_type"] == "error":
            print(ANSI.sub("", "\n".join(content["traceback"])), flush=True)
        elif "text/plain" in content.get("data", {}):
            print(content["data"]["text/plain"], flush=True)
        return super().output(outs, msg, *where)


def announce(cell: dict[str, Any], cell_index: int) -> None:
    """Print a cell before it runs: text as it is, code indented."""
    if cell["cell_type"] == "code":
        print(f"\n--- cell {cell_index}")
        print("\n".join(f"    {line}" for line in cell["source"].splitlines()), flush=True)
    else:
        print(f"\n{cell['source']}", flush=True)


def sockets() -> Config:
    """Let the kernel listen on sockets in the runtime folder of Jupyter.

    Another process could take a TCP port between its choice and the kernel's bind.
    """
    folder = Path(jupyter_runtime_dir())
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # with Jupyter's own mode
    # The name is short, as a socket's path may have only some 100 characters.
    return Config(KernelManager={"transport": "ipc", "ip": str(folder / uuid.uuid4().hex[:12])})


def digest(notebook: Any) -> str:
    """Return a hash of a notebook's code, which shows whether its outputs are from this code."""
    code = [[cell.id, cell.source] for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(repr(code).encode()).hexdigest()


def make_storable(notebook: Any) -> None:
    """Remove what differs from run to run, and note the code that has made the outputs."""
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.pop("execution", None)
        if HERE_ONLY in cell.metadata.get("tags", ()):
            cell.outputs = []
        cell.outputs = _joined(cell.outputs)
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata["nbdist"] = {"outputs_of": digest(notebook)}


def about_a_machine(notebook: Any) -> list[str]:
    """Return the names, addresses and paths of this machine that occur in the outputs."""
    outputs = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    words = CONTROLS.sub(" ", BYTES.sub("", outputs))
    host = rf"(?<![\w-]){re.escape(socket.gethostname())}(?![\w-])"
    return re.findall(rf"{host}|{ADDRESS}|{PATH}", words)


def _joined(outputs: list[Any]) -> list[Any]:
    """Join the pieces of each stream, which is cut by chance."""
    found: list[Any] = []
    for each in outputs:
        stream = each.get("name")  # only streams have one
        if stream and found and found[-1].get("name") == stream:
            found[-1].text += each.text
        else:
            found.append(each)
    return found


def command_line() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("notebook", type=Path)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "executed", type=Path, nargs="?", help="where the notebook with its outputs goes"
    )
    where.add_argument("--store", action="store_true", help="into the notebook itself")
    parser.add_argument("--timeout", type=float, default=300, help="seconds a cell may take")
    return parser.parse_args()


def main() -> int:
    """Run the notebook named on the command line; 1 when a cell fails that should not."""
    arguments = command_line()
    notebook = nbformat.read(arguments.notebook, as_version=4)
    client = TalkingClient(
        notebook,
        timeout=arguments.timeout,
        kernel_name="python3",
        config=sockets(),
        extra_arguments=["--log-level=ERROR"],  # no warning of other users here
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
        if arguments.executed:
            arguments.executed.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, arguments.executed)
    if arguments.store and not failed:
        make_storable(notebook)
        told = about_a_machine(notebook)
        failed = bool(told)
        if failed:
            print(f"\nThe outputs name this machine: {', '.join(told)}")
        else:
            nbformat.write(notebook, arguments.notebook)
    print(f"\n{'FAILED' if failed else 'Done'} in {time.monotonic() - started:.1f} s.")
    if arguments.store:
        print(f"Outputs {'were NOT' if failed else 'are'} stored in {arguments.notebook}")
    else:
        print(f"The executed notebook: {arguments.executed.resolve()}")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
