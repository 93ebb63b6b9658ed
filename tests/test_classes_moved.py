"""Classes of the notebook on the ranks, and the ranks': what their definition has run runs once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.helpers.notebook import on_ranks, printed_by

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

REGISTRIES = """
import abc, dataclasses, enum, typing
names, described, kept = [], [], {}
class Base:
    every = {}
    def __init_subclass__(cls, **settings):
        super().__init_subclass__(**settings)
        names.append(cls)
        Base.every[cls.__name__] = cls
class Tagged(Base):
    def __init_subclass__(cls, tag, **settings):
        super().__init_subclass__(**settings)
        cls.tag = tag
class First(Base): pass
class Second(Tagged, tag="of the second"): pass
class Described:
    def __set_name__(self, owner, name):
        described.append((owner.__name__, name))
@dataclasses.dataclass
class Row(Base, typing.Generic[typing.TypeVar("T")]):
    size: int = 3
    about: typing.ClassVar = Described()
class Meta(abc.ABCMeta):
    made = []
    def __new__(cls, name, bases, space, loud=False):
        found = super().__new__(cls, name, bases, space)
        found.loud = loud
        cls.made.append(name)
        return found
    def __init__(cls, name, bases, space, loud=False):
        super().__init__(name, bases, space)
class Root(metaclass=Meta):
    @abc.abstractmethod
    def f(self): ...
class Leaf(Root, loud=True):
    __slots__ = ("x",)
    def f(self):
        return super().f()
Root.register(int)
def register(cls):
    kept[cls.__name__] = cls
    return cls
@register
class Kept: pass
class Planet(enum.Enum):
    EARTH = 6, "blue"
    MARS = 3, "red"
    def __init__(self, radius, colour):
        self.radius, self.colour = radius, colour
class Twice(int, enum.Enum):
    ONE = 1
    def __new__(cls, value):
        made = int.__new__(cls, value)
        made._value_, made.twice = value, 2 * value
        return made
def look():
    print([each.__name__ for each in names], sorted(Base.every), Meta.made, described, sorted(kept))
    print(names[0] is Tagged, names[1] is First is Base.every["First"], kept["Kept"] is Kept)
    print(Planet.MARS.colour, Planet((6, "blue")).radius, Twice.ONE.twice, Twice(1) is Twice.ONE)
    print(Second.tag, Row[int](4), Leaf.loud, Leaf().f(), isinstance(3, Root))
look()
"""


def test_registries_of_classes_are_what_they_are_in_the_notebook(notebook: Kernel) -> None:
    here = notebook.run(REGISTRIES).stdout
    assert here.splitlines()[1] == "True True True"
    assert on_ranks(notebook, "look()").stdout == here
    again = on_ranks(notebook, "look()", "--bring First,Second,Row,Root,Leaf,Kept")
    assert again.stdout == here, "not even when the classes are brought again"

    notebook.run("class Later(Base): pass")
    there = "Later\nclass There(Base): pass\nclass Grown(Root): pass\nlook()"
    told = on_ranks(notebook, there).stdout
    assert told.startswith(
        "['Tagged', 'First', 'Second', 'Row', 'Later', 'There'] ['First', 'Later', 'Row', "
        "'Second', 'Tagged', 'There'] ['Root', 'Leaf', 'Grown'] "
    )
    notebook.run("%dist restart 1 --like 0")
    on_ranks(notebook, "look()")
    assert printed_by(notebook, 1) == told, "a newcomer's, too"
    on_ranks(
        notebook, "there, tagged = There(), Second()", "--return There,Grown,there,tagged,names"
    )
    on_ranks(notebook, "pass", "--return there")
    assert notebook.run("look()\nprint(type(there) is There, type(tagged) is Second)").stdout == (
        f"{told}True True\n"
    )


def test_a_class_whose_definition_took_arguments_is_returned(notebook: Kernel) -> None:
    notebook.run(REGISTRIES)
    on_ranks(notebook, "class Own(Tagged, tag='of a rank'): pass", "--return Own,names")
    assert notebook.run("print(Own.tag, names[-1] is Own)").stdout == "of a rank True\n"


def test_classes_that_have_changed_alike_at_both_ends_are_not_told(notebook: Kernel) -> None:
    notebook.run("""
        import enum
        class Either(enum.Flag): A = 1; B = 2
        class Plug:
            found = {}
            def __init_subclass__(cls): cls.found[cls.__name__] = cls
    """)
    on_ranks(notebook, "Either.A | Either.B, Plug\nclass One(Plug): pass")
    notebook.run("Either.A | Either.B\nclass One(Plug): pass")
    cell = on_ranks(notebook, "print(Either.A, Plug.found['One'] is One)")
    assert cell.stdout == "Either.A True\n"
    assert "changed" not in cell.text
    notebook.run("class Two(Plug): pass")
    after = on_ranks(
        notebook, "print([*Plug.found], Plug.found['One'] is One, Plug is One.__base__)"
    )
    assert after.stdout == "['One', 'Two'] True True\n", "alike, so that the change is followed"
    on_ranks(notebook, "class Three(Plug): pass")
    notebook.run("class Four(Plug): pass")
    assert "cells have also changed `Plug`" in on_ranks(notebook, "print(Plug.found)").text
