"""Opening a store: which place is meant, which URLs there are, and what `import hitherto` brings along.

No test here touches the user's home: it is another folder for the time of each test.

Requirements: C16, "where the data lies" in REQUIREMENTS, and STYLE on imports and `__all__`.
"""

import ast
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import platformdirs
import pytest

import hitherto
from hitherto import Message, opening
from hitherto.errors import CannotOpen, HithertoError, InvalidArgument

HEAVY = (
    "anthropic",
    "apsw",
    "click",
    "cryptography",
    "google.genai",
    "keyring",
    "msgspec",
    "obstore",
    "openai",
    "platformdirs",
    "psycopg",
    "rich",
    "starlette",
    "asyncio",
)


class World:
    """A home, a working directory and an environment of the test's own."""

    def __init__(self, root: Path) -> None:
        self.home, self.data, self.here = root / "home", root / "data", root / "work" / "project" / "deep"
        for folder in (self.home, self.here):
            folder.mkdir(parents=True)

    @property
    def last_resort(self) -> Path:
        return self.data / "hitherto" / "hitherto.db"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    for name, value in (("HOME", made.home), ("XDG_DATA_HOME", made.data)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("HITHERTO_STORE", raising=False)
    monkeypatch.chdir(made.here)
    return made


def opened() -> str:
    """Where `open()` without an argument finds or makes a store."""
    with hitherto.open() as store:
        store.start()
        return store.backend.info.location


# -- the order of places


def test_without_anything_the_user_s_data_directory_is_used(world: World) -> None:
    if sys.platform != "linux":
        pytest.skip("XDG_DATA_HOME is how Linux names the place")
    assert opening.find() == str(world.last_resort)
    assert opened() == str(world.last_resort)
    assert world.last_resort.stat().st_mode & 0o777 == 0o600
    assert world.last_resort.parent.stat().st_mode & 0o777 == 0o700
    assert list(world.here.iterdir()) == []


def test_the_data_directory_is_the_one_that_platformdirs_names(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME")
    expected = Path(platformdirs.user_data_dir("hitherto", appauthor=False)) / "hitherto.db"
    assert opening.find() == str(expected)
    assert str(expected).startswith(str(world.home))


@pytest.mark.parametrize("above", [0, 1, 2], ids=["here", "above", "two above"])
def test_a_hitherto_folder_here_or_above_comes_before_the_data_directory(world: World, above: int) -> None:
    folder = [world.here, *world.here.parents][above] / ".hitherto"
    folder.mkdir()
    assert opened() == str(folder / "hitherto.db")
    assert not world.last_resort.exists()


def test_the_nearest_hitherto_folder_wins(world: World) -> None:
    for folder in (world.here.parent, world.here):
        (folder / ".hitherto").mkdir()
        assert opened() == str(folder / ".hitherto" / "hitherto.db")


def test_a_file_named_hitherto_is_not_the_folder(world: World) -> None:
    (world.here / ".hitherto").write_text("x")
    (world.here.parent / ".hitherto").mkdir()
    assert opened() == str(world.here.parent / ".hitherto" / "hitherto.db")
    assert (world.here / ".hitherto").read_text() == "x"


def test_the_environment_comes_before_the_folder(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.here / ".hitherto").mkdir()
    named = world.home / "named.db"
    monkeypatch.setenv("HITHERTO_STORE", str(named))
    assert opened() == str(named)
    assert list((world.here / ".hitherto").iterdir()) == []


def test_the_environment_may_hold_a_url_or_a_tilde(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HITHERTO_STORE", f"sqlite://{world.home}/url.db")
    assert opened() == str(world.home / "url.db")
    monkeypatch.setenv("HITHERTO_STORE", "~/tilde.db")
    assert opened() == str(world.home / "tilde.db")
    monkeypatch.setenv("HITHERTO_STORE", "memory:")
    assert opened() == "memory:"


def test_an_empty_variable_is_as_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.here / ".hitherto").mkdir()
    monkeypatch.setenv("HITHERTO_STORE", "")
    assert opened() == str(world.here / ".hitherto" / "hitherto.db")


def test_the_argument_comes_before_everything(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.here / ".hitherto").mkdir()
    monkeypatch.setenv("HITHERTO_STORE", str(world.home / "named.db"))
    with hitherto.open(world.here / "argued.db") as store:
        assert store.backend.info.location == str(world.here / "argued.db")
    assert sorted(p.name for p in world.here.iterdir()) == [".hitherto", "argued.db"]
    assert list(world.home.iterdir()) == []


@pytest.mark.parametrize("place", ["argument", "environment", "folder", "data directory"])
def test_a_place_that_cannot_be_used_is_an_error_and_no_other_is_taken(
    world: World, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """C16: never a silent fallback."""
    argument: str | None = None
    if place == "argument":
        argument = str(world.home)
    elif place == "environment":
        monkeypatch.setenv("HITHERTO_STORE", str(world.home))
    elif place == "folder":
        (world.here / ".hitherto" / "hitherto.db").mkdir(parents=True)
    else:
        world.last_resort.mkdir(parents=True)
    before = sorted(world.home.parent.rglob("*"))
    with pytest.raises(CannotOpen):
        hitherto.open(argument)
    assert sorted(world.home.parent.rglob("*")) == before


def test_find_can_be_asked_about_another_environment_and_folder(world: World, tmp_path: Path) -> None:
    (tmp_path / "other" / ".hitherto").mkdir(parents=True)
    assert opening.find({}, tmp_path / "other" / "below") == str(tmp_path / "other" / ".hitherto" / "hitherto.db")
    assert opening.find({"HITHERTO_STORE": "x"}, tmp_path / "other") == "x"
    assert list((tmp_path / "other" / ".hitherto").iterdir()) == []  # finding makes nothing


# -- paths and URLs


def test_a_path_may_be_text_or_a_path_relative_or_with_a_tilde(world: World) -> None:
    for given, meant in (
        ("here.db", world.here / "here.db"),
        (Path("there.db"), world.here / "there.db"),
        ("~/home.db", world.home / "home.db"),
        (Path("~/path.db"), world.home / "path.db"),
        ("a/b/c.db", world.here / "a" / "b" / "c.db"),
        (str(world.here / "with space ü.db"), world.here / "with space ü.db"),
    ):
        with hitherto.open(given) as store:
            assert store.backend.info.location == str(meant)
        assert meant.is_file()


def test_a_store_stays_where_it_is_when_the_directory_changes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with hitherto.open("here.db") as store:
        monkeypatch.chdir(world.home)
        store.start().append(Message.user("x"))
        assert store.stats().messages == 1
    assert (world.here / "here.db").is_file()
    assert list(world.home.iterdir()) == []


@pytest.mark.parametrize("name", ["plain.db", "with space.db", "ü.db", "100%.db", "a?b.db", "a#b.db"])
def test_a_sqlite_url_names_an_absolute_path(world: World, name: str) -> None:
    path = world.here / name
    url = path.as_uri().replace("file://", "sqlite://")
    with hitherto.open(url) as store:
        assert store.backend.info.location == str(path)
    assert path.is_file()


@pytest.mark.parametrize("url", ["memory:", "memory://"])
def test_a_store_in_memory_writes_nothing(world: World, url: str) -> None:
    with hitherto.open(url) as store:
        store.start().append(Message.user("x"))
        assert not store.backend.info.durable
    assert list(world.home.parent.rglob("*.db")) == []


def test_two_stores_in_memory_are_two(world: World) -> None:
    with hitherto.open("memory:") as one, hitherto.open("memory:") as two:
        one.start()
        assert two.stats().conversations == 0


@pytest.mark.parametrize(
    "url",
    [
        "postgres://user:Xylophon-7391@host/db",
        "http://host/db",
        "file:///tmp/x.db",
        "s3://bucket/key",
        "sqlite3:///tmp/x.db",
        "://x",
        "1x://x",
    ],
)
def test_an_unknown_scheme_is_refused_without_showing_what_it_holds(world: World, url: str) -> None:
    """A URL may have a password in it."""
    with pytest.raises(InvalidArgument) as caught:
        hitherto.open(url)
    assert "Xylophon-7391" not in f"{caught.value} {caught.value.hint}"
    assert caught.value.hint
    assert list(world.here.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://relative.db",
        "sqlite://relative/path.db",
        "sqlite://",
        "sqlite:///tmp/x.db?mode=ro",
        "sqlite:///tmp/x.db#part",
        "sqlite://user:Xylophon-7391@host/x.db",
        "sqlite://[/x.db",
        "sqlite://[::1]/x.db",
    ],
)
def test_a_sqlite_url_that_is_not_an_absolute_path_is_refused(world: World, url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        hitherto.open(url)
    assert "Xylophon-7391" not in f"{caught.value} {caught.value.hint}"
    assert list(world.here.iterdir()) == []


@pytest.mark.parametrize("location", ["sqlite:x.db", "memory:x", ":memory:", "sqlite:/x.db"])
def test_what_looks_like_a_url_is_not_quietly_a_file_of_that_name(world: World, location: str) -> None:
    """`:memory:` is how SQLite itself spells a store that is not kept; a file of that name is never meant."""
    with pytest.raises(HithertoError):
        hitherto.open(location)
    assert list(world.here.iterdir()) == []


@pytest.mark.parametrize("location", ["", 5, b"bytes.db", b"", ["x.db"], True], ids=repr)
def test_what_is_not_a_place_is_refused(world: World, location: Any) -> None:
    with pytest.raises(HithertoError):
        hitherto.open(location)
    assert list(world.here.iterdir()) == []


def test_the_home_of_somebody_who_does_not_exist_is_an_error(world: World) -> None:
    with pytest.raises(HithertoError):
        hitherto.open("~nobody-of-that-name/chats.db")
    assert list(world.here.iterdir()) == []


@pytest.mark.parametrize(
    "given",
    [
        {"workspace": ""},
        {"workspace": None},
        {"workspace": 5},
        {"workspace": b"x"},
        {"workspace": "half \ud83d"},
        {"timeout_seconds": float("nan")},
        {"timeout_seconds": -1},
        {"timeout_seconds": "30"},
        {"timeout_seconds": None},
        {"max_write_bytes": -1},
        {"max_write_bytes": "10"},
        {"vfs": "no such vfs"},
    ],
    ids=repr,
)
def test_options_that_make_no_sense_are_refused_when_the_store_is_opened(world: World, given: dict[str, Any]) -> None:
    """Not when the first write has to wait: a timeout that is not a number would then wait for ever."""
    with pytest.raises(HithertoError):
        hitherto.open("chats.db", **given).close()


def test_a_store_that_cannot_be_set_up_is_closed_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    from hitherto.backends.sqlite import SqliteBackend

    def close(self: SqliteBackend) -> None:
        closed.append(self)
        original(self)

    def clock() -> int:
        raise ZeroDivisionError

    original = SqliteBackend.close
    monkeypatch.setattr(SqliteBackend, "close", close)
    with pytest.raises(ZeroDivisionError):
        hitherto.open("chats.db", clock=clock)
    assert len(closed) == 1
    with hitherto.open("chats.db") as store:
        assert store.verify().ok


# -- what an import brings along


def modules_after(statement: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after this."""
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{script}"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split())


def test_importing_hitherto_loads_nothing_heavy() -> None:
    loaded = modules_after("import hitherto")
    assert "hitherto" in loaded
    assert loaded.isdisjoint(HEAVY)
    assert {name for name in loaded if name.startswith("hitherto.")} == set()


def test_a_name_brings_its_own_module_and_not_the_backends() -> None:
    loaded = modules_after("import hitherto; hitherto.NotFound")
    assert "hitherto.errors" in loaded
    assert loaded.isdisjoint(HEAVY)
    loaded = modules_after("import hitherto; hitherto.open('memory:').start()")
    assert {"hitherto.store", "msgspec"} <= loaded  # the control: what is needed is seen
    assert loaded.isdisjoint(set(HEAVY) - {"msgspec"})


def test_asking_for_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        getattr(hitherto, "nothing_of_that_name")  # noqa: B009  # mypy knows that it is not there
    assert not hasattr(hitherto, "_private")


# -- the public names


def lazy_names() -> set[str]:
    return {name for names in hitherto._MODULES.values() for name in names}


def imported_for_type_checkers() -> dict[str, set[str]]:
    """What `__init__` imports under `if TYPE_CHECKING`, by module."""
    tree = ast.parse(Path(hitherto.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {
        str(node.module): {alias.name for alias in node.names}
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    }


def test_all_is_what_is_loaded_lazily_and_the_version() -> None:
    assert set(hitherto.__all__) == lazy_names() | {"__version__"}
    assert len(hitherto.__all__) == len(set(hitherto.__all__))
    assert list(hitherto.__all__) == sorted(hitherto.__all__)


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    assert imported_for_type_checkers() == {module: set(names) for module, names in hitherto._MODULES.items()}


@pytest.mark.parametrize("name", sorted(lazy_names()))
def test_every_public_name_is_there_and_documented(name: str) -> None:
    value = getattr(hitherto, name)
    assert value is getattr(hitherto, name)
    assert value.__name__ == name
    assert value.__module__.startswith("hitherto.")
    own = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
    assert own, f"{name} has no docstring of its own"


@pytest.mark.parametrize("name", ["Store", "Conversation", "MessageSaver", "MessageGetter", "MessageLister"])
def test_every_public_method_is_documented(name: str) -> None:
    kind = getattr(hitherto, name)
    functions = [f for n, f in inspect.getmembers(kind, inspect.isfunction) if not n.startswith("_")]
    said_by_the_name = {"rename", "release", "ensure_open", "fresh_row", "message_row"}
    assert [f.__name__ for f in functions if not f.__doc__ and f.__name__ not in said_by_the_name] == []


def test_dir_lists_every_public_name_before_it_is_used() -> None:
    script = "import hitherto; print(*dir(hitherto))"
    names = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    assert set(hitherto.__all__) <= set(names.split())
    assert set(hitherto.__all__) <= set(dir(hitherto))


def test_the_version_is_the_one_that_is_installed() -> None:
    from importlib.metadata import version

    assert hitherto.__version__ == version("hitherto")


def test_star_import_gives_the_public_names() -> None:
    found: dict[str, object] = {}
    exec("from hitherto import *", found)
    assert set(hitherto.__all__) <= set(found)


def test_nothing_was_written_into_the_directory_the_tests_run_in() -> None:
    """The guard of this module: the world of each test is gone, and nothing of ours is here."""
    assert not {name for name in os.listdir() if name.endswith(".db") or name.startswith(("sqlite", "memory", ":"))}
