"""What nbdist touches inside torch is where it was: the first test to fail on a new torch."""

from __future__ import annotations

import inspect
import os
import re
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import _composable_state, device_mesh, rpc
from torch.distributed import distributed_c10d as c10d
from torch.distributed.elastic.agent.server import api as server_api
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import api as multiprocessing_api
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.elastic.utils import logging as elastic_logging
from torch.distributed.fsdp._fully_shard import _fsdp_common, _fsdp_param_group
from torch.distributed.launcher import api
from torch.nn.parallel import DistributedDataParallel

from nbdist.backends.ddp import torch_probe
from nbdist.backends.groups import gloo, registry
from nbdist.backends.groups.recovery import Recovery
from nbdist.backends.groups.registry import kept_excepthook
from nbdist.backends.torch_private import elastic, elastic_agents, hooks, process_groups, refusal
from nbdist.errors import NbdistError
from nbdist.machine import sockets
from tests.conftest import probed
from tests.helpers.waiting import allowed, within

WORLD = "default_pg pg_map pg_names pg_group_ranks group_count tags_to_pg"
C10D = """_get_default_timeout _new_process_group_helper _update_default_pg split_group
    init_process_group destroy_process_group new_group ProcessGroupGloo"""
NAMES = [
    (c10d._world, WORLD),
    (c10d, C10D),
    (_distributed_c10d, "_resolve_process_group _register_process_group _dump_fr_trace_json"),
    (_distributed_c10d, "_unregister_process_group TCPStore PrefixStore Store"),
    (dist.ProcessGroup, "_device_types _get_backend _id _register_backend split_group"),
    (c10d.ProcessGroupGloo, "create_device _Options options"),
    (dist.Backend, "backend_type_map"),
    (dist, "_register_comm_hook _verify_params_across_processes Reducer Logger"),
    (DistributedDataParallel, "_ddp_init_helper _build_params_for_reducer"),
    (DistributedDataParallel, "_build_debug_param_to_name_mapping _sync_buffers"),
    (dist.Logger, "set_runtime_stats_and_log _get_ddp_logging_data"),  # type: ignore[attr-defined]
    (dist.Reducer, "_set_ddp_runtime_logging_sample_rate"),  # type: ignore[attr-defined]
    (dist.Work, "wait"),
    (_composable_state, "_module_state_mapping"),
    (_fsdp_common.TrainingState, "IDLE"),
    (_fsdp_param_group.FSDPParamGroup, "_to_sharded"),
    (device_mesh, "init_process_group split_group"),
    (torch.autograd.graph, "_engine_run_backward"),
    (LocalElasticAgent, "_start_workers _monitor_workers _exit_barrier _restart_workers"),
    (api, "LocalElasticAgent elastic_launch"),
    (server_api, "time"),
    (dynamic_rendezvous, "_delay"),
    (torch.multiprocessing.SimpleQueue(), "_reader"),
    (import_module("torch.distributed.rendezvous"), "_create_c10d_store TCPStore"),
    (rpc, "_init_counter"),
    (rpc.api, "_is_current_rpc_agent_set _all_gather_sequence_id"),
]


@pytest.mark.parametrize(("where", "name"), [(w, n) for w, names in NAMES for n in names.split()])
def test_torch_still_has(where: object, name: str) -> None:
    assert hasattr(where, name)


def test_collectives_are_operators_that_can_be_refused_before_any_device() -> None:
    names = refusal.operators()
    begun = ("allreduce_", "broadcast_", "barrier", "send", "recv_", "_allgather_base_")
    assert {f"c10d::{name}" for name in begun} <= set(names)
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    assert not any(has(name, "BackendSelect") for name in names)


def test_the_agent_counts_its_restarts_where_we_do() -> None:
    assert "self._remaining_restarts > 0" in inspect.getsource(LocalElasticAgent._invoke_run)
    assert multiprocessing_api.logger.name == elastic.MULTIPROCESSING


def test_the_agent_sleeps_and_is_delayed_where_we_take_a_hand() -> None:
    assert "time.sleep(monitor_interval)" in inspect.getsource(LocalElasticAgent._invoke_run)
    source = inspect.getsource(dynamic_rendezvous.DynamicRendezvousHandler.next_rendezvous)
    assert "_delay(seconds=(0, 0.3))" in source


@pytest.mark.starts_processes
def test_the_agents_sleep_ends_when_a_worker_returns_or_ends_and_once_for_each() -> None:
    context = torch.multiprocessing.get_context("fork")
    returned = {rank: context.SimpleQueue() for rank in range(2)}
    processes = [context.Process(target=time.sleep, args=(600,)) for _ in returned]
    for process in processes:
        process.start()
    watched = elastic._Watched()
    watched.watch(SimpleNamespace(processes=processes), returned)
    with within(20):
        returned[0].put(None)
        watched.sleep(600)
        processes[1].kill()
        watched.sleep(600)
    began = time.monotonic()
    watched.sleep(0.0)
    assert time.monotonic() - began >= 0.99 * elastic.LOOK_SECONDS, "nobody has said anything new"
    processes[0].kill()
    for process in processes:
        process.join()


@pytest.mark.starts_processes
def test_of_workers_those_that_return_nothing_are_answered_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    context = torch.multiprocessing.get_context("fork")
    returned = {rank: context.SimpleQueue() for rank in range(3)}
    let_go = context.Event()

    def work(rank: int) -> None:
        if rank == 0:
            returned[rank].put("value")
            let_go.wait()
        elif rank == 2:
            sys.exit(3)

    processes = [context.Process(target=work, args=(rank,)) for rank in returned]
    for process in processes:
        process.start()
    pending = [*processes[1:], processes[0]]
    agents = SimpleNamespace(processes=processes, join=lambda: pending.pop(0).join())
    elastic._answer_for_silent(agents, returned)
    agents.join()
    agents.join()
    assert returned[0].get() == "value"  # as TorchElastic does between two looks
    assert returned[1].get() is None
    let_go.set()
    agents.join()
    said = capsys.readouterr().err
    assert said == f"silent (exitcode: 0) local_rank: 1 (pid: {processes[1].pid})\n"
    assert all(queue.empty() for queue in returned.values())


def test_agents_meet_at_once_and_wait_where_it_is_not_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(dynamic_rendezvous, "_delay", waited.append)
    elastic._meet_at_once()
    delay = vars(dynamic_rendezvous)["_delay"]
    delay(seconds=(0, 0.3))
    delay(seconds=1)
    assert waited == [1]


def test_groups_are_renewed_beside_the_old_ones_as_often_as_torch_has_numbers() -> None:
    first, last = process_groups._own_number(1), process_groups._own_number(155)
    assert first != last
    with pytest.raises(NbdistError, match=r"renewed 156 times, .* %dist restart"):
        process_groups._own_number(156)


class WithoutOptions:
    """Stands for a backend in C++ that keeps no options: no wheel of torch has one, such as MPI."""

    @property
    def options(self) -> object:
        """Raise as torch does."""
        raise RuntimeError("Backend mpi does not implement getBackendOptions.")


def test_a_group_whose_backend_keeps_no_options_has_torchs_own_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=_distributed_c10d.HashStore())
    try:
        cpu = torch.device("cpu")
        monkeypatch.setattr(process_groups, "_backends", lambda _: {cpu: WithoutOptions()})
        assert process_groups.infos()[0].timeout == dist.default_pg_timeout.total_seconds()
    finally:
        dist.destroy_process_group()


def test_what_gloo_says_of_each_group_is_left_out_and_nothing_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def speak(*, fail: bool) -> None:
        with hooks.without_lines(hooks.GLOO_SAYS):
            os.write(1, b"mine\n[Gloo] Rank 0 is connected to 1 peer ranks.\nnot [Gloo] Rank 0\n")
            if fail:
                raise ConnectionError

    with pytest.raises(ConnectionError):
        speak(fail=True)
    os.write(1, b"after\n")
    assert capfd.readouterr().out == "mine\nnot [Gloo] Rank 0\nafter\n"


@pytest.mark.parametrize(
    ("error", "sure"),
    [(AttributeError, True), (NotImplementedError, True), (RuntimeError, False), (OSError, False)],
)
def test_what_the_load_may_have_done_is_tried_again(error: type[Exception], sure: bool) -> None:  # noqa: FBT001
    def fail() -> None:
        raise error("x" * 1000)

    why, found = torch_probe._why_not(fail)
    assert (why[:50], found) == (f"{error.__name__}: {'x' * 1000}"[:50], sure)
    assert len(why) == torch_probe.WHY_CHARACTERS
    assert torch_probe._why_not(lambda: None) == ("", True)


def test_groups_that_cannot_be_renewed_end_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(torch_probe.Trial, "groups", lambda _: torch_probe._demand(False, "off"))
    monkeypatch.setattr(torch_probe.Trial, "models", lambda _: torch_probe._demand(False, "tried"))
    mine, other = socket.socketpair()
    with mine, other:
        told: list[Recovery] = []
        torch_probe._try(torch_probe.Partner(0, mine), told.append)
    version = str(torch.__version__)
    assert told == [Recovery(version, groups="Wrong: off", whole=True)], "and nothing else is tried"


def test_models_that_cannot_be_renewed_are_told_of_after_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "nice", lambda _: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(torch_probe.Trial, "groups", lambda _: None)
    monkeypatch.setattr(torch_probe.Trial, "models", lambda _: torch_probe._demand(False, "off"))
    mine, other = socket.socketpair()
    with mine, other:
        told: list[Recovery] = []
        torch_probe._try(torch_probe.Partner(0, mine), told.append)
    version = str(torch.__version__)
    why = "Wrong: off"
    assert told == [Recovery(version), Recovery(version, models=why, fsdp=why, whole=True)]


def test_a_probe_whose_other_half_dies_says_so() -> None:
    mine, other = socket.socketpair()
    partner = torch_probe.Partner(0, mine)
    with mine:
        other.sendall(b"ready\n")
        assert partner.agree("ready") == "ready"
        other.shutdown(socket.SHUT_WR)
        with pytest.raises(RuntimeError, match="the other process of the two has died"):
            partner.agree("waiting")
        other.close()


def test_groups_can_be_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_groups._release() is not None
    look = process_groups._release.__wrapped__
    with monkeypatch.context() as patch:
        patch.setattr(process_groups, "RELEASE", "no_such_function")
        assert look() is None
    monkeypatch.setattr(torch, "__file__", "/elsewhere/torch/__init__.py")
    assert look() is None


def test_a_torch_without_built_in_hooks_gets_none() -> None:
    class Model:
        """Stands for DDP of another release."""

    registry.Made(connections=False)._note_builtin_hooks(Model)
    assert not hasattr(Model, registry.BUILTIN)


def test_a_group_whose_backend_tells_no_time_limit_has_torchs_own() -> None:
    fake: Any = import_module("torch.testing._internal.distributed.fake_pg")  # torch's own
    with kept_excepthook():
        dist.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=2)
    try:
        world = process_groups.world()
        assert world is not None
        limit = process_groups.default_timeout("fake")
        assert process_groups.describe(world).timeout == limit.total_seconds()
        found: list[Any] = []
        process_groups.each_part("gloo", found.append)
        assert found == []
        process_groups.each_part("fake", found.append)
        assert found
    finally:
        dist.destroy_process_group()


def test_a_gloo_device_is_told_from_other_sockets_that_begin_to_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make: Any = c10d.ProcessGroupGloo.create_device
    others: list[socket.socket] = []

    def make_beside_another(hostname: str) -> object:
        if not others:  # another thread's
            others.append(socket.create_server((hostname, 0)))
        return make(hostname=hostname)

    monkeypatch.setattr(c10d.ProcessGroupGloo, "create_device", staticmethod(make_beside_another))
    device, address = hooks._gloo_device("127.0.0.1")
    with others[0] as other:
        assert address in sockets.listening() - {other.getsockname()}
    del device


def test_gloo_is_quiet_in_groups_that_a_script_makes(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Talking:
        """Stands for gloo of torch 2.9."""

        def __init__(self, store: str, *, rank: int) -> None:
            os.write(1, b"[Gloo] Rank 0 is connected to 1 peer ranks.\n")
            self.made = store, rank

    monkeypatch.setattr(c10d, "ProcessGroupGloo", Talking)
    hooks.quiet_gloo()
    made: Any = c10d.ProcessGroupGloo
    assert made("store", rank=3).made == ("store", 3)
    assert capfd.readouterr().out == ""
    assert isinstance(Talking("store", rank=0), made)


def test_gloo_that_connects_late_is_not_made_to_connect_by_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCH_GLOO_LAZY_INIT", "1")
    store, parts = _distributed_c10d.HashStore(), dict[int, Any]()
    kind: Any = c10d.ProcessGroupGloo

    def make(rank: int) -> None:
        options = kind._Options()
        options._devices = [kind.create_device(hostname="127.0.0.1")]
        parts[rank] = kind(store, rank, 2, options)

    def add(rank: int) -> float:
        value = torch.ones(1)
        parts[rank].allreduce([value]).wait(timedelta(seconds=allowed(20)))
        return value.item()

    with ThreadPoolExecutor(2) as both:
        list(both.map(make, range(2)))
        gloo.close(parts[0])
        assert list(both.map(add, range(2))) == [2.0, 2.0]


@pytest.mark.starts_processes
def test_agents_that_meet_as_the_user_wants_restart_their_ranks_as_torch_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"

    def fail(path: str) -> None:
        with Path(path).open("a") as file:
            file.write("ran\n")
        sys.exit(3)

    flags = [
        "--nnodes=1", "--nproc-per-node=1", "--max-restarts=1", "--rdzv-id=alone",
        "--rdzv-backend=c10d", f"--rdzv-endpoint={tmp_path / 'meeting'}",
        "--rdzv-conf=store_type=file", f"--log-dir={tmp_path}", "--local-addr=127.0.0.1",
    ]  # fmt: skip
    context = torch.multiprocessing.get_context("fork")
    agent = context.Process(target=elastic_agents.run, args=(flags, fail, str(runs)))
    agent.start()
    agent.join(allowed(60))
    assert agent.exitcode == 1
    assert runs.read_text() == "ran\n" * 2
    said = capfd.readouterr().err
    assert said.count("nbdist: 1 agents have joined\n") == 2
    assert "ChildFailedError" in said


def test_the_helper_that_makes_groups_takes_what_we_give_it() -> None:
    given = inspect.signature(c10d._new_process_group_helper).parameters
    assert list(given)[:6] == [
        "group_size",
        "group_rank",
        "global_ranks_in_group",
        "backend",
        "store",
        "group_name",
    ]
    assert {"timeout", "device_id", "group_desc"} <= set(given)


def test_a_store_takes_over_a_listening_socket() -> None:
    assert "master_listen_fd" in (_distributed_c10d.TCPStore.__init__.__doc__ or "")


@pytest.mark.starts_processes
def test_the_probe_finds_all_of_it_working() -> None:
    """What was moved in a way that the names do not show is found by trying."""
    found = probed()
    assert found == Recovery(str(torch.__version__), talks=found.talks, whole=True)


LATE = """if True:
    import os, sys, time
    from importlib.abc import MetaPathFinder
    from nbdist.backends.ddp import torch_probe
    torch_probe.STUCK_LIMIT, torch_probe.NICER, first = {limit}, 0, os.getpid()
    class Late(MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if os.getpid() != first and name in ("torch._dynamo", "torch.distributed.fsdp"):
                time.sleep(1.5 * {limit})
    sys.meta_path.insert(0, Late())
    torch_probe.main(int(sys.argv[1]))
"""


@pytest.mark.starts_processes
def test_the_probe_does_not_mind_that_one_of_the_two_imports_late() -> None:
    found = probed("-c", LATE.format(limit=allowed(3)))
    assert found == Recovery(str(torch.__version__), talks=found.talks, whole=True)


def test_a_reducer_is_made_from_what_setstate_gives_it() -> None:
    assert list(inspect.signature(DistributedDataParallel._ddp_init_helper).parameters) == [
        "self",
        "parameters",
        "expect_sparse_gradient",
        "param_to_name_mapping",
        "static_graph",
    ]


def test_ddp_logs_the_last_step_before_it_prepares_the_next() -> None:
    source = inspect.getsource(DistributedDataParallel._pre_forward)
    logs = source.index("self.logger.set_runtime_stats_and_log()")
    assert logs < source.index("self.reducer.prepare_for_forward()")
    assert logs < source.index("self._sync_buffers()")
    # Collectives wait in Python, so that the wait can be timed there.
    for name in ("all_reduce", "broadcast", "all_gather", "barrier"):
        assert "work.wait()" in inspect.getsource(getattr(c10d, name)), name


def test_torchelastic_knows_its_callers_by_a_stack_without_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in elastic.LOOKING_AROUND:
        monkeypatch.setattr(module, "inspect", module.inspect)  # put back afterwards
    elastic.name_callers_quickly()
    assert dynamic_rendezvous.get_method_name(1) == inspect.stack(0)[0].function
    assert elastic_logging._derive_module_name(1) == __name__
    for module in elastic.LOOKING_AROUND:
        used = re.findall(r"\binspect\.(\w+)", inspect.getsource(module))
        assert set(used) <= {"stack", "getmodule"}, module
