"""The architecture as a test: layers, circles, private names, and the page that draws them.

A module imports only from an earlier layer or from its own. Two exceptions: names for type checkers (under
`if TYPE_CHECKING:`), and the few modules in `LAZY`, which load a backend when it is used. A new module has to be put
into `LAYERS`, and into the picture of docs/architecture.md.

Requirements: D17, and STYLE on shape.
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import Literal, NamedTuple

import pytest

import hitherto

ROOT = Path(hitherto.__file__).parent
TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "architecture.md"

# From the ground up. A name with a star is a folder. The `__init__` of a folder that imports nothing needs no place.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        *("accountability", "errors", "events", "_system.forks", "_system.interrupts", "_system.own_files"),
        *("_sealing.primitives", "_engine.signals", "_engine.retry", "_erasure.purge"),
    ),
    (
        *("attachment", "ids", "keys", "model", "reports", "retention", "sanitiser.*", "telemetry"),
        *(
            "_system.config_file",
            "_system.folder_watch",
            "_system.local_server",
            "_system.locations",
            "_system.running_pages",
            "_system.task_threads",
            "_system.terminal_text",
        ),
        *("_engine.breaker", "_engine.compression", "_engine.process", "_search.query", "_search.word_stems"),
    ),
    ("dialects.*", "snapshots.*", "_http_hooks"),
    ("chat.*",),
    ("backend", "textindex", "_search.snippets", "_search.segments", "_search.nearest"),
    (
        *("backends.*", "backends.sqlite.*", "backends.postgres.*", "_sealing.codec", "_sealing.sealed"),
        *(
            "_engine.bodies",
            "_engine.typed_items",
            "_engine.committer",
            "_copying.row_pages",
            "_search.timeline",
            "_search.sealed_index",
        ),
    ),
    (
        *(
            "_engine.context",
            "_engine.services",
            "_engine.engine",
            "_engine.state",
            "_engine.appending",
            "_engine.describing",
            "_engine.reading",
            "_engine.items",
            "_engine.rebase",
            "_engine.steps",
            "_engine.packs",
        ),
        *("_engine.attachments", "_engine.filters", "_engine.floor", "_engine.setups", "_engine.quota"),
        *("_engine.lease", "_engine.revisions", "_engine.policy_memory", "_engine.workspace"),
        *("_copying.workspace_copy", "_search.sealed_index_store"),
    ),
    ("_engine.recovery", "_engine.record_items", "_engine.creating", "_engine.packing"),
    (
        *("conversation", "listing", "_engine.verify", "_engine.deleting", "_engine.statistics"),
        *("items", "_engine.finding", "_engine.selection", "_engine.saving", "_engine.editing", "_erasure.purging"),
        "_engine.moving",
        *("_erasure.ledger", "_erasure.ledger_file", "_erasure.replaying"),
        *("_erasure.purging_many", "_erasure.by_person"),
        *("_erasure.maintenance", "_erasure.sweep", "_erasure.schedule", "_erasure.shutdown"),
        *("_erasure.checkpoint_copies", "_search.search", "_search.answering"),
        *("_sealing.reencryption", "_sealing.rotation", "_sealing.quarantine"),
    ),
    ("store",),
    ("opening", "copying", "erasures", "threads", "aio._append_queue", "aio._state"),
    ("aio.__init__",),
    (
        *("recorder.*", "formats.*", "formats.importers.*", "formats.exports.*", "formats.own.*"),
        *("records.*", "rescue", "usage.*"),
    ),
    ("__init__", "bundles", "testing.*", "testing.conformance.*", "adapters.*", "viewer.*", "gateway.*", "recall.*"),
    ("cli.*", "__main__"),
)
TITLES = (
    "errors, events, cryptographic primitives, files of our own",
    "values, keys, retention, the sanitiser",
    "each provider's JSON; snapshots; hooks in HTTP clients",
    "clients of language models",
    "the protocols that third parties implement",
    "backends; the codec; the committer",
    "the context, the state of each conversation, the workspace",
    "creating, packing, recovery",
    "handles and lists; deleting, erasing, searching, rotating keys",
    "the store",
    "opening, copying, the narrow protocols",
    "the async facade",
    "recording, files, records",
    "the public names; tools for tests; adapters for frameworks; the viewer; the gateway; recall",
    "the command line",
)
FOR_BACKENDS = {"_system.forks", "_system.own_files", "backend", "errors", "ids", "textindex", "_search.query"}
LAZY = {
    ("opening", "backends.memory"),
    ("opening", "backends.sqlite.__init__"),
    ("opening", "backends.postgres.__init__"),
    ("opening", "backends.postgres.server_report"),
    ("opening", "backends.postgres.schema"),
    ("opening", "backends.sqlite.retrying_reader"),
    ("_search.search", "backends.sqlite.fts"),
    ("cli._backup_restore", "backends.sqlite.file_swap"),
    ("cli._doctor_checks", "backends.sqlite.foreign_files"),
    ("cli._lock_notice", "backends.sqlite.connections"),
}
NO_NAMES = {"utils", "util", "helpers", "helper", "common", "managers", "manager", "misc", "base", "core", "tools"}


# How often a module reaches into another object's private names (`other._x`, where `other` is not `self` or `cls`).
# The numbers may only fall, and a module that is not here reaches into nothing.
PRIVATE_REACHES: dict[str, int] = {
    "_engine.workspace": 1,
    "_erasure.checkpoint_copies": 5,
    "_sealing.sealed": 5,
    "chat._llama": 1,
    "chat._wires": 4,
    "formats.own.vpconv": 1,
    "keys": 2,
    "listing": 4,
    "recorder._calls": 5,
    "records._listing": 2,
    "sanitiser.__init__": 2,
    "snapshots._file_layouts": 4,
    "snapshots._files": 1,
    "testing.conformance.deleting": 4,
    "testing.conformance.packing": 3,
    "testing.faultdisk": 17,
}
# Most modules have none, and need not be searched node by node.
_MAY_REACH = re.compile(r"(?<!\bself)(?<!\bcls)(?<!from )(?<!import )(?<!\.)\._[A-Za-z]")
_LARGEST_CIRCLE = 3
_LONGEST_MODULE = 700  # lines
_RIDDLE = re.compile(r"(What|Who|Whoever|Whatever|Whose|Whom|That which|Those who|Nobody|Somebody|Others)\b")

When = Literal["loading", "calling", "checking"]  # when an import runs; `checking`: for type checkers alone


class Import(NamedTuple):
    """An import statement."""

    node: ast.Import | ast.ImportFrom
    when: When


class Arrow(NamedTuple):
    """A module imports another one."""

    module: str
    name: str
    when: When


class Source(NamedTuple):
    """The facts about a module that the tests need."""

    docstring: str | None
    imports: tuple[Import, ...]
    private_reaches: int
    is_importing_store: bool


@cache
def modules() -> dict[str, Path]:
    """Every module by its name inside the package: `backends.sqlite`, `testing.__init__`."""
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def read(path: Path) -> Source:
    """Parse a module once. The syntax tree itself is not cached: with all of them in memory, the garbage collector
    takes ten times as long as the parser."""
    text = path.read_text(encoding="utf-8")
    parsed = ast.parse(text)
    nodes = ast.walk(parsed) if _MAY_REACH.search(text) else ()
    imported = tuple(statements(parsed))
    return Source(
        ast.get_docstring(parsed),
        imported,
        sum(is_private_reach(node) for node in nodes),
        any(alias.name == "Store" for one in imported for alias in one.node.names),
    )


def is_private_reach(node: ast.AST) -> bool:
    """Is this `other._x`? The methods of named tuples are public in spite of their underscore."""
    if not isinstance(node, ast.Attribute) or not re.match(r"_[^_]", node.attr):
        return False
    if node.attr in ("_asdict", "_fields", "_make", "_replace"):
        return False
    return not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))


def layer(module: str) -> int:
    folder, _, last = module.rpartition(".")
    for number, names in enumerate(LAYERS):
        if module in names or (folder and f"{folder}.*" in names):
            return number
    if folder and last == "__init__" and not read(modules()[module]).imports:
        return 0
    raise AssertionError(f"{module} is not on the map: give it a layer in LAYERS")


def is_for_type_checkers(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    return (test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)) == "TYPE_CHECKING"


def statements(tree: ast.AST, when: When = "loading") -> Iterator[Import]:
    """The imports of a syntax tree."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):  # most of the nodes, and none of them holds an import
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield Import(node, when)
        elif isinstance(node, ast.If) and is_for_type_checkers(node):
            yield from statements(ast.Module(node.body, []), "checking")
            yield from statements(ast.Module(node.orelse, []), when)
        else:
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from statements(node, "calling" if is_function and when == "loading" else when)


def resolved(module: str, node: ast.Import | ast.ImportFrom, known: set[str]) -> Iterator[str]:
    """The modules of hitherto that an import names."""
    if isinstance(node, ast.Import):
        names = [alias.name.removeprefix("hitherto.") for alias in node.names if alias.name.startswith("hitherto.")]
        yield from names
        if any(alias.name == "hitherto" for alias in node.names):
            yield "__init__"
        return
    if node.level:
        package = module.split(".")[: -node.level]
        where = ".".join([*package, *(node.module or "").split(".")]).strip(".")
    elif node.module and node.module.split(".")[0] == "hitherto":
        where = node.module.removeprefix("hitherto").strip(".")
    else:
        return
    for alias in node.names:
        inner = f"{where}.{alias.name}".strip(".")
        if inner in known:
            yield inner
        elif where in known:
            yield where
        else:
            yield f"{where}.__init__".strip(".")


def imports(found: Iterable[Import], module: str, known: set[str]) -> set[tuple[str, When]]:
    """The modules of hitherto that a module imports, and when."""
    return {(name, when) for node, when in found for name in resolved(module, node, known)}


@cache
def arrows() -> list[Arrow]:
    known = modules()
    return [
        Arrow(module, name, when)
        for module, path in known.items()
        for name, when in sorted(imports(read(path).imports, module, set(known)))
    ]


def points_up(arrow: Arrow) -> bool:
    """Does an import that runs lead to a later layer? Those in `LAZY` may, inside a function."""
    module, name, when = arrow
    if when == "checking" or ((module, name) in LAZY and when == "calling"):
        return False
    return layer(name) > layer(module)


def circles(below: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that all reach each other, with at least two modules. Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        path.append(module)
        for name in below[module]:
            if name not in index:
                visit(name)
                low[module] = min(low[module], low[name])
            elif name in path:
                low[module] = min(low[module], index[name])
        if low[module] == index[module]:
            at = path.index(module)
            if len(path) - at > 1:
                found.append(sorted(path[at:]))
            del path[at:]

    for module in below:
        if module not in index:
            visit(module)
    return found


def graph(*kinds: When) -> dict[str, set[str]]:
    below: dict[str, set[str]] = {module: set() for module in modules()}
    for module, name, when in arrows():
        if when in kinds and name != module:
            below[module].add(name)
    return below


def test_every_module_is_on_the_map_and_the_map_has_no_ghosts() -> None:
    there = modules()
    for module in there:
        layer(module)
    plain = {name for names in LAYERS for name in names if not name.endswith("*")}
    assert plain - set(there) == set()


def test_no_module_imports_from_a_later_layer() -> None:
    found = arrows()
    assert len(found) > 30  # the control: the imports are seen at all
    assert ("store", "backend", "loading") in found
    assert [f"{arrow.module} imports {arrow.name}" for arrow in found if points_up(arrow)] == []


def test_an_arrow_that_points_up_is_seen() -> None:
    """The negative control of the test above, for every way to write an import."""
    known = set(modules())
    for source in (
        "from .store import Store",
        "from . import store",
        "import hitherto.store",
        "from hitherto import store",
        "from hitherto.store import Store",
        "def f():\n    from .store import Store",
        "try:\n    from .store import Store\nexcept ImportError:\n    pass",
        "if not TYPE_CHECKING:\n    from .store import Store",
        "if TYPE_CHECKING:\n    pass\nelse:\n    from .store import Store",
    ):
        found = imports(statements(ast.parse(source)), "model", known)
        assert {name for name, _ in found} == {"store"}, source
        assert all(points_up(Arrow("model", name, when)) for name, when in found)
    for module, source, seen in (
        ("model", "if TYPE_CHECKING:\n    from .store import Store", {("store", "checking")}),
        ("backends.memory", "from ..store import Store", {("store", "loading")}),
        ("backends.sqlite.__init__", "from .files import sync", {("backends.sqlite.files", "loading")}),
    ):
        assert imports(statements(ast.parse(source)), module, known) == seen


def test_backends_know_only_the_protocol() -> None:
    """D17: so a third party's backend can be all that these are."""
    for module, name, when in arrows():
        if module.startswith("backends.") and when != "checking":
            assert name in FOR_BACKENDS or name.startswith("backends."), f"{module} imports {name}"


def test_only_opening_loads_backends_and_only_when_they_are_used() -> None:
    loaders = {
        (module, name, when)
        for module, name, when in arrows()
        if name.startswith("backends.") and not module.startswith(("backends.", "testing.")) and when != "checking"
    }
    assert {(module, name) for module, name, _ in loaders} == LAZY
    assert {when for _, _, when in loaders} == {"calling"}


def test_there_are_no_circles_when_modules_are_loaded() -> None:
    """Modules of one layer may import each other, but not both ways round."""
    assert circles(graph("loading")) == []


def test_circles_are_small_even_with_names_for_type_checkers() -> None:
    """A type that is named in an annotation is knowledge too: three modules can be read together, not twenty."""
    found = circles(graph("loading", "calling", "checking"))
    assert [circle for circle in found if len(circle) > _LARGEST_CIRCLE] == []


def test_a_circle_is_seen() -> None:
    """The negative control of the two tests above."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}) == [
        ["d", "e"],
        ["a", "b", "c"],
    ]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_no_module_below_the_store_names_it() -> None:
    """Modules below `store` take an `Engine`, also in annotations: otherwise each of them could call the store back."""
    (number,) = (number for number, names in enumerate(LAYERS) if "store" in names)
    arrows_up = [f"{m} imports {name}" for m, name, _ in arrows() if name == "store" and layer(m) < number]
    imported = [m for m, path in modules().items() if layer(m) < number and read(path).is_importing_store]
    assert arrows_up == []
    assert imported == []
    assert read(modules()["opening"]).is_importing_store  # the control


def test_private_names_stay_private() -> None:
    """A reach into another object's private names ties two modules together in a way that no import shows."""
    wrong = []
    for module, path in modules().items():
        found, allowed = read(path).private_reaches, PRIVATE_REACHES.get(module, 0)
        if found > allowed:
            wrong.append(f"{module} has {found} private reaches, {allowed} are allowed: give the name a public one")
        if found < allowed:
            wrong.append(f"{module} has fewer private reaches than before: lower its number to {found}")
    assert wrong == []


def test_a_private_reach_is_seen() -> None:
    """The negative control of the test above, and the modules in its table exist."""
    for source, count in (
        ("other._x", 1),
        ("self._x._y", 1),
        ("f()._x = 1", 1),
        ("[one\n ._x]", 1),
        ("self._x", 0),
        ("cls._x", 0),
        ("row._replace(x=1)", 0),
        ("other.__dict__", 0),
        ("from ._x import y", 0),
    ):
        assert sum(map(is_private_reach, ast.walk(ast.parse(source)))) == count, source
        assert bool(_MAY_REACH.search(source)) >= bool(count), source
    assert set(PRIVATE_REACHES) <= set(modules())
    assert all(PRIVATE_REACHES.values())


def test_nothing_outside_testing_needs_the_tools_of_tests() -> None:
    """pytest and hypothesis are needed by `hitherto.testing` alone."""
    for module, path in modules().items():
        if not module.startswith("testing."):
            foreign = {
                name.split(".")[0]
                for node, _ in read(path).imports
                for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
                if not (isinstance(node, ast.ImportFrom) and node.level)
            }
            assert foreign.isdisjoint({"pytest", "hypothesis", "_pytest"}), module


@pytest.mark.parametrize("module", modules())
def test_every_module_has_a_home_of_its_own_and_opens_with_its_idea(module: str) -> None:
    """STYLE: no `utils`; a module opens with its idea in prose."""
    assert not NO_NAMES & {part.strip("_") for part in module.split(".")}
    said = read(modules()[module]).docstring
    assert said, f"{module} does not say what it is"
    assert len(said.splitlines()) > 1, f"{module} says no more than one line"


def test_no_module_is_longer_than_a_reader_can_hold() -> None:
    """A longer one is split where two readers come with different questions."""
    lines = {module: path.read_text(encoding="utf-8").count("\n") for module, path in modules().items()}
    assert {module: count for module, count in lines.items() if count > _LONGEST_MODULE} == {}


def sentences(path: Path) -> list[str]:
    """The sentences of the docstrings of a module, roughly."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    said = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
    return [one.strip() for text in said for one in re.split(r"(?<=[.!?])\s+", text) if one.strip()]


def test_sentences_begin_with_a_thing_that_has_a_name() -> None:
    """CONTRIBUTING on style: the subject is a thing in the code, not *what* or *who*. A few may."""
    found = {module: sentences(path) for module, path in modules().items()}
    riddles = [f"{module}: {one}" for module, said in found.items() for one in said if _RIDDLE.match(one)]
    assert len(riddles) < 0.005 * sum(map(len, found.values())), "\n".join(riddles)
    assert _RIDDLE.match("What others added meanwhile is none of our business.")  # the control


# Folders


def folders() -> list[str]:
    """The folders of the package, as the page names them: `_engine/`, `backends/sqlite/`."""
    return sorted(
        path.parent.relative_to(ROOT).as_posix() + "/" for path in ROOT.rglob("__init__.py") if path.parent != ROOT
    )


@pytest.mark.parametrize("folder", folders())
def test_the_init_of_a_folder_has_a_paragraph_that_says_what_lives_there(folder: str) -> None:
    said = read(ROOT / folder / "__init__.py").docstring or ""
    assert len(said.split()) >= 20, f"{folder} says too little: {said!r}"


@pytest.mark.parametrize("folder", [one for one in folders() if one.startswith("_")])
def test_the_init_of_a_private_folder_imports_nothing(folder: str) -> None:
    """Importing one module of it must not load the others."""
    assert read(ROOT / folder / "__init__.py").imports == ()


def test_the_folders_of_the_tests_say_what_lives_there_and_import_nothing() -> None:
    inits = sorted(TESTS.rglob("__init__.py"))
    assert {path.parent.name for path in TESTS.glob("*/test_*.py")} <= {path.parent.name for path in inits}
    for path in inits:
        assert len((read(path).docstring or "").split()) >= 15, f"{path.parent.name} says too little"
        assert read(path).imports == (), path.parent.name


# The page


@cache
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def block(title: str, text: str) -> str:
    """The fenced block of text below a heading."""
    found = re.search(rf"^## {title}$.*?^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no block under {title!r}"
    return found[1]


def picture() -> str:
    """The layers as the page draws them, the command line at the top: a line for each folder with its modules."""
    lines = []
    for number, (title, names) in reversed(list(enumerate(zip(TITLES, LAYERS, strict=True), 1))):
        lines.append(f"{number:>2}  {title}")
        by_folder: dict[str, list[str]] = {}
        for name in names:
            folder, _, last = name.rpartition(".")
            by_folder.setdefault(folder, []).append(last)
        for folder, last_names in by_folder.items():
            place = folder.replace(".", "/") + "/" if folder else ""
            shown = "" if last_names == ["*"] else " ".join(last_names)
            lines += wrap(f"{place:<15} {shown}".rstrip(), 110, initial_indent=" " * 8, subsequent_indent=" " * 24)
    return "\n".join(lines) + "\n"


def test_the_page_shows_the_layers() -> None:
    assert block("The layers", page()) == picture(), f"put this into {PAGE.name}:\n{picture()}"


def test_the_map_in_contributing_is_the_tree() -> None:
    text = (TESTS.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"^  ([\w/]+) ", block("The map", text), re.MULTILINE)
    assert sorted(named) == sorted({*(path.stem for path in ROOT.glob("*.py")), *folders()})


def names_on_the_page() -> list[str]:
    """The dotted names between backticks: `_engine.committer.Committer.enqueue`."""
    found = re.findall(r"`((?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*)(?:\(\))?`", page())
    return sorted({name for name in found if not re.search(r"\.(?:py|md|json|db|sqlite)$", name)})


def find(name: str) -> object:
    """Import the module that a dotted name begins with, and follow the rest. An attribute that `__init__` sets counts
    as one of its class."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if (ROOT.joinpath(*parts[:end]).with_suffix(".py")).exists() or ROOT.joinpath(*parts[:end]).is_dir():
            found: object = import_module(".".join(["hitherto", *parts[:end]]))
            break
    else:
        raise AttributeError(f"there is no module for {name}")
    for part in parts[end:]:
        if (
            inspect.isclass(found)
            and not hasattr(found, part)
            and re.search(rf"\bself\.{part}\b[^=\n]*=", inspect.getsource(found))
        ):
            return part
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", names_on_the_page())
def test_every_name_on_the_page_exists(name: str) -> None:
    find(name)


def test_the_names_on_the_page_are_seen_and_a_wrong_one_fails() -> None:
    assert len(names_on_the_page()) > 40
    for wrong in ("nowhere.x", "store.Store.nothing", "_engine.committer.Committer._nothing"):
        with pytest.raises(AttributeError):
            find(wrong)


def test_the_page_names_every_lock_of_the_engine() -> None:
    """A new lock needs a line that says what is held and awaited under it."""
    made = re.compile(r"^\s+self\.(\w+)(?:, self\.\w+)* = threading\.R?Lock\(\)", re.MULTILINE)
    paths = [*ROOT.glob("_engine/*.py"), *ROOT.glob("_erasure/*.py"), *ROOT.glob("_search/*.py"), ROOT / "store.py"]
    locks = {
        f"{path.relative_to(ROOT).with_suffix('').as_posix().replace('/', '.')}.{name}"
        for path in paths
        for name in made.findall(path.read_text(encoding="utf-8"))
    }
    assert len(locks) > 8
    shown = {re.sub(r"\.[A-Z]\w*", "", name) for name in names_on_the_page()}
    assert locks - shown == set()
