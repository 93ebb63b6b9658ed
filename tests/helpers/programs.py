"""Small notebooks, drawn from a grammar of what people write in cells.

Whatever a cell observes is a whole number or plain data, so it can be compared between processes.
`tests/helpers/program_draws.py` puts cells together.

A `Writer` writes a program. It knows the kind of each name, and the names that its value uses, so a
program nearly always runs and always ends. Each rule is a function that writes a statement or two.
Hypothesis chooses among the rules. If a program fails, Hypothesis leaves out cells and takes earlier
choices until nothing more can be left out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any

from hypothesis import strategies as st

from tests.helpers.program_forms import ALSO, HELD, IN_PLACE, INFINITE, MISC, NAMES, READ, SHOW


@dataclass(frozen=True)
class Cell:
    """A cell of a generated notebook."""

    text: str
    observes: bool = False


Program = tuple[Cell, ...]


CELL, OBSERVES = "# %%", "# %% observes"


def shown(program: Iterable[Cell]) -> str:
    """Return a program as text, which a person can paste as cells, and which `program` reads."""
    return "\n".join(f"{OBSERVES if each.observes else CELL}\n{each.text}" for each in program)


def program(text: str) -> Program:
    """Return the program of a text."""
    cells = []
    for part in dedent(text).strip("\n").split(f"{CELL}")[1:]:
        head, _, body = part.partition("\n")
        cells.append(Cell(body.rstrip("\n"), observes=bool(head.strip())))
    return tuple(cells)


@dataclass(frozen=True)
class Thing:
    """What the writer knows about a name."""

    kind: str
    uses: frozenset[str] = frozenset()
    """The names that the value needs, now or when it is called."""
    changes: bool = False
    """Whether a call changes something: such a call stands only at the end."""
    parts: tuple[str, ...] = ()
    """The keys of a dict; the kinds of values in a box."""


@dataclass
class Writer:
    """Writes one program; Hypothesis draws all its choices."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    names: Mapping[str, list[str]] = field(default_factory=lambda: NAMES)
    """For each kind, the names that its values may get."""
    things: dict[str, Thing] = field(default_factory=dict)
    edits: int = 0

    # -- choices -----------------------------------------------------------------------------

    def one_of(self, options: Iterable[Any]) -> Any:
        """Draw one option; shrinking prefers earlier ones."""
        return self.draw(st.sampled_from(list(options)))

    def chance(self, of: int) -> bool:
        """Draw something that is true once in `of` times."""
        return bool(self.draw(st.integers(0, of - 1)) == of - 1)

    def reach(self, name: str) -> set[str]:
        """Return the names that `name` needs, at once or when it is called."""
        found, todo = set[str](), [name]
        while todo:
            each = todo.pop()
            if each not in found:
                found.add(each)
                todo += self.things[each].uses if each in self.things else ()
        return found

    def changes(self, name: str) -> bool:
        """Return whether a use of `name` may change something."""
        return any(each in self.things and self.things[each].changes for each in self.reach(name))

    def having(self, *kinds: str, but: str = "", pure: bool = True) -> list[str]:
        """Return the names of these kinds whose values do not need the name `but`."""
        return [
            name
            for name, thing in self.things.items()
            if (thing.kind in kinds or not kinds)
            and but not in self.reach(name)
            and not (pure and self.changes(name))
        ]

    def not_own(self) -> list[str]:
        """Return the names that no observing cell has bound."""
        return sorted(n for n, thing in self.things.items() if not thing.kind.startswith("own_"))

    def name(self, kind: str) -> str:
        """Draw a name for a value of this kind: mostly one for this kind, at times any used one."""
        if self.not_own() and self.chance(16):
            return str(self.one_of(self.not_own()))
        return str(self.one_of(self.names[kind]))

    def number(self, but: str = "", *, argument: str = "") -> str:
        """Draw an expression for a whole number; `argument` is an expression that may be used."""
        literal = str(self.draw(st.integers(0, 9)))
        names = self.having(*READ, "misc", but=but)
        way = self.one_of(["literal", "argument", "read", "read", "read", "sum"])
        if way == "argument" and argument:
            return argument
        if way == "literal" or not names:
            return literal
        read = self.read(self.one_of(names), argument or literal)
        return f"({read} + {argument or literal})" if way == "sum" else read

    def new_number(self) -> int:
        """Return a number that no value has had so far.

        If the notebook changes a value back to what it has sent, the change is not noticed.
        """
        self.edits += 1
        return 100 * self.edits

    def read(self, name: str, number: str) -> str:
        """Draw an expression that reads `name`."""
        thing = self.things[name]
        forms = [*(thing.parts if thing.kind == "misc" else READ[thing.kind])]
        if thing.kind == "dict":
            forms += [f"{{0}}[{key!r}]" for key in thing.parts]
        return str(self.one_of(forms)).format(name, number)

    # -- what is written ---------------------------------------------------------------------

    def bind(self, name: str, kind: str, text: str, **known: Any) -> str:
        """Note what a statement binds; return the statement."""
        text = dedent(text).strip("\n")
        uses = _names(text) & self.things.keys() - {name}
        self.things[name] = Thing(kind, frozenset(uses), **known)
        return text

    def touch(self, name: str, text: str) -> str:
        """Note that a statement changes in place what `name` has; return the statement."""
        old = self.things[name]
        uses = old.uses | (_names(text) & self.things.keys() - {name})
        self.things[name] = Thing(old.kind, frozenset(uses), old.changes, old.parts)
        return text

    def uses(self, name: str, other: str) -> None:
        """Note that the value of `name` needs `other`, too."""
        old = self.things[name]
        self.things[name] = Thing(old.kind, old.uses | {other}, old.changes, old.parts)

    def statement(self, only: Iterable[Rule] = ()) -> str:
        """Draw a statement of the notebook, of all rules or of some."""
        rules = [
            rule
            for rule, possible in RULES
            if (possible is None or self.having(*possible)) and (not only or rule in only)
        ]
        return str(self.one_of(rules)(self))

    def observation(self, *, last: bool) -> str:
        """Draw a cell that observes; the last one may change whatever it observes."""
        changed, line = ("", "")
        if self.chance(2):
            changed, line = self.change() if last else self.change_in_place()
        lines = [line] if line else []
        if not last and self.chance(2):
            lines.append(self.own())
        names = [n for n in self.having(pure=False) if last or not self.changes(n)]
        near = [n for n in names if n != changed and self.near(n, changed)]
        own = [n for n in self.made_there() if n in names]
        for _ in range(self.draw(st.integers(1, 4))):
            if not names:
                break
            among = self.one_of([names, near or names, own or names])
            lines.append(self.observe(self.one_of(among[::-1])))
        return "\n".join(lines) or "print(1)"

    def near(self, name: str, other: str) -> bool:
        """Return whether the values of two names may share something."""
        return bool(self.reach(name) & self.reach(other))

    def own(self) -> str:
        """Draw a statement that binds a name where it is observed, for later cells."""
        name = f"own_{len(self.things)}"
        classes, settings = self.having("class"), self.having("dict", "list", "large")
        ways = ["obj", "class"] * bool(classes) + ["holder"] * bool(settings)
        way = self.one_of(["int", "func", "lambda", *ways * 2])
        if way == "holder":
            held = self.one_of(settings)
            reads = HELD[self.things[held].kind].format("self.held")
            return self.bind(
                name,
                "own_holder",
                f"class {name}_kind:\n    def __init__(self, held):\n        self.held = held\n"
                f"    def __call__(self):\n        return {reads}\n{name} = {name}_kind({held})",
            )
        if way == "func":
            return self.bind(
                name,
                "own_func",
                f"def {name}(x):\n    return x + {self.number(name, argument='x')}",
            )
        if way == "lambda":
            return self.bind(
                name, "own_func", f"{name} = lambda x: x + {self.number(name, argument='x')}"
            )
        if way == "obj":
            return self.bind(
                name, "own_obj", f"{name} = {self.one_of(classes)}({self.number(name)})"
            )
        if way == "class":
            base = self.one_of(classes)
            return self.bind(
                name,
                "own_obj",
                f"class {name}_cls({base}):\n    def value(self, x=1):\n        return super().value() + {self.number(name)}\n{name} = {name}_cls(3)",
            )
        return self.bind(name, "own_int", f"{name} = {self.number(name)}")

    def observe(self, name: str) -> str:
        """Draw a statement that prints something of `name`."""
        thing = self.things[name]
        number = str(self.draw(st.integers(0, 9)))
        if thing.kind == "bump":
            return f"print({name}(), {name}())"
        if thing.kind == "box":
            return self._observe_box(name, thing, number)
        forms = [*READ.get(thing.kind, []), *SHOW.get(thing.kind, [])]
        if thing.kind == "misc":
            forms += thing.parts
        if thing.kind not in ("list", "dict") and self.chance(3):
            # Which int object it is has no meaning.
            alike = [] if thing.kind in ("int", "own_int") else self.having(thing.kind)
            others = alike + self.having("class", "configs", "points", "enum")
            forms = ["{0} is " + o for o in others] + [
                "isinstance({0}, " + o + ")" for o in self.having("class", "configs", "points")
            ]
            forms += ["type({0}) is " + o for o in self.having("class", "configs", "points")]
            if list(thing.parts) == INFINITE:  # which float object it is has no meaning
                forms = []
            forms = forms or ["{0} is None"]
        if thing.kind == "dict":
            forms += [f"{{0}}.get({key!r})" for key in thing.parts]
        if not forms:
            return f"print({name} is not None)"
        value = str(self.one_of(forms)).format(name, number)
        way = self.one_of(
            [
                "print",
                "print",
                "function",
                "comprehension",
                "format",
                "method",
                "await",
                "shadow",
                "try",
                "loop",
            ]
        )
        return {
            "print": f"print({value})",
            "function": f"def check():\n    return {value}\nprint(check())",
            "comprehension": f"print([{value} for _ in range(2)])",
            "format": f'print(f"{{{value}}}")'
            if "{" not in value and '"' not in value
            else f"print({value})",
            "await": f"import asyncio\nawait asyncio.sleep(0)\nprint({value})",
            "shadow": f"def check({name}):\n    return {name}\nprint(check(3), {value})",
            "try": f"try:\n    print({value})\nfinally:\n    print('end')",
            "loop": f"for step_ in range(2):\n    with open('/dev/null') as file_:\n        print({value}, step_)",
            "method": f"class Check:\n    def it(self):\n        return {value}\nprint(Check().it())",
        }[way]

    def _observe_box(self, name: str, thing: Thing, number: str) -> str:
        at = self.draw(st.integers(0, len(thing.parts) - 1))
        part, kind = f"{name}[{at}]", thing.parts[at]
        uses = sorted(thing.uses & self.things.keys())
        holder = next((u for u in uses if self.things[u].kind == kind), "")
        if holder and kind != "int" and self.chance(2):  # which int it is has no meaning
            return f"print({part} is {holder})"
        if kind not in READ:
            return f"print(len({name}))"
        return f"print({self.one_of(READ[kind]).format(part, number)})"

    def change(self) -> tuple[str, str]:
        """Draw a statement that changes something, for the last cell, and the name that it has."""
        ways = [(n, "{0} = 9") for n in self.having("int", pure=False)]
        ways += [
            (n, "{0}[0].n = 4")
            for n in self.having("box", pure=False)
            if self.things[n].parts[0] == "obj"
        ]
        ways += [(n, "if {0} > 4:\n    {0} = 3") for n in self.having("int", pure=False)]
        ways += [(n, "del {0}") for n in self.not_own()]
        ways += [(n, "{0} = None") for n in self.not_own()]
        ways += [
            (n, "def {0}(x, k=2):\n    return x + 50") for n in self.having("func", pure=False)
        ]
        name, text = self.one_of([("", ""), *ways])
        return (name, text.format(name)) if name and self.chance(2) else self.change_in_place()

    def change_in_place(self) -> tuple[str, str]:
        """Draw a statement that changes a value in place, so that its names stay as they are.

        Mostly it changes what other values hold, most of all those that cells on the ranks made.
        """
        names = self.having(*IN_PLACE)
        if not names:
            return "", "pass"
        held = [n for n in names if any(n in self.reach(o) for o in self.things if o != n)]
        own = [n for n in names if any(n in self.reach(o) for o in self.made_there())]
        name = self.one_of(self.one_of([names, held or names, own or held or names]))
        kind = self.things[name].kind
        if kind in ALSO and self.chance(2):
            kind = ALSO[kind]
        return name, IN_PLACE[kind].format(name, self.new_number())

    def made_there(self) -> list[str]:
        """Return the names that observing cells have bound."""
        return [name for name in self.things if name not in self.not_own()]


def _names(text: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


Rule = Callable[[Writer], str]
RULES: list[tuple[Rule, tuple[str, ...] | None]] = []


def rule(*needs: str, weight: int = 1) -> Callable[[Rule], Rule]:
    """Register a rule, which needs a name of one of these kinds."""

    def note(function: Rule) -> Rule:
        RULES.extend([(function, needs or None)] * weight)
        return function

    return note


# -- data ------------------------------------------------------------------------------------------


@rule(weight=3)
def number(w: Writer) -> str:
    name = w.name("int")
    value = w.number(name)
    form = w.one_of(["{0} = {1}", "{0}: int = {1}", "{0} = abs({1})", "print(0 * ({0} := {1}))"])
    return w.bind(name, "int", form.format(name, value))


@rule("int")
def count_on(w: Writer) -> str:
    name = w.one_of(w.having("int"))
    if w.chance(2):
        return w.bind(
            name, "int", f"for i in range(3):\n    {name} += {w.number(name, argument='i')}"
        )
    return w.bind(name, "int", f"{name} += {w.number(name)}")


@rule()
def a_list(w: Writer) -> str:
    name = w.name("list")
    a, b = w.number(name), w.number(name, argument="i")
    form = w.one_of(
        [
            "{0} = [{1}, 2]",
            "{0} = []",
            "{0} = [{2} for i in range(3)]",
            "{0} = []\nfor i in range(3):\n    {0}.append({2})",
        ]
    )
    return w.bind(name, "list", form.format(name, a, b))


@rule("list", weight=2)
def edit_list(w: Writer) -> str:
    name = w.one_of(w.having("list"))
    form = w.one_of(
        [
            "{0}.append({1})",
            "{0}[:1] = [{1}]",
            "{0} += [{1}]",
            "{0}.insert(0, {1})",
            "{0}.clear()",
            "{0}.extend(range({1} % 5))",
            "{0}.sort()",
            "{0}[:] = [{1}] * 2",
        ]
    )
    return w.touch(name, form.format(name, w.number(name)))


@rule()
def a_dict(w: Writer) -> str:
    name = w.name("dict")
    form = w.one_of(
        [
            '{0} = {{"lr": {1}, "width": 4}}',
            "{0} = dict(lr={1}, width=4)",
            '{0} = {{key: {1} for key in ("lr", "width")}}',
            (
                "from collections import defaultdict\n{0} = defaultdict(int)\n"
                '{0}["lr"] += {1}\n{0}["width"] = 1'
            ),
            "from collections import OrderedDict\n{0} = OrderedDict(lr={1}, width=4)",
        ]
    )
    return w.bind(name, "dict", form.format(name, w.number(name)), parts=("lr", "width"))


@rule("dict", weight=2)
def edit_dict(w: Writer) -> str:
    name = w.one_of(w.having("dict"))
    form = w.one_of(
        [
            '{0}["lr"] = {1}',
            "{0}.update(width={1})",
            '{0}["more"] = {1}',
            '{0}["lr"] += {1}',
            '{0} |= {{"lr": {1}}}',
            '{0}.pop("more", None)',
            '{0}.setdefault("extra", {1})',
        ]
    )
    return w.touch(name, form.format(name, w.number(name)))


@rule()
def an_array(w: Writer) -> str:
    name = w.name("array")
    form = w.one_of(
        [
            "import numpy as np\n{0} = np.arange({1} % 5 + 1)",
            "import numpy\n{0} = numpy.full(3, {1})",
        ]
    )
    return w.bind(name, "array", form.format(name, w.number(name)))


@rule("array")
def edit_array(w: Writer) -> str:
    name = w.one_of(w.having("array"))
    return w.touch(name, w.one_of(["{0}[0] = {1}", "{0} += {1}"]).format(name, w.number(name)))


@rule()
def alias(w: Writer) -> str:
    names = w.having()
    if not names:
        return number(w)
    old = w.one_of(names)
    thing = w.things[old]
    new = w.name(thing.kind) if thing.kind in NAMES else "alias"
    if new == old or new in w.reach(old):
        return number(w)
    return w.bind(new, thing.kind, f"{new} = {old}", changes=thing.changes, parts=thing.parts)


@rule(*IN_PLACE, weight=4)
def edit_in_place(w: Writer) -> str:
    name, text = w.change_in_place()
    return w.touch(name, text) if name else text


@rule("list", "dict")
def copied(w: Writer) -> str:
    old = w.one_of(w.having("list", "dict"))
    thing = w.things[old]
    new = w.name(thing.kind)
    form = w.one_of(
        ["import copy\n{0} = copy.deepcopy({1})", "{0} = {1}.copy()", "{0} = type({1})({1})"]
    )
    if thing.kind == "dict" and form.endswith("({1})"):
        form = "{0} = {{**{1}}}"
    return w.bind(new, thing.kind, form.format(new, old), parts=thing.parts)


BOXED = (
    "list",
    "dict",
    "obj",
    "func",
    "with_k",
    "class",
    "config",
    "int",
    "array",
    "tensor",
    "module",
)


@rule(*BOXED, weight=2)
def boxed(w: Writer) -> str:
    name = w.name("box")
    names = w.having(*BOXED, but=name)
    if not names:
        return number(w)
    held = [w.one_of(names) for _ in range(w.draw(st.integers(1, 3)))]
    form = w.one_of(["{0} = [{1}]", "{0} = ({1},)", "{0} = dict(enumerate([{1}]))"])
    kinds = tuple(w.things[each].kind for each in held)
    return w.bind(name, "box", form.format(name, ", ".join(held)), parts=kinds)


@rule("box")
def edit_in_box(w: Writer) -> str:
    name = w.one_of(w.having("box"))
    parts = [
        (i, k) for i, k in enumerate(w.things[name].parts) if k in ("list", "dict", "obj", "class")
    ]
    if not parts:
        return number(w)
    at, kind = w.one_of(parts)
    form = {"list": ".append({})", "dict": '["lr"] = {}', "obj": ".n = {}", "class": ".scale = {}"}[
        kind
    ]
    return w.touch(name, f"{name}[{at}]" + form.format(w.number(name)))


@rule()
def delete(w: Writer) -> str:
    if not w.not_own() or not w.chance(3):
        return number(w)
    name = w.one_of(w.not_own())
    del w.things[name]
    return f"del {name}"


# -- functions -------------------------------------------------------------------------------------


@rule(weight=4)
def function(w: Writer) -> str:
    name = w.name("func")
    body = w.number(name, argument="x")
    more = w.number(name)
    form = w.one_of(
        [
            "def {0}(x):\n    return x + {1}",
            "{0} = lambda x: x + {1}",
            'def {0}(x):\n    """Adds."""\n    total = x\n    for i in range(2):\n        total += {1}\n    return total',
            "def {0}(x: int) -> int:\n    if x > 4:\n        return {2}\n    return {1}",
            "def {0}(x):\n    def inner(y):\n        return y + {1}\n    return inner({2})",
            "def {0}(x):\n    return {2} if x <= 0 else 1 + {0}(x - 1)",
            "def {0}(x):\n    import math\n    return math.floor({1} / 2)",
            "def {0}(x):\n    return sum([{1} for x in range(3)])",
            "def {0}(x):\n    try:\n        return {1}\n    except NameError:\n        return -1",
            (
                "async def later(x):\n    return {1}\ndef {0}(x):\n    import asyncio, threading\n"
                "    return x if later is None else {2}"
            ),
        ]
    )
    return w.bind(name, "func", form.format(name, body, more))


@rule(weight=2)
def function_with_default(w: Writer) -> str:
    name = w.name("func")
    default, body = w.number(name), w.number(name, argument="x")
    form = w.one_of(
        [
            "def {0}(x, k={2}):\n    return x * k + {1}",
            "def {0}(x, *, k={2}):\n    return x + k + {1}",
            "{0} = lambda x, k={2}: x + k",
            "def {0}(x, k={2}, *rest, **more):\n    return x + k + len(more)",
            "def {0}(x, k={2}):\n    def inner(y=k):\n        return y + {1}\n    return inner()",
        ]
    )
    return w.bind(name, "with_k", form.format(name, body, default))


@rule("list", "dict", "func", "obj", "class")
def function_with_held_default(w: Writer) -> str:
    name = w.name("func")
    names = w.having("list", "dict", "func", "obj", "class", but=name)
    if not names:
        return function(w)
    held = w.one_of(names)
    read = w.one_of(READ[w.things[held].kind]).format("held", "x")
    form = w.one_of(
        [
            "def {0}(x, held={1}):\n    return x + {2}",
            "{0} = lambda x, held={1}: {2}",
            "def {0}(x, *, held={1}):\n    return {2}",
        ]
    )
    return w.bind(name, "func", form.format(name, held, read))


@rule()
def maker(w: Writer) -> str:
    name = w.name("maker")
    body = w.number(name, argument="x")
    form = w.one_of(
        [
            "def {0}(k):\n    def inner(x):\n        return x * k + {1}\n    return inner",
            "{0} = lambda k: lambda x: x + k + {1}",
            "def {0}(k):\n    held = [k, {2}]\n    def inner(x):\n        return x + sum(held)\n    return inner",
            "def {0}(k):\n    class Inner:\n        def __call__(self, x):\n            return x + k + {1}\n    return Inner()",
        ]
    )
    return w.bind(name, "maker", form.format(name, body, w.number(name)))


@rule("maker", weight=2)
def made(w: Writer) -> str:
    name = w.name("func")
    makers = w.having("maker", but=name)
    if not makers:
        return function(w)
    return w.bind(name, "func", f"{name} = {w.one_of(makers)}({w.number(name)})")


@rule()
def in_a_loop(w: Writer) -> str:
    name = w.name("funcs")
    body = w.number(name)
    form = w.one_of(
        [
            "{0} = [lambda x: x + i + {1} for i in range(3)]",
            "{0} = [lambda x, i=i: x + i + {1} for i in range(3)]",
            "{0} = []\nfor i in range(3):\n    {0}.append(lambda x: x + i + {1})",
            "{0} = []\nfor i in range(3):\n    def hook(x, i=i):\n        return x + i + {1}\n    {0}.append(hook)",
        ]
    )
    return w.bind(name, "funcs", form.format(name, body))


@rule("func", "with_k")
def functions_in_a_list(w: Writer) -> str:
    name = w.name("funcs")
    names = w.having("func", "with_k", but=name)
    if not names:
        return function(w)
    held = [w.one_of(names) for _ in range(2)]
    return w.bind(name, "funcs", f"{name} = [{', '.join(held)}, abs]")


@rule("func", "with_k")
def functions_in_a_dict(w: Writer) -> str:
    name = w.name("table")
    names = w.having("func", "with_k", but=name)
    if not names:
        return function(w)
    return w.bind(
        name, "table", f'{name} = {{"a": {w.one_of(names)}, "b": lambda x: x + {w.number(name)}}}'
    )


@rule("with_k", "maker")
def partial(w: Writer) -> str:
    name = w.name("func")
    names = w.having("with_k", but=name)
    if not names:
        return function(w)
    form = w.one_of(
        [
            "from functools import partial\n{0} = partial({1}, k={2})",
            "import functools\n{0} = functools.partial({1}, k={2})",
        ]
    )
    return w.bind(name, "func", form.format(name, w.one_of(names), w.number(name)))


@rule("obj")
def bound_method(w: Writer) -> str:
    name = w.name("func")
    names = w.having("obj", but=name)
    if not names:
        return function(w)
    return w.bind(name, "func", f"{name} = {w.one_of(names)}.value")


@rule()
def generating(w: Writer) -> str:
    name = w.name("gen")
    body = w.number(name, argument="i")
    return w.bind(name, "gen", f"def {name}(x):\n    for i in range(x):\n        yield {body}")


@rule("func")
def edit_function(w: Writer) -> str:
    name = w.one_of(w.having("func"))
    form = w.one_of(["{0}.scale = {1}", "{0}.__doc__ = 'Edited.'"])
    value = w.number(name)
    return w.touch(name, f"if hasattr({name}, '__code__'):\n    " + form.format(name, value))


@rule("with_k")
def edit_defaults(w: Writer) -> str:
    name = w.one_of(w.having("with_k"))
    value = w.number(name)
    return w.touch(
        name,
        f"if getattr({name}, '__kwdefaults__', None):\n    {name}.__kwdefaults__ = {{'k': {value}}}\n"
        f"else:\n    {name}.__defaults__ = ({value},)",
    )


# -- functions that change something ---------------------------------------------------------------


@rule()
def bump(w: Writer) -> str:
    name = w.name("bump")
    value = w.number(name)
    form = w.one_of(
        [
            "{0}_n = {1}\ndef {0}():\n    global {0}_n\n    {0}_n += 1\n    return {0}_n",
            (
                "def make_{0}():\n    total = {1}\n    def {0}():\n        nonlocal total\n        total += 1\n"
                "        return total\n    return {0}\n{0} = make_{0}()"
            ),
            "def {0}():\n    {0}.calls += 1\n    return {0}.calls\n{0}.calls = {1}",
            "def {0}(seen=[]):\n    seen.append({1})\n    return sum(seen)",
            "import itertools\n{0}_it = itertools.count({1})\ndef {0}():\n    return next({0}_it)",
            "{0}_seen = [1]\ndef {0}():\n    {0}_seen.append({1})\n    return len({0}_seen)",
        ]
    )
    return w.bind(name, "bump", form.format(name, value), changes=True)


@rule("bump")
def call_bump(w: Writer) -> str:
    return (
        f"print({w.one_of(w.having('bump', pure=False) or ['len'])}() if True else 0)"
        if w.having("bump", pure=False)
        else "pass"
    )


# -- decorators ------------------------------------------------------------------------------------


@rule(weight=2)
def decorator(w: Writer) -> str:
    name = w.name("deco")
    body = w.number(name, argument="x")
    form = w.one_of(
        [
            "def {0}(fn):\n    def inner(x):\n        return fn(x) + {1}\n    return inner",
            (
                "import functools\ndef {0}(fn):\n    @functools.wraps(fn)\n    def inner(x):\n"
                "        return fn(x) * 2 + {1}\n    return inner"
            ),
            (
                "class {0}:\n    def __init__(self, fn):\n        self.fn, self.extra = fn, {2}\n"
                "    def __call__(self, x):\n        return self.fn(x) + self.extra"
            ),
            "{0}_seen = []\ndef {0}(fn):\n    {0}_seen.append(fn)\n    return fn",
            "{0}_by = {2}\ndef {0}(fn):\n    by = {0}_by\n    def inner(x):\n        return fn(x) + by\n    return inner",
            "def {0}(fn):\n    fn.marked = {2}\n    return fn",
        ]
    )
    return w.bind(name, "deco", form.format(name, body, w.number(name)))


@rule("deco", weight=2)
def decorated(w: Writer) -> str:
    name = w.name("func")
    decorators = w.having("deco", but=name)
    if not decorators:
        return function(w)
    body = w.number(name, argument="x")
    return w.bind(name, "func", f"@{w.one_of(decorators)}\ndef {name}(x):\n    return x + {body}")


@rule()
def registered(w: Writer) -> str:
    name = w.name("table")
    a, b = w.number(name, argument="x"), w.number(name)
    form = w.one_of(
        [
            (
                "{0} = {{}}\ndef register(fn):\n    {0}[fn.__name__] = fn\n    return fn\n"
                "@register\ndef square(x):\n    return x + {1}\n@register\ndef cube(x):\n    return {2}"
            ),
            (
                "{0} = {{}}\ndef register(key, k={2}):\n    def deco(fn):\n        {0}[key] = lambda x: fn(x) + k\n"
                "        return fn\n    return deco\n@register('sq')\ndef square(x):\n    return {1}"
            ),
        ]
    )
    return w.bind(name, "table", form.format(name, a, b))


@rule()
def cached(w: Writer) -> str:
    name = w.name("cached")
    k = w.draw(st.integers(0, 9))
    form = w.one_of(
        [
            "from functools import lru_cache\n@lru_cache(maxsize=None)\ndef {0}(x):\n    return x + {1}",
            "import functools\n@functools.cache\ndef {0}(x):\n    return {1} if x < 2 else {0}(x - 1) + 1",
            "from functools import lru_cache\n{0} = lru_cache(lambda x: x + {1})",
        ]
    )
    return w.bind(name, "cached", form.format(name, k))


# -- classes ---------------------------------------------------------------------------------------


@rule(weight=4)
def a_class(w: Writer) -> str:
    name = w.name("class")
    scale, body = w.number(name), w.number(name, argument="x")
    form = w.one_of(
        [
            """
        class {0}:
            scale = {1}
            def __init__(self, n):
                self.n = n
            def value(self, x=1):
                return self.n * self.scale + {2}
        """,
            """
        class {0}:
            scale = {1}
            def __init__(self, n):
                self.n = n + {0}.scale
            @property
            def double(self):
                return 2 * self.n
            @staticmethod
            def helped(x):
                return {2}
            @classmethod
            def scaled(cls, x):
                return x * cls.scale
            def value(self, x=1):
                return self.double + self.helped(x) + self.scaled(x)
        """,
            """
        class {0}:
            scale = {1}
            made = 0
            def __init__(self, n, start={1}):
                {0}.made += 1
                self.n = n + start
            def value(self, x=1):
                return self.n + {2}
            def __repr__(self):
                return f"{0}({{self.n}})"
        """,
            """
        class {0}:
            scale = {1}
            __slots__ = ("n",)
            def __init__(self, n):
                self.n = n
            def value(self, x={1}):
                return self.n + x + {0}.scale
            __call__ = value
        """,
            """
        class {0}:
            scale = {1}
            items = [1, {1}]
            class Inner:
                def get(self, x):
                    return {2}
            def __init__(self, n):
                self.n, self.inner = n, self.Inner()
            def value(self, x=1):
                return self.n + sum(self.items) + self.inner.get(x)
        """,
        ]
    )
    return w.bind(name, "class", dedent(form).format(name, scale, body))


@rule("class", weight=2)
def a_subclass(w: Writer) -> str:
    name = w.name("class")
    bases = w.having("class", but=name)
    if not bases:
        return a_class(w)
    body = w.number(name, argument="x")
    form = w.one_of(
        [
            """
        class {0}({1}):
            def value(self, x=1):
                return super().value() + {2}
        """,
            """
        class {0}({1}):
            scale = {3}
        """,
            """
        class {0}({1}):
            def __init__(self, n):
                super().__init__(n + 1)
                self.extra = {3}
            def value(self, x=1):
                return {1}.value(self) + self.extra
        """,
        ]
    )
    return w.bind(name, "class", dedent(form).format(name, w.one_of(bases), body, w.number(name)))


@rule("class", weight=2)
def edit_class(w: Writer) -> str:
    name = w.one_of(w.having("class"))
    form = w.one_of(
        [
            "{0}.scale = {1}",
            "{0}.value = lambda self, x=1: self.n + {1}",
            "def value(self, x=1):\n    return self.n + {1}\n{0}.value = value",
            "setattr({0}, 'scale', {1})",
            "{0}.extra = {1}",
            "{0}.scale += 1",
        ]
    )
    return w.touch(name, form.format(name, w.number(name)))


@rule("class", weight=3)
def an_object(w: Writer) -> str:
    name = w.name("obj")
    classes = w.having("class", but=name)
    if not classes:
        return a_class(w)
    return w.bind(name, "obj", f"{name} = {w.one_of(classes)}({w.number(name)})")


@rule("obj", weight=2)
def edit_object(w: Writer) -> str:
    name = w.one_of(w.having("obj"))
    form = w.one_of(["{0}.n = {1}", "{0}.n += {1}", "{0}.scale = {1}", "{0}.more = [{1}]"])
    return w.touch(name, form.format(name, w.number(name)))


@rule("obj")
def object_with_function(w: Writer) -> str:
    name = w.one_of(w.having("obj"))
    names = w.having("func", "with_k", but=name)
    if not names:
        return function(w)
    return w.touch(name, f"{name}.value = {w.one_of(names)}\n{name}.value.__call__(1)")


@rule("class")
def objects(w: Writer) -> str:
    name = w.name("objs")
    classes = w.having("class", but=name)
    if not classes:
        return a_class(w)
    made = [f"{w.one_of(classes)}({w.number(name)})" for _ in range(2)]
    return w.bind(name, "objs", f"{name} = [{', '.join(made)}]")


@rule()
def a_dataclass(w: Writer) -> str:
    name = w.name("configs")
    a, b = w.number(name), w.number(name)
    form = w.one_of(
        [
            """
        from dataclasses import dataclass, field
        @dataclass
        class {0}:
            lr: int = {1}
            layers: list = field(default_factory=lambda: [{2}, 2])
            def total(self):
                return self.lr + sum(self.layers)
        """,
            """
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class {0}:
            lr: int = dataclasses.field(default={1})
            layers: tuple = (1, {2})
            def total(self):
                return self.lr * 2 + {2}
        """,
            """
        from dataclasses import dataclass
        @dataclass
        class {0}:
            lr: int = {1}
            layers: tuple = (3,)
            def __post_init__(self):
                self.sum = self.lr + {2}
            def total(self):
                return self.sum
        """,
        ]
    )
    return w.bind(name, "configs", dedent(form).format(name, a, b))


@rule("configs", weight=2)
def a_config(w: Writer) -> str:
    name = w.name("config")
    classes = w.having("configs", but=name)
    if not classes:
        return a_dataclass(w)
    form = w.one_of(["{0} = {1}()", "{0} = {1}(lr={2})"])
    return w.bind(name, "config", form.format(name, w.one_of(classes), w.number(name)))


@rule("config")
def edit_config(w: Writer) -> str:
    name = w.one_of(w.having("config"))
    value = w.number(name)
    form = w.one_of(
        [
            "import dataclasses\n{0} = dataclasses.replace({0}, lr={1})",
            "try:\n    {0}.lr = {1}\nexcept AttributeError:\n    pass",
            "if isinstance({0}.layers, list):\n    {0}.layers.append({1})",
        ]
    )
    return w.touch(name, form.format(name, value))


@rule()
def a_named_tuple(w: Writer) -> str:
    name = w.name("points")
    a, b = w.number(name), w.number(name)
    form = w.one_of(
        [
            """
        from typing import NamedTuple
        class {0}(NamedTuple):
            x: int
            y: int = {1}
            def moved(self, by):
                return self._replace(x=self.x + by, y=self.y + {2})
        """,
            """
        from collections import namedtuple
        {0} = namedtuple("{0}", "x y", defaults=[{1}])
        {0}.moved = lambda self, by: {0}(self.x + by, self.y + {2})
        """,
        ]
    )
    return w.bind(name, "points", dedent(form).format(name, a, b))


@rule("points")
def a_point(w: Writer) -> str:
    name = w.name("point")
    classes = w.having("points", but=name)
    if not classes:
        return a_named_tuple(w)
    return w.bind(name, "point", f"{name} = {w.one_of(classes)}({w.number(name)}, 2)")


@rule()
def an_enum(w: Writer) -> str:
    name = w.name("enum")
    return w.bind(
        name,
        "enum",
        f"""
from enum import Enum
class {name}(Enum):
    A = {w.number(name)} + 100
    B = 2
    def twice(self):
        return self.value * 2 + {w.number(name)}
""",
    )


@rule()
def told_of_subclasses(w: Writer) -> str:
    name = w.name("meter")
    return w.bind(
        name,
        "meter",
        f"""
class {name}:
    count, kinds = {w.number(name)}, []
    def __init_subclass__(cls, **more):
        {name}.kinds.append(cls.__name__)
        {name}.count += 1
class Sub{name}({name}):
    pass
""",
    )


@rule(weight=8)
def anything(w: Writer) -> str:
    name = w.name("misc")
    text, reads = w.one_of(MISC)
    text = text.format(name, w.number(name), w.number(name, argument="x"))
    return w.bind(name, "misc", text, parts=tuple(reads))


# -- imports and the rest --------------------------------------------------------------------------


@rule(weight=2)
def imported(w: Writer) -> str:
    name, kind, text = w.one_of(
        [
            ("math", "math", "import math"),
            ("m", "math", "import math as m"),
            ("np", "np", "import numpy as np"),
            ("floor", "floor", "from math import floor"),
            ("down", "floor", "from math import floor as down"),
            ("path", "path", "from os import path"),
            ("Counter", "counter", "from collections import Counter"),
            ("cnt", "counter", "from collections import Counter as cnt"),
        ]
    )
    return w.bind(name, kind, text)


@rule("int")
def either_way(w: Writer) -> str:
    name = w.name("func")
    numbers = w.having("int", but=name)
    if not numbers:
        return number(w)
    a, b = w.number(name, argument="x"), w.number(name, argument="x")
    text = f"if {w.one_of(numbers)} > 3:\n    def {name}(x):\n        return {a}\n"
    return w.bind(name, "func", f"{text}else:\n    def {name}(x):\n        return {b} + 1")


@rule("int")
def swapped(w: Writer) -> str:
    names = w.having("int")
    a, b = w.one_of(names), w.one_of(names)
    return f"{a}, {b} = {b}, {a}"
