"""The map of the code, as a test: who may know whom.

A module imports only what lies in an earlier layer or beside it. Two exceptions: names for type checkers (under
`if TYPE_CHECKING:`), and `opening`, which loads a backend when it is used. A new module has to be put on the map.

Requirements: D17, and STYLE on shape.
"""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import hitherto

ROOT = Path(hitherto.__file__).parent

# From the ground up. A name with a star is a folder.
LAYERS: tuple[tuple[str, ...], ...] = (
    (
        *("errors", "events", "_forks", "_own_files", "_sealing.primitives"),
        *(
            "_engine.__init__",
            "_engine.signals",
            "_sealing.__init__",
            "_erasure.__init__",
            "_search.__init__",
            "_copying.__init__",
        ),
    ),
    (
        *("attachment", "ids", "keys", "model", "retention", "sanitiser.*", "telemetry"),
        *("_locations", "_task_threads", "_terminal_text"),
        *("_engine.breaker", "_engine.compression", "_engine.process", "_search.query"),
    ),
    ("dialects.*", "snapshots.*", "_http_hooks"),
    ("chat.*",),
    ("backend", "textindex", "_search.snippets", "_search.segments"),
    (
        *("backends.*", "backends.sqlite.*", "backends.postgres.*", "_sealing.codec", "_sealing.sealed"),
        *("_engine.bodies", "_engine.committer", "_copying.row_pages", "_search.timeline", "_search.sealed_index"),
    ),
    (
        *("_engine.context", "_engine.engine", "_engine.state", "_engine.rebase", "_engine.steps", "_engine.packs"),
        *("_engine.attachments", "_engine.filters", "_engine.setups", "_engine.quota"),
        *("_engine.lease", "_engine.revisions", "_engine.policy_memory", "_engine.workspace"),
        *("_copying.workspace_copy", "_search.sealed_index_store"),
    ),
    ("_engine.recovery", "_engine.record_items", "_engine.creating", "_engine.packing"),
    (
        *("conversation", "listing", "_engine.verify", "_engine.deleting", "_engine.statistics"),
        *("_engine.finding", "_engine.saving", "_erasure.purging"),
        *("_erasure.maintenance", "_erasure.sweep", "_erasure.schedule", "_erasure.shutdown"),
        *("_erasure.checkpoint_copies", "_search.search"),
        *("_sealing.reencryption", "_sealing.rotation", "_sealing.quarantine"),
    ),
    ("store",),
    ("opening", "_copying.copy_store", "threads", "aio._append_queue"),
    ("aio.__init__",),
    ("recorder.*", "formats.*", "records.*"),
    ("__init__", "testing.*", "testing.conformance.*"),
    ("cli.*", "__main__"),
)
FOR_BACKENDS = {"_forks", "_own_files", "backend", "errors", "ids", "textindex", "_search.query"}
LAZY = {
    ("opening", "backends.memory"),
    ("opening", "backends.sqlite.__init__"),
    ("opening", "backends.postgres.__init__"),
    ("opening", "backends.postgres.server_report"),
    ("opening", "backends.postgres.schema"),
    ("opening", "backends.sqlite.retrying_reader"),
    ("_search.search", "backends.sqlite.fts"),
    ("cli._stores", "backends.sqlite.file_swap"),
    ("cli._checks", "backends.sqlite.foreign_files"),
}
NO_NAMES = {"utils", "util", "helpers", "helper", "common", "managers", "manager", "misc", "base", "core", "tools"}


@cache
def modules() -> dict[str, Path]:
    """Every module by its name inside the package: `backends.sqlite`, `testing.__init__`."""
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def read(path: Path) -> tuple[str | None, tuple[tuple[ast.Import | ast.ImportFrom, bool], ...]]:
    """Return the docstring of a module and its imports. The syntax tree itself is not cached: with all of them in
    memory, the garbage collector takes ten times as long as the parser."""
    parsed = ast.parse(path.read_text())
    return ast.get_docstring(parsed), tuple(statements(parsed))


def layer(module: str) -> int:
    folder = module.rpartition(".")[0]
    for number, names in enumerate(LAYERS):
        if module in names or (folder and f"{folder}.*" in names):
            return number
    raise AssertionError(f"{module} is not on the map: give it a layer in LAYERS")


def is_for_type_checkers(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    return (test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)) == "TYPE_CHECKING"


def statements(tree: ast.AST, *, inside: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The imports that run, and whether each stands inside a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):  # most of the nodes, and none of them holds an import
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, inside
        elif isinstance(node, ast.If) and is_for_type_checkers(node):
            for other in node.orelse:
                yield from statements(ast.Module([other], []), inside=inside)
        else:
            yield from statements(node, inside=inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def resolved(module: str, node: ast.Import | ast.ImportFrom, known: set[str]) -> Iterator[str]:
    """The modules of ours that an import names."""
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


def imports(
    found: Iterable[tuple[ast.Import | ast.ImportFrom, bool]], module: str, known: set[str]
) -> set[tuple[str, bool]]:
    """What a module imports of ours, and whether it does so inside a function."""
    return {(name, inside) for node, inside in found for name in resolved(module, node, known)}


@cache
def arrows() -> list[tuple[str, str, bool]]:
    known = modules()
    return [
        (module, name, inside)
        for module, path in known.items()
        for name, inside in sorted(imports(read(path)[1], module, set(known)))
    ]


def wrong(arrow: tuple[str, str, bool]) -> bool:
    module, name, inside = arrow
    if (module, name) in LAZY and inside:
        return False
    return layer(name) > layer(module)


def test_every_module_is_on_the_map_and_the_map_has_no_ghosts() -> None:
    there = modules()
    for module in there:
        layer(module)
    plain = {name for names in LAYERS for name in names if not name.endswith("*")}
    assert plain - set(there) <= {"aio"}  # it may not be there yet


def test_no_module_imports_from_a_later_layer() -> None:
    found = arrows()
    assert len(found) > 30  # the control: the imports are seen at all
    assert ("store", "backend", False) in found
    assert [f"{module} imports {name}" for module, name, inside in found if wrong((module, name, inside))] == []


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
        assert all(wrong(("model", name, inside)) for name, inside in found)
    for module, source, seen in (
        ("model", "if TYPE_CHECKING:\n    from .store import Store", set()),
        ("backends.memory", "from ..store import Store", {"store"}),
        ("backends.sqlite.__init__", "from .files import sync", {"backends.sqlite.files"}),
    ):
        assert {name for name, _ in imports(statements(ast.parse(source)), module, known)} == seen


def test_backends_know_only_the_protocol() -> None:
    """D17: so a third party's backend can be all that these are."""
    for module, name, _ in arrows():
        if module.startswith("backends."):
            assert name in FOR_BACKENDS or name.startswith("backends."), f"{module} imports {name}"


def test_only_opening_loads_backends_and_only_when_they_are_used() -> None:
    loaders = {
        (module, name, inside)
        for module, name, inside in arrows()
        if name.startswith("backends.") and not module.startswith(("backends.", "testing."))
    }
    assert {(module, name) for module, name, _ in loaders} == LAZY
    assert all(inside for _, _, inside in loaders)


def test_there_are_no_circles() -> None:
    """Modules beside each other may know each other, but not both ways round."""
    below: dict[str, set[str]] = {module: set() for module in modules()}
    for module, name, inside in arrows():
        if not inside and name != module:
            below[module].add(name)
    done: set[str] = set()
    while len(done) < len(below):
        free = {module for module, needs in below.items() if module not in done and needs <= done}
        assert free, f"in a circle: {sorted(set(below) - done)}"
        done |= free


def test_nothing_of_ours_needs_the_tests_tools() -> None:
    """pytest and hypothesis are needed by `hitherto.testing` alone."""
    for module, path in modules().items():
        if not module.startswith("testing."):
            foreign = {
                name.split(".")[0]
                for node, _ in read(path)[1]
                for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
                if not (isinstance(node, ast.ImportFrom) and node.level)
            }
            assert foreign.isdisjoint({"pytest", "hypothesis", "_pytest"}), module


@pytest.mark.parametrize("module", modules())
def test_every_module_has_a_home_of_its_own_and_opens_with_its_idea(module: str) -> None:
    """STYLE: no `utils`; a module opens with its idea in prose."""
    assert not NO_NAMES & {part.strip("_") for part in module.split(".")}
    said, _ = read(modules()[module])
    assert said, f"{module} does not say what it is"
    assert len(said.splitlines()) > 1, f"{module} says no more than one line"
