"""Names that are moved by hand: pushed, pulled, returned, and what cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.helpers.notebook import on_ranks

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel


def test_what_is_pushed_by_keyword_is_the_ranks_own(notebook: Kernel) -> None:
    notebook.run(
        "import nbdist\nfactor = 2\ngiven = 'of the notebook'\n"
        "nbdist.cluster().push(keyword=5, scaled=lambda x: factor * x, given='pushed')"
    )
    assert on_ranks(notebook, "print(keyword, scaled(1))").text == "5 2\n", "nothing was deleted"
    notebook.run("factor = 3")
    assert on_ranks(notebook, "print(scaled(1))").stdout == "3\n", "its later reads are followed"
    assert on_ranks(notebook, "print(given)").stdout == "of the notebook\n"
    notebook.run("del given")
    assert "`given` was deleted" in on_ranks(notebook, "print(given)").text
    notebook.run("keyword = 6")
    assert on_ranks(notebook, "print(keyword)").stdout == "6\n"
