"""What is said of XLA where torch_xla is not there; all else is in `tests/xla`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

import pytest

import nbdist
from nbdist.backends import xla
from nbdist.backends.choice import check_fit
from nbdist.errors import UsageError
from nbdist.notebook import current_cluster
from nbdist.notebook.session import Wish, session
from tests.helpers.kernel import Kernel
from tests.helpers.notebook import on_ranks


@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is not None, reason="torch_xla is there")
def test_without_torch_xla_all_ways_say_what_to_install(kernel: Kernel) -> None:
    kernel.run("%load_ext nbdist")
    for flags in ("-np 4 --backend xla", "-np 1 --backend xla --launcher torchrun"):
        cell = on_ranks(kernel, "print('ran')", flags, check=False)
        assert f"--backend xla needs torch_xla, which {sys.executable} does not have" in cell.error
        assert "pip install 'nbdist[xla]'" in cell.error
        assert "Traceback" not in cell.text
        assert cell.stdout == ""
    assert on_ranks(kernel, "print(rank)", "-np 1 --backend none").stdout == "0\n"
    with pytest.raises(UsageError, match="needs torch_xla"):
        nbdist.launch(print, backend="xla")


def test_another_torch_than_it_was_built_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.13.0+cpu", "torch_xla": "2.9.0"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    with pytest.raises(UsageError, match=r"torch_xla 2\.9\.0 needs torch 2\.9\.0, .* 2\.13\.0"):
        xla.check()
    versions["torch"] = "2.9.1"
    xla.check()


def test_the_kernel_is_xlas_own_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "last", Wish(np=2))

    def chosen(backend: str | None, launcher: str | None = None) -> tuple[str | None, str | None]:
        found = current_cluster.wished(Wish(backend=backend, launcher=launcher))
        monkeypatch.setattr(session, "last", found)
        return found.backend, found.launcher

    assert chosen("xla") == ("xla", "kernel")
    assert chosen(None) == ("xla", "kernel")
    assert chosen("ddp", "torchrun") == ("ddp", "torchrun")
    assert chosen("xla") == ("xla", "kernel")  # and not under torchrun by chance
    assert chosen(None, "torchrun") == ("xla", "torchrun")
    assert chosen("ddp") == ("ddp", "torchrun")
    assert chosen(None, "kernel") == ("xla", "kernel")
    assert chosen(None, "engines") == ("ddp", "engines")
    with pytest.raises(UsageError, match="ddp does not go with launcher kernel"):
        check_fit("ddp", "kernel")
