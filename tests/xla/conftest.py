"""Leave these tests out where torch_xla is not there, as in `make test`."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("torch_xla") is None else []
