"""The ddp backend with real ranks: stuck ones are freed, kept models train on."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from itertools import product
from typing import TYPE_CHECKING

import psutil
import pytest

from nbdist.backends.ddp.agreement import kept
from nbdist.backends.groups.recovery import ANEW, IN_PLACE
from nbdist.backends.torch_private import sparse_sums
from nbdist.wire.group_reports import GroupInfo, Roster
from tests.helpers import ddp_jobs as jobs
from tests.helpers.ddp_ranks import FREE, LIMIT, Freed, Ranks, cool_down, warm_up
from tests.helpers.waiting import allowed, until, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.starts_processes

HOW = {"in place": (IN_PLACE, True), "anew": (ANEW, False), "anew after all": (ANEW, True)}
"""How groups come back, and whether torch's private parts are used."""
DESTROYED = "a cell has destroyed its process group"
ITS_OPTIMIZER = "it is the optimizer of a module that is lost"
INSIDE = {"model": DESTROYED, "optimizer": ITS_OPTIMIZER}
MADE_ANEW = {
    "group": "a process group that could not be re-created",
    "model": "UsageError: its process group could not be re-created",
}
HOOKED = ["static graph", "power sgd", "built-in hook"]
CLOSED = re.compile("Connection (closed|reset) by peer|pair closure")
"""How gloo frees who waits: it has seen the end of a connection, or was told to close it.

Linux resets a connection, rather than end it, if its other end did not read all that had come."""
SLACK = 0.1
"""Torch's recorder has a clock of its own."""


@pytest.fixture(scope="module", autouse=True)
def _forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    warm_up(tmp_path_factory.mktemp("forks"))
    yield
    cool_down()


@pytest.fixture
def start() -> Iterator[Callable[..., Ranks]]:
    """Start ranks and form their first generation."""
    started: list[Ranks] = []

    def start(size: int, how: str = "in place") -> Ranks:
        started.append(Ranks(size, *HOW[how]))
        started[-1].form()
        return started[-1]

    yield start
    for ranks in started:
        ranks.end()


def others(ranks: Ranks, failing: int) -> list[int]:
    return [number for number in range(ranks.size) if number != failing]


def fail_one(ranks: Ranks, fail: str, failing: int = 1) -> list[str]:
    """Let one rank fail in a step while the others wait for it; free them; say who said what."""
    waiting = others(ranks, failing)
    ranks.start(jobs.step, fail, ranks=[failing])
    ranks.start(jobs.step, ranks=waiting)
    if fail == "after":  # its collectives are done: the others wait in the next step
        said = ranks.outcomes(LIMIT)
        assert not any(said[number] for number in waiting)
        ranks.start(jobs.step, ranks=waiting)
        ranks.start(jobs.new_group, fail, ranks=[failing])
    ranks.wait_until_done(failing)
    for number in waiting:
        ranks.wait_until_waiting(number)
    with within(FREE):
        ranks.abort()
        said = ranks.outcomes()
    return said


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", ["tensor", "ddp", "subgroup", "fsdp", *HOOKED])
def test_a_kept_model_trains_on_after_a_rank_failed_anywhere_in_a_step(
    start: Callable[..., Ranks], kind: str, size: int
) -> None:
    _trains_on_after_faults(start(size), kind, jobs.identities)


@pytest.mark.parametrize("kind", ["tensor", "ddp", "subgroup", *HOOKED])
@pytest.mark.parametrize("how", ["anew", "anew after all"])
def test_a_kept_model_trains_on_in_groups_that_are_made_anew(
    start: Callable[..., Ranks], how: str, kind: str
) -> None:
    _trains_on_after_faults(start(3, how), kind, jobs.identities_of_models)


@pytest.mark.parametrize(("kind", "how"), [("compiled", "in place"), *product(["held"], HOW)])
def test_a_model_whose_old_reducer_is_referred_to_trains_on(
    start: Callable[..., Ranks], kind: str, how: str
) -> None:
    ranks = start(2, how)
    ranks.run(jobs.make, kind)
    ranks.run(jobs.step)
    for _ in range(2):
        said = fail_one(ranks, "backward")
        assert "Broken" in said[1]
        ranks.form()
        for _step in range(3):  # buckets are made again after the first
            assert max(ranks.run(jobs.gradient_error)) < 1e-6
        assert len(set(ranks.run(jobs.checksum))) == 1


def _trains_on_after_faults(ranks: Ranks, kind: str, identities: Callable[..., object]) -> None:
    ranks.run(jobs.make, kind)
    ranks.run(jobs.step)
    same = ranks.run(identities)
    for fail in ("before", "forward", "backward", "after"):
        said = fail_one(ranks, fail)
        assert "Broken" in said[1]
        assert all(CLOSED.search(said[number]) for number in others(ranks, 1)), said
        assert not any(ranks.form())
        sums = ranks.run(jobs.checksum)
        assert (sums[0] == sums[1]) == (fail != "after" or kind == "fsdp")
        if fail == "after" and kind != "fsdp":
            ranks.run(jobs.sync, 0)
            assert len(set(ranks.run(jobs.checksum))) == 1
            states = ranks.run(jobs.optimizer_state)
            assert all(state == states[0] for state in states)
        assert max(ranks.run(jobs.gradient_error)) < 1e-6
        assert len(set(ranks.run(jobs.checksum))) == 1
    assert ranks.run(identities) == same


@pytest.mark.parametrize("how", ["in place", "anew"])
def test_sparse_tensors_are_added_up_without_the_all_reduce_that_may_crash(
    start: Callable[..., Ranks], how: str
) -> None:
    ranks = start(3, how)
    ones, twos = [1.0 + 2.0] * 3, [2.0] * 3
    rows = [*ones, *twos, *[0.0] * 6]
    assert ranks.run(jobs.sparse_sums) == [[rows, rows, ones]] * 3
    name = "gloo:all_gather" if sparse_sums.possible() else "gloo:sparse_all_reduce"
    assert ranks.run(jobs.names_of_sparse_sum) == [{name}] * 3


@pytest.mark.parametrize("how", HOW)
def test_ranks_blocked_in_new_group_are_freed_and_later_groups_have_the_same_name(
    start: Callable[..., Ranks],
    how: str,
) -> None:
    ranks = start(3, how)
    ranks.start(jobs.new_group, ranks=[0, 2])
    for number in (0, 2):
        assert ranks.wait_until_waiting(number).op == "new_group"
    first = ranks.ranks[0].ask("waiting")
    until(lambda: ranks.ranks[0].ask("waiting").since > first.since, told=lambda: "no longer?")
    with within(FREE):
        ranks.abort()
        for number in (0, 2):
            with pytest.raises(Freed, match="new_group"):
                ranks.ranks[number].result(FREE)
    ranks.form()
    names = ranks.run(jobs.new_group)
    assert len(set(names)) == 1
    ranks.form()
    assert [len(rank.ask("groups")) for rank in ranks.ranks] == [2, 2, 2]
    assert ranks.run(jobs.all_reduce) == [6.0, 6.0, 6.0]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("how", HOW)
def test_ranks_in_mismatched_collectives_are_freed(
    start: Callable[..., Ranks], how: str, size: int
) -> None:
    ranks = start(size, how)
    ranks.start(jobs.mismatched)
    for number in range(size):
        ranks.wait_until_waiting(number)
    ranks.abort()
    assert all("RuntimeError" in said for said in ranks.outcomes())
    ranks.form()
    assert len(set(ranks.run(jobs.all_reduce))) == 1


@pytest.mark.parametrize("kind", ["ddp", "subgroup", "static graph", "power sgd"])
@pytest.mark.parametrize("how", HOW)
def test_killed_ranks_are_replaced_and_taken_into_kept_models(
    start: Callable[..., Ranks], how: str, kind: str
) -> None:
    ranks = start(3, how)
    ranks.run(jobs.make, kind)
    for dead in (0, 1):  # the second time a rank that was itself taken in is among the others
        ranks.run(jobs.step)
        _replace_killed(ranks, dead, kind)


def _replace_killed(ranks: Ranks, dead: int, kind: str) -> None:
    alive = others(ranks, dead)
    ranks.start(jobs.step, ranks=alive)
    ranks.start(jobs.die, ranks=[dead])
    ranks.ranks[dead].process.join(allowed(LIMIT))
    ranks.abort(alive)
    for number in alive:
        with pytest.raises(Freed, match=CLOSED):
            ranks.ranks[number].result(FREE)
    ranks.replace(dead)
    ranks.form()
    before = ranks.run(jobs.checksum, ranks=alive)[0]
    ranks.run(jobs.take, ranks.run(jobs.give, ranks=[alive[0]])[0], ranks=[dead])
    if kind == "power sgd":
        assert ranks.run(jobs.holds_its_group) == [True] * 3
    assert ranks.run(jobs.checksum) == [before] * 3
    assert max(ranks.run(jobs.gradient_error)) < 1e-6
    assert len(set(ranks.run(jobs.checksum))) == 1
    assert len(set(ranks.run(jobs.new_group))) == 1


@pytest.mark.parametrize("how", HOW)
def test_the_death_of_the_store_frees_who_waits_in_it(
    start: Callable[..., Ranks], how: str
) -> None:
    ranks = start(3, how)
    ranks.start(jobs.new_group, ranks=[1, 2])
    ranks.wait_until_waiting(1, "new_group")
    ranks.replace(0)
    for number in (1, 2):
        with pytest.raises(Freed):
            ranks.ranks[number].result(FREE)
    ranks.form()
    assert ranks.run(jobs.all_reduce) == [6.0] * 3


@pytest.mark.parametrize("how", HOW)
def test_a_rank_freed_while_it_forms_forms_next_time(start: Callable[..., Ranks], how: str) -> None:
    ranks = start(2, how)
    ranks.run(jobs.make, "ddp")
    ranks.run(jobs.step)
    ranks.form_only([0])
    until(lambda: "exchange" in ranks.ranks[0].ask("functions"))  # it waits for the other's roster
    ranks.abort()
    with pytest.raises(Freed):
        ranks.ranks[0].result(FREE)
    assert not ranks.ranks[0].ask("formed")
    ranks.form()
    assert max(ranks.run(jobs.gradient_error)) < 1e-6


def test_groups_may_be_looked_at_while_they_are_renewed(start: Callable[..., Ranks]) -> None:
    """They are freed with Python's lock let go, and torch's own books of them have no lock."""
    ranks = start(2)
    ranks.run(jobs.look_on)
    for _ in range(15):
        ranks.form()
    for looks, wrong in ranks.run(jobs.look_away):
        assert not wrong
        assert looks > 0
    assert ranks.run(jobs.all_reduce) == [3.0] * 2


def test_a_hundred_faults_leave_descriptors_threads_and_memory_as_they_were(
    start: Callable[..., Ranks],
) -> None:
    ranks = start(2)
    ranks.run(jobs.make, "subgroup")
    for _ in range(3):
        fail_one(ranks, "backward")
        ranks.form()
    before, used = ranks.run(jobs.resources), ranks.run(jobs.memory)
    for fault in range(100):
        fail_one(ranks, ("before", "forward", "backward")[fault % 3], failing=fault % 2)
        ranks.form()
    until(lambda: ranks.run(jobs.resources) == before, told=lambda: ranks.run(jobs.resources))
    grown = [after - early for after, early in zip(ranks.run(jobs.memory), used, strict=True)]
    assert max(grown) < 20e6
    assert max(ranks.run(jobs.gradient_error)) < 1e-6


def test_without_a_way_to_empty_groups_the_new_backend_stands_beside_the_old(
    start: Callable[..., Ranks],
) -> None:
    ranks = start(2)
    ranks.run(jobs.keep_old_backends)
    ranks.run(jobs.make, "subgroup")
    for _ in range(3):
        fail_one(ranks, "backward")
        ranks.form()
        assert max(ranks.run(jobs.gradient_error)) < 1e-6


@pytest.mark.parametrize("how", HOW)
def test_nothing_listens_beyond_loopback(start: Callable[..., Ranks], how: str) -> None:
    ranks = start(2, how)
    ranks.run(jobs.make, "subgroup")
    ranks.run(jobs.step)
    fail_one(ranks, "backward")
    ranks.form()
    listening = [
        connection.laddr.ip
        for rank in ranks.ranks
        for connection in psutil.Process(rank.process.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert set(listening) == {"127.0.0.1"}
    if how == "in place":
        assert len(listening) == 3  # gloo in each rank, one store


def test_the_users_init_process_group_is_given_the_formed_group_or_its_own(
    start: Callable[..., Ranks],
) -> None:
    ranks = start(2)
    assert ranks.run(jobs.user_inits) == [["0 of 1", "False"], ["1 of 1", "False"]]
    assert [rank.ask("formed") for rank in ranks.ranks] == [False, False]
    ranks.form()
    assert ranks.run(jobs.init_alone) == [("0: 1", False), ("1: 1", False)]
    ranks.form()
    assert [rank.ask("formed") for rank in ranks.ranks] == [True, True]
    assert ranks.run(jobs.all_reduce) == [3.0, 3.0]


@pytest.mark.parametrize("kind", ["world", "group"])
def test_a_group_may_be_destroyed_as_soon_as_it_is_made(
    start: Callable[..., Ranks], kind: str
) -> None:
    assert start(2).run(jobs.make_and_destroy, kind) == [jobs.MADE] * 2


@pytest.mark.parametrize("how", ["anew", "anew after all"])
def test_what_cannot_be_made_anew_is_named(start: Callable[..., Ranks], how: str) -> None:
    ranks = start(2, how)
    ranks.run(jobs.make_for_losing)
    fail_one(ranks, "before")
    for lost in ranks.form():
        assert {name: why.split(",")[0] for name, why in lost.items()} == {
            "model": "an FSDP module",
            "optimizer": "the optimizer of a module that is lost",
            "mesh": "a device mesh of process groups that no longer exist",
            "delayed": "UsageError: DDP cannot be constructed again with "
            "delay_all_reduce_named_params",
            "meshed": "UsageError: the process groups of its device_mesh no longer exist",
        }
    assert ranks.run(jobs.use_what_was_kept) == [[2.0, 2.0, 4.0, 1.0]] * 2
    if how == "anew":
        with pytest.raises(Freed, match="cannot be constructed again with delay_all_reduce_named"):
            ranks.run(jobs.give_one, "delayed", ranks=[0])


@pytest.mark.parametrize(("how", "why"), [("in place", INSIDE), ("anew", MADE_ANEW)])
def test_a_model_whose_group_a_cell_has_destroyed_is_named(
    start: Callable[..., Ranks], how: str, why: dict[str, str]
) -> None:
    ranks = start(2, how)
    ranks.run(jobs.make, "subgroup")
    ranks.run(jobs.step)
    ranks.run(jobs.destroy, "group", ranks=[1])
    ranks.abort()
    assert ranks.form() == [why, why]
    if how == "in place":
        with pytest.raises(Freed, match="its process group was destroyed"):
            ranks.run(jobs.give_one, "model", ranks=[0])
    ranks.run(jobs.make, "subgroup")
    assert max(ranks.run(jobs.gradient_error)) < 1e-6
    assert len(set(ranks.run(jobs.destroy_that_of_others))) == 2
    assert ranks.run(jobs.all_reduce) == [3.0, 3.0]


def test_fsdp2_modules_whose_world_a_cell_has_destroyed_are_named(
    start: Callable[..., Ranks],
) -> None:
    ranks = start(2)
    ranks.run(jobs.make, "fsdp")
    ranks.abort()
    assert ranks.form() == [{}, {}], "before its first step, too"
    assert max(ranks.run(jobs.gradient_error)) < 1e-6
    ranks.run(jobs.destroy)
    lost = {"model": DESTROYED, "optimizer": ITS_OPTIMIZER}
    assert ranks.form() == [lost, lost]
    ranks.run(jobs.make, "fsdp")
    assert max(ranks.run(jobs.gradient_error)) < 1e-6
    for (model, _), (optimizer, _) in ranks.run(jobs.refused_to_copy, ["model", "optimizer"]):
        assert model == optimizer
        assert model.startswith("an FSDP model's parameters are divided among the ranks")


def test_where_torch_does_not_let_fsdp2_be_renewed_its_modules_are_named(
    start: Callable[..., Ranks],
) -> None:
    ranks = start(2)
    ranks.run(jobs.make, "fsdp")
    fail_one(ranks, "before")
    port = ranks.ranks[0].ask("open_store")
    lost = ranks.run(jobs.form_without_fsdp, port, ranks.generation + 1, "moved")
    why = "an FSDP2 module, which cannot be renewed with this torch: moved"
    assert lost == [{"model": why}] * 2
    assert ranks.run(jobs.all_reduce) == [3.0, 3.0]


def test_a_model_that_torch_has_unpickled_trains_on_in_groups_made_anew(
    start: Callable[..., Ranks],
) -> None:
    ranks = start(2, "anew")
    ranks.run(jobs.make, "ddp")
    ranks.run(jobs.through_pickle)
    ranks.run(jobs.step)
    assert ranks.run(jobs.hook_in_use) == ["BuiltinCommHookType.ALLREDUCE"] * 2
    fail_one(ranks, "backward")
    assert ranks.form() == [{}, {}]
    assert max(ranks.run(jobs.gradient_error)) < 1e-6
    assert ranks.run(jobs.hook_in_use) == ["BuiltinCommHookType.ALLREDUCE"] * 2


def test_a_model_of_others_is_not_given(start: Callable[..., Ranks]) -> None:
    ranks = start(2, "anew")
    ranks.run(jobs.make_of_rank_zero)
    (given,) = ranks.run(jobs.give_one, "alone", ranks=[0])
    with pytest.raises(Freed, match="process group that does not contain the new rank"):
        ranks.run(jobs.take_one, given, ranks=[1])


def test_what_is_hard_to_send_is_made_equal(start: Callable[..., Ranks]) -> None:
    ranks = start(2)
    ranks.run(jobs.make_for_copying)
    first, second = ranks.run(jobs.copy_all, 1)
    assert first == second
    sparse, momentum, turned, contiguous, every = first[1:]
    assert (sparse, contiguous, every) == (True, False, 2)
    assert momentum == [[float(row in (1, 3))] * 2 for row in range(6)], "of rank 1"
    assert turned == [[1.0, 1.0]] * 3


def test_what_cannot_be_made_equal_is_told_with_its_reason(start: Callable[..., Ranks]) -> None:
    ranks = start(2)
    ranks.run(jobs.make, "ddp")
    ranks.run(jobs.make_not_to_copy)
    names = ["zero", "rows", "words", "net"]
    (first, *_, net), (zero, rows, words, other) = ranks.run(jobs.refused_to_copy, names)
    assert first == zero
    assert zero[0].startswith("a ZeRO optimizer's state is divided among the ranks")
    assert rows == ("its `0` is a sparse tensor, which cannot be sent", [])
    assert words[0].endswith("can be made equal on all ranks, not a list")
    assert (net, other) == (("", [0]), ("", []))
    why = "FSDP1 does not show which part of its parameters a rank holds"
    assert ranks.run(jobs.first_kind_of_fsdp) == [why, why]
    for told in ranks.run(jobs.refused_to_copy, ["flat", "of_flat"]):
        assert all(why.startswith("an FSDP model's parameters are divided") for why, _ in told)


def test_a_torch_that_logs_otherwise_trains_and_tells_no_waits(
    start: Callable[..., Ranks],
) -> None:
    ranks = start(1)
    ranks.run(jobs.make, "ddp")
    assert ranks.run(jobs.log_otherwise) == [[float("inf")]]


def test_gloo_that_is_made_by_hand_is_torchs_own(start: Callable[..., Ranks]) -> None:
    assert start(1).run(jobs.own_gloo) == [(True, 1800.0, 3)]


def test_models_that_are_noted_are_let_go(start: Callable[..., Ranks]) -> None:
    assert start(2).run(jobs.models_that_live) == [0, 0]


def test_destroying_a_group_that_a_model_holds_never_hangs(
    start: Callable[..., Ranks],
) -> None:
    ranks = start(2)
    ranks.run(jobs.init_and_destroy)
    ranks.form()
    assert ranks.run(jobs.all_reduce) == [3.0, 3.0]


def test_accelerate_works_twice_and_after_it_the_group_is_formed_anew(
    start: Callable[..., Ranks],
) -> None:
    ranks = start(2)
    assert ranks.run(jobs.accelerate_twice) == [2.0, 2.0]
    ranks.form()
    assert ranks.run(jobs.all_reduce) == [3.0, 3.0]


def test_renewed_groups_can_be_meshed_and_split(start: Callable[..., Ranks]) -> None:
    ranks = start(2)
    assert ranks.run(jobs.device_mesh) == [2.0, 2.0]
    for why, torchs_own, of_method in ranks.run(jobs.split_as_torch_does):
        assert why == torchs_own
        assert "renewed" not in of_method
    ranks.abort()
    ranks.form()
    assert ranks.run(jobs.device_mesh) == [2.0, 2.0]
    for total, refused, size in ranks.run(jobs.split):
        assert (total, size) == (2.0, 1)
        assert "new_group" in refused


def test_waiting_names_the_operation_its_group_and_since_when(
    start: Callable[..., Ranks], tmp_path: Path
) -> None:
    ranks = start(2)
    assert ranks.ranks[0].ask("waiting") is None
    ranks.run(jobs.all_reduce)
    started = time.time()
    ranks.start(jobs.all_reduce, ranks=[0])
    first = ranks.wait_until_waiting(0)
    seen = time.time()
    time.sleep(0.2)
    asked = time.time()
    found = ranks.ranks[0].ask("waiting")
    assert (found.op, found.group, found.seq) == ("all_reduce", "0", 2)
    assert asked - seen - SLACK < found.since - first.since < time.time() - started + SLACK
    assert found.since < time.time() - started + SLACK
    ranks.run(jobs.all_reduce, ranks=[1])
    ranks.ranks[0].result()
    ranks.start(jobs.functional, ranks=[0])
    assert ranks.wait_until_waiting(0).op == "all_reduce"
    assert ranks.run(jobs.functional, ranks=[1]) == [2.0]
    ranks.ranks[0].result()
    ranks.run(jobs.make, "ddp")
    ranks.start(jobs.step, ranks=[0])
    assert ranks.wait_until_waiting(0, "backward").op == "all_reduce in backward"
    ranks.run(jobs.step, ranks=[1])
    ranks.ranks[0].result()
    ranks.start(jobs.compute, tmp_path)
    for number in (0, 1):
        until((tmp_path / f"in{number}").exists)
    assert [rank.ask("waiting") for rank in ranks.ranks] == [None, None]
    (tmp_path / "go").touch()
    for rank in ranks.ranks:
        rank.result()


def test_groups_are_kept_if_every_old_member_has_them() -> None:
    world = GroupInfo("0", [0, 1, 2], "gloo", 60.0, world=True)
    pair, half = GroupInfo("10", [0, 1], "gloo", 60.0), GroupInfo("2", [0, 2], "gloo", 60.0)
    new = Roster(formed=False, group_count=0, groups=[])

    def old(*groups: GroupInfo) -> Roster:
        return Roster(formed=True, group_count=3, groups=list(groups))

    assert kept([new, new, new]) == []
    assert kept([old(world, pair, half), old(world, pair), old(world)]) == [world, pair]
    assert kept([old(world, pair, half), new, old(world, half)]) == [world, half, pair]
    other = GroupInfo("0", [0, 1, 2], "cpu:gloo,cuda:nccl", 60.0, world=True)
    assert kept([old(world), old(other), old(world)]) == []


def test_without_torch_the_message_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import nbdist.backends.ddp.rank_group"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UsageError: --backend ddp needs PyTorch" in done.stderr
    assert 'pip install "nbdist[torch]"' in done.stderr
