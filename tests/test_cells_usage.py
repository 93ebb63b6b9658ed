"""Flags, help, Tab, mistakes, status and the queue: what a person types besides code."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from nbdist.magics.dist import COMMANDS
from tests.helpers.notebook import complete, on_ranks, plain, printed_by
from tests.helpers.waiting import allowed, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel


@pytest.fixture(autouse=True)
def _keeps_the_ranks(notebook: Kernel) -> Iterator[None]:
    """Fail the test whose mistake costs the ranks or what is on them."""
    pids = on_ranks(notebook, "import os\nos.getpid()").text
    yield
    assert on_ranks(notebook, "os.getpid()").text == pids


MISTAKES = {
    "%%distributed -np 0": "-np 0: at least one rank is needed",
    "%%distributed -np -3": "-np -3: at least one rank is needed",
    "%%distributed -np 10000": "-np 10000: that many ranks need",
    "%%distributed -np many": "argument -np: invalid int value: 'many'",
    "%%distributed --backend smoke": "argument --backend: invalid choice: 'smoke'",
    "%%distributed --launcher ssh": "argument --launcher: invalid choice: 'ssh'",
    "%%distributed --bakend ddp": "unknown flag --bakend; did you mean --backend?",
    "%%distributed --rank 0": "unknown flag --rank; did you mean --ranks?",
    "%%distributed --xyzzy": "unknown flag --xyzzy (-h lists all)",
    "%%distributed 4": "unexpected argument '4' (-h explains)",
    "%%distributed --ranks 7": "there is no rank 7; this cluster has ranks 0-1",
    "%%distributed --ranks 0-5": "there are no ranks 2-5; this cluster has ranks 0-1",
    "%%distributed --ranks one": "'one' is not a list of ranks such as 0,2-3",
    "%%distributed --ranks 1-0": "'1-0' is not a list of ranks such as 0,2-3",
    "%%distributed --timeout soon": "argument --timeout: 'soon' is not a number of seconds",
    "%%distributed --env NAME": "'NAME' is not KEY=VALUE",
    "%%distributed --env 'A=open": "No closing quotation",
    "%%distributed --gpus a": "'a' is not a list of GPUs such as 0,2-3",
    "%distributed": "%%distributed stands on the first line of a cell",
    "%dist stauts": "%dist knows no 'stauts'; did you mean status?",
    "%dist xyzzy": "%dist knows no 'xyzzy'. It knows status, start, ",
    "%dist status now": "unexpected argument 'now' (-h explains)",
    "%dist restart --lik 0": "unknown flag --lik; did you mean --like?",
    "%dist restart 1 --like": "argument --like: expected one argument (-h explains)",
    "%dist status -- 4": "unexpected argument '--' (-h explains)",
    "%dist restart 9": "there is no rank 9; this cluster has ranks 0-1",
    "%dist restart 1 --like 1": "--like 1 must be one of the ranks that stay",
    "%dist logs": "the following arguments are required: RANK",
    "%dist logs 5": "ran on ranks 0-1, not on 5",
    "%dist logs 0 --job nosuch": "there is no job nosuch; %dist jobs lists them",
    "%dist sync no_such_name": "no_such_name",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_plain_line(notebook: Kernel, line: str) -> None:
    body = "\nwent_wrong = True" if line.startswith("%%") else ""
    cell = notebook.run(line + body, check=False)
    said = plain(cell.text)
    assert not cell.ok
    assert MISTAKES[line] in said
    assert len(said.splitlines()) == 1, said
    assert on_ranks(notebook, "'went_wrong' in globals()").text == "False\n"


SYNTAX = {
    "x = 1\nx = = 2": ("line 3", "x = = 2"),
    "for i in range(3):\nprint(i)": ("line 3", "print(i)"),
    "print('open": ("line 2", "print('open"),
    "return 5": ("line 2", "return 5"),
    "%%time\nx = = 2": ("line 3", "x = = 2"),
}


@pytest.mark.parametrize("code", SYNTAX)
def test_a_syntax_error_is_told_before_anything_is_sent(notebook: Kernel, code: str) -> None:
    jobs = "import nbdist\nlen(nbdist.jobs())"
    before = notebook.run(jobs).text
    cell = notebook.run(f"%%distributed\n{code}", check=False)
    said = plain(cell.text)
    line, source = SYNTAX[code]
    assert line in said.replace("cell:", "line ")
    assert source in said
    assert "Nothing was sent to the ranks." in said
    assert notebook.run(jobs).text == before


@pytest.mark.parametrize("body", ["# only a comment", "\n\n   \n# and blanks\n", "pass", "''' '''"])
def test_a_cell_without_anything_to_do_is_fine(notebook: Kernel, body: str) -> None:
    assert notebook.run(f"%%distributed\n{body}").ok


def test_a_cell_without_a_body_says_so(notebook: Kernel) -> None:
    cell = notebook.run("%%distributed", check=False)
    assert "the cell body is empty" in cell.stderr


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(notebook: Kernel, command: str) -> None:
    said = notebook.run(f"%dist {command} -h").stdout
    assert said.startswith(f"%dist {command}")
    assert len(said.strip().splitlines()) >= 3
    listed = notebook.run("%dist -h").stdout
    assert re.search(rf"^    {command}\b", listed, flags=re.MULTILINE)
    manual = "print(get_ipython().find_line_magic('dist').__doc__)"  # what `%dist?` shows
    assert listed.strip() in notebook.run(manual).stdout.replace("`", "")
    assert notebook.run(f"%dist {command} --help").stdout == said


def test_the_cell_magic_explains_itself(notebook: Kernel) -> None:
    said = notebook.run("%distributed -h").stdout
    assert said.startswith("%%distributed [-np N]")
    for flag in ["-np", "--backend", "--launcher", "--ranks", "--timeout", "--env", "--gpus"]:
        assert re.search(rf"^  {flag} ", said, flags=re.MULTILINE), flag
    assert notebook.run("%%distributed --help\npass").stdout == said


TAB = {
    "%%distributed --b": ["--backend", "--bring"],
    "%%distributed --backend ": ["ddp", "none", "horovod", "xla"],
    "%%distributed --backend d": ["ddp"],
    "%%distributed -np 2 --ran": ["--ranks"],
    "%dist st": ["stacks", "start", "status", "stop"],
    "%dist restart 1 --l": ["--like"],
    "%dist jobs --": ["--clean"],
    "%dist auto o": ["on", "off"],
    "%dist start --launcher torch": ["torchrun"],
    "%dist start --backend n": ["none"],
}


@pytest.mark.parametrize("code", TAB)
def test_tab_completes(notebook: Kernel, code: str) -> None:
    assert complete(notebook, code) == TAB[code]


def test_tab_in_the_code_below_is_pythons(notebook: Kernel) -> None:
    notebook.run("import textwrap")
    offered = complete(notebook, "%%distributed --backend ddp\ntextwrap.ded")
    assert [text.rpartition(".")[2] for text in offered] == ["dedent"]


def test_chosen_ranks_run_the_cell_and_the_first_of_them_is_shown(notebook: Kernel) -> None:
    on_ranks(notebook, "ran = 0")
    assert on_ranks(notebook, "ran += 1; print('on', rank)", "--ranks 1").stdout == "on 1\n"
    assert on_ranks(notebook, "ran += 1; print('on', rank)", "--ranks 0-1").stdout == "on 0\n"
    assert on_ranks(notebook, "ran += 1; print('on', rank)", "--ranks 1,0,1").stdout == "on 0\n"
    assert on_ranks(notebook, "print(ran)").stdout == "2\n"
    assert printed_by(notebook, 1) == "3\n"


def test_a_cell_that_takes_too_long_is_stopped(notebook: Kernel) -> None:
    limit = round(allowed(2))  # by then it has come to the line that sleeps
    body = "kept_late = 1\nimport time\ntime.sleep(600)"
    cell = on_ranks(notebook, body, f"--timeout {limit}", check=False)
    assert cell.seconds is not None
    assert cell.seconds >= limit
    said = plain(cell.text)
    assert f"--timeout {limit} s" in said
    assert "at cell line 4" in said
    assert "Traceback" not in said
    assert notebook.run("import nbdist\nnbdist.jobs()[-1].state").text == "'timed out'\n"
    assert on_ranks(notebook, "kept_late").text == "1\n"
    assert on_ranks(notebook, "'in time'", "--timeout 600").text == "'in time'\n"


def test_status_tells_where_a_background_job_is(notebook: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    idle = notebook.run("%dist status").stdout
    assert "2 ranks, ddp" in idle
    header, *rows, after_a_fault = idle.splitlines()[1:]
    assert "after a fault groups are renewed in place, and models train on." in after_a_fault
    assert " ".join(header.split()) == "rank host pid device CPU memory GPU GPU memory state"
    assert [row.split()[0] for row in rows] == ["0", "1"]
    assert all(re.search(r"\d+ MB +(n/a|\d+ %) +(n/a|[\d,]+ MB) +idle$", row) for row in rows), idle
    notebook.run(
        "import nbdist, textwrap\n"
        "background = nbdist.cluster().submit(textwrap.dedent('''\n"
        "    import os, time, torch, torch.distributed as dist\n"
        "    print('begins', flush=True)\n"
        "    if rank == 1:\n"
        f"        while not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "    print('ends')\n"
        "''').strip())"
    )
    first = r"running line 5 of the cell, in all_reduce for \d+ s\n"
    second = r"running line 4 of the cell\n"
    status = ""

    def both_are_told() -> bool:
        nonlocal status
        status = notebook.run("%dist status").stdout
        return bool(re.search(f"^0 .*{first}1 .*{second}", status, re.MULTILINE))

    until(both_are_told, told=lambda: status)
    assert notebook.run("print(background.state, repr(background.output(1)))").stdout == (
        "running 'begins\\n'\n"
    )
    go.touch()
    after = on_ranks(notebook, "print('queued behind it')")
    assert after.stdout == "queued behind it\n"
    assert notebook.run("print(background.ok, repr(background.output(0)))").stdout == (
        "True 'begins\\nends\\n'\n"
    )


def test_jobs_queue_in_one_order_on_every_rank(notebook: Kernel) -> None:
    on_ranks(notebook, "order = []")
    notebook.run(
        "import nbdist\n"
        "ranks = [None, [0], [1], None, [1], [0, 1], [0], None]\n"
        "jobs = [\n"
        "    nbdist.cluster().submit(f'order.append({number})', ranks=chosen)\n"
        "    for number, chosen in enumerate(ranks * 3)\n"
        "]\n"
        "for job in jobs:\n"
        "    job.wait(60)\n"
    )
    on_ranks(notebook, "print(order)")
    expected = [[n for n in range(24) if n % 8 not in skipped] for skipped in ([2, 4], [1, 6])]
    assert printed_by(notebook, 0) == f"{expected[0]}\n"
    assert printed_by(notebook, 1) == f"{expected[1]}\n"


def test_jobs_on_different_ranks_do_not_wait_for_each_other(notebook: Kernel) -> None:
    notebook.run(
        "import nbdist\n"
        "slow = nbdist.cluster().submit('import time; time.sleep(600)', ranks=[0])\n"
        "quick = nbdist.cluster().submit('print(1)', ranks=[1]).wait(60)\n"
        "print(quick.ok, slow.done)"
    )
    assert notebook.cell.stdout == "True False\n"
    notebook.run("slow.cancel()\nassert slow.until_end(60)")


def until_both_have_printed(notebook: Kernel, job: str) -> None:
    """Wait until a job runs on both ranks and has printed something there."""
    until(lambda: notebook.run(f"print(all(map({job}.output, (0, 1))))").stdout == "True\n")


def test_a_background_job_and_those_behind_it_are_interrupted(notebook: Kernel) -> None:
    notebook.run(
        "import nbdist\n"
        "slow = nbdist.cluster().submit('import time; print(1); time.sleep(600)')\n"
        "behind = nbdist.cluster().submit('never = True')\n"
    )
    until_both_have_printed(notebook, "slow")
    notebook.run("%dist interrupt")
    ended = (
        "for job in (slow, behind):\n"
        "    try: job.wait(60)\n"
        "    except nbdist.errors.Interrupted as err: print(job.state)\n"
    )
    assert notebook.run(ended).stdout == "interrupted\ninterrupted\n"
    assert on_ranks(notebook, "'never' in globals()").text == "False\n"


def test_jobs_are_listed(notebook: Kernel) -> None:
    on_ranks(notebook, "first_line_of_it = 1\nsecond = 2", "--ranks 1")
    on_ranks(notebook, "1 / 0", check=False)
    *_, done, failed = notebook.run("%dist jobs").stdout.splitlines()
    took = r"\d\d:\d\d:\d\d +[\d.]+ m?s"
    place = r"\d+ +In \[\d+\]"
    assert re.fullmatch(rf"{place} +1 +done +{took} +first_line_of_it = 1", done)
    assert re.fullmatch(rf"{place} +0-1 +failed +{took} +1 / 0 +Ranks 0-1 failed: .*", failed)


def test_stacks_show_where_every_rank_is(notebook: Kernel) -> None:
    notebook.run(
        "import nbdist\n"
        "slow = nbdist.cluster().submit("
        "'import time\\ndef nap(): print(1); time.sleep(600)\\nnap()')"
    )
    until_both_have_printed(notebook, "slow")
    said = ""

    def both_answer() -> bool:  # nbdist itself waits a second for each
        nonlocal said
        said = notebook.run("%dist stacks").stdout
        return said.count("main thread:") == 2

    until(both_answer, told=lambda: said)
    assert said.count("in nap") == 2
    notebook.run("slow.cancel()\nassert slow.until_end(60)")


def test_the_api_refuses_what_the_magics_refuse(notebook: Kernel) -> None:
    refusals = {
        "nbdist.cluster().submit('1', ranks=[])": "no rank is named",
        "nbdist.cluster().submit('1', ranks=[5])": "there is no rank 5",
        "nbdist.Cluster(0)": "at least one rank is needed",
        "nbdist.Cluster(2, backend='smoke')": "unknown backend 'smoke'",
        "nbdist.Cluster(2, launcher='ssh')": "unknown launcher 'ssh'",
    }
    notebook.run("import nbdist")
    for call, message in refusals.items():
        cell = notebook.run(call, check=False)
        assert cell.error.startswith("UsageError: "), cell.seen()
        assert message in cell.error


def test_a_cluster_of_the_api_is_another_one(notebook: Kernel) -> None:
    notebook.run(
        "import nbdist\n"
        "other = nbdist.Cluster(1, backend='none', env={'OF_ITS_OWN': 'yes'})\n"
        "job = other.run('import os; print(os.environ[\"OF_ITS_OWN\"], world_size)')\n"
        "print(job.ok, job.output())\n"
        "failed = other.run('1 / 0')\n"
        "print(failed.ok, failed.state, failed.errors[0].name)\n"
        "other.stop()\n"
        "print(other)"
    )
    assert notebook.cell.stdout.splitlines() == [
        "True yes 1",
        "",
        "False failed ZeroDivisionError",
        "<nbdist.Cluster 1 rank, none, stopped>",
    ]
    late = notebook.run("other.run('1')", check=False)
    assert "this cluster was stopped" in late.error


def test_env_and_gpus_reach_the_ranks(
    start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    kernel = start_kernel(env=without_torch)
    kernel.run("%load_ext nbdist")
    show = "import os\nprint(os.environ.get('A'), os.environ.get('B'))"
    kernel.run(  # a machine that cannot tell its GPUs takes them at their word
        "import nbdist.machine.gpus\nnbdist.machine.gpus._present = lambda: None"
    )
    flags = "-np 1 --backend none --env A=1 --env B='two words' --gpus 0,2-3"
    assert on_ranks(kernel, show, flags).stdout == "1 two words\n"
    assert on_ranks(kernel, "print(os.environ['CUDA_VISIBLE_DEVICES'])").stdout == "0,2,3\n"
    assert on_ranks(kernel, show).stdout == "1 two words\n", "flags left out keep their value"
    changed = on_ranks(kernel, show, "--env A=3")
    assert changed.stdout == "3 None\n"
    assert "Lost with the old ranks: os" in changed.text
