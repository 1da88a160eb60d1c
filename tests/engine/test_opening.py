"""Opening a store: which place is meant, which URLs there are, and what `import hitherto` brings along.

No test here touches the user's home: it is another folder for the time of each test.

Requirements: C16, "where the data lies" in REQUIREMENTS, and STYLE on imports and `__all__`.
"""

import ast
import inspect
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import apsw
import platformdirs
import pytest

import hitherto
from hitherto import Message
from hitherto._system import locations
from hitherto.backends.sqlite import retrying_reader
from hitherto.errors import (
    Busy,
    CannotOpen,
    Damaged,
    HithertoError,
    InvalidArgument,
    KeyUnavailable,
    NotAStore,
    NotFound,
    ReadOnly,
)
from tests.support.parts import background_of

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
    assert locations.find() == str(world.last_resort)
    assert opened() == str(world.last_resort)
    assert world.last_resort.stat().st_mode & 0o777 == 0o600
    assert world.last_resort.parent.stat().st_mode & 0o777 == 0o700
    assert list(world.here.iterdir()) == []


def test_the_data_directory_is_the_one_that_platformdirs_names(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_DATA_HOME")
    expected = Path(platformdirs.user_data_dir("hitherto", appauthor=False)) / "hitherto.db"
    assert locations.find() == str(expected)
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
    assert sorted(p.name for p in world.here.iterdir()) == [".hitherto", "argued.db", "argued.db-ballast"]
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
    assert locations.find({}, tmp_path / "other" / "below") == str(tmp_path / "other" / ".hitherto" / "hitherto.db")
    assert locations.find({"HITHERTO_STORE": "x"}, tmp_path / "other") == "x"
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
        "mysql://user:Xylophon-7391@host/db",
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


# -- reading only


def traces(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything below a folder: sizes, times and content."""
    found = sorted(path for path in folder.rglob("*"))
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.stat().st_mode, _content(path)) for path in found
    }


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def filled(path: Path, key: bytes | None = None) -> str:
    """A store with one conversation, closed again."""
    with hitherto.open(path, key=key) as store:
        talk = store.start(title="Kept", system_prompt="Be terse.", project="/somewhere")
        talk.extend([Message.user("Wo ist der Xylophonspieler?"), Message.assistant("Im Garten.")])
        return talk.id


def everything_that_reads(store: hitherto.Store, id: str) -> list[str]:
    talk = store.conversation(id[:8])
    assert talk.setup.system_prompt == "Be terse."
    assert store.latest() is not None
    assert store.stats().messages == 2
    assert [hit.conversation for hit in store.search("Xylophonspieler")] == [id]
    assert store.verify().ok
    return [message.text for message in talk.thread()]


@pytest.mark.parametrize("key", [None, bytes(range(32))], ids=["plain", "sealed"])
def test_reading_only_leaves_no_trace(world: World, key: bytes | None) -> None:
    """C13: not even the files that SQLite puts beside a database."""
    path = world.here / "with space ü 100%?#.db"
    id = filled(path, key)
    before = traces(world.here)
    with hitherto.open(path, key=key, read_only=True) as store:
        assert everything_that_reads(store, id) == ["Wo ist der Xylophonspieler?", "Im Garten."]
        assert store.read_only
        assert traces(world.here) == before
    assert traces(world.here) == before
    with hitherto.open(path, key=key) as store:  # the control: opening it otherwise does leave one
        store.start()
    assert traces(world.here) != before


def test_a_search_index_that_is_there_is_left_alone_by_who_only_reads(world: World) -> None:
    id = filled(world.here / "a.db")
    with hitherto.open("a.db") as store:
        assert store.search("Garten")
    before = traces(world.here)
    assert "a.db-search" in before
    with hitherto.open("a.db", read_only=True) as store:
        everything_that_reads(store, id)
    assert traces(world.here) == before


def test_reading_only_sees_what_another_process_has_not_moved_into_the_file_yet(world: World) -> None:
    """What is in the WAL is read through the files that the writer has put beside the store, and those alone."""
    id = filled(world.here / "a.db")
    script = (
        "import sys, hitherto\n"
        "store = hitherto.open('a.db', maintenance=False)\n"
        "store.conversation(sys.argv[1]).append(hitherto.Message.user('noch eine'))\n"
        "print('there', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", script, id]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "there\n"
        before = traces(world.here)
        assert len(before["a.db-wal"][2]) > 0
        with hitherto.open("a.db", read_only=True) as store:
            assert [m.text for m in store.conversation(id).thread()][2:] == ["noch eine"]
        assert traces(world.here) == before
        writer.kill()
    before = traces(world.here)  # it left everything behind
    assert len(before["a.db-wal"][2]) > 0
    with hitherto.open("a.db", read_only=True) as store:
        assert [m.text for m in store.conversation(id).thread()][2:] == ["noch eine"]
    assert traces(world.here) == before


def test_changes_that_lie_apart_and_cannot_be_read_without_writing_are_said_not_passed_over(world: World) -> None:
    id = filled(world.here / "a.db")
    script = (
        "import os, sys, hitherto\n"
        "store = hitherto.open('a.db')\n"
        "store.conversation(sys.argv[1]).append(hitherto.Message.user('x'))\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script, id], check=True, timeout=60)
    (world.here / "a.db-shm").unlink()
    before = traces(world.here)
    with pytest.raises(CannotOpen) as caught:
        hitherto.open("a.db", read_only=True)
    assert caught.value.hint
    assert traces(world.here) == before


def test_who_only_reads_sees_what_is_written_later_and_never_a_mixture(world: World) -> None:
    id = filled(world.here / "a.db")
    with hitherto.open("a.db", read_only=True) as reader:
        assert reader.stats().messages == 2
        with hitherto.open("a.db") as writer:
            writer.conversation(id).append(Message.user("spät"))
        assert reader.conversation(id).thread()[-1].text == "spät"
        lease = reader.backend._connection()  # type: ignore[attr-defined]
        with hitherto.open("a.db") as writer:
            lease.__enter__()  # somebody reads
            writer.conversation(id).append(Message.user("mitten hinein"))
            writer.backend.scrub()  # moves it into the file
            with pytest.raises(Busy):
                lease.__exit__(None, None, None)
        assert reader.conversation(id).thread()[-1].text == "mitten hinein"


def test_whatever_would_write_is_refused_at_once_by_who_only_reads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = filled(world.here / "a.db")
    before = traces(world.here)
    monkeypatch.setattr(retrying_reader, "patience", lambda _: lambda _: pytest.fail("it waits"))
    with hitherto.open("a.db", read_only=True) as store:
        talk = store.conversation(id)
        for write in (
            store.start,
            lambda: talk.append(Message.user("x")),
            lambda: talk.append(Message.user(hitherto.Block.image(b"x" * 100_000, "image/png"))),
            lambda: talk.rename("x"),
            talk.hold,
            lambda: store.purge(talk, reason="user-requested"),
            lambda: store.delete([message.id for message in talk.thread()][-1:]),
        ):
            with pytest.raises(ReadOnly):
                write()
        store.resume_writing()  # the file itself refuses it, too
        with pytest.raises(ReadOnly):
            talk.append(Message.user("x"))
        assert background_of(store)._thread is None
    assert traces(world.here) == before


def test_damage_that_is_found_while_only_reading_is_told_at_once_and_noted_by_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    id = filled(world.here / "a.db")
    connection = apsw.Connection(str(world.here / "a.db"))
    connection.execute("UPDATE message SET body = zeroblob(length(body))")
    connection.close()
    before = traces(world.here)
    monkeypatch.setattr(retrying_reader, "patience", lambda _: lambda _: pytest.fail("it waits"))
    with hitherto.open("a.db", read_only=True) as store, pytest.raises(Damaged):
        store.conversation(id).thread()
    assert "quarantined: " in caplog.text
    assert "could not be put" not in caplog.text
    assert traces(world.here) == before


@pytest.mark.parametrize("what", ["missing", "folder", "empty", "short", "other", "memory", "workspace"])
def test_what_is_not_there_is_an_error_for_who_only_reads_and_is_not_made(world: World, what: str) -> None:
    place, workspace, error = str(world.here / "deep" / "a.db"), "default", CannotOpen
    kinds: dict[str, type[HithertoError]] = {"empty": NotAStore, "short": NotAStore, "other": NotAStore}
    if what == "folder":
        place = str(world.here)
    elif what in ("empty", "short", "other"):
        place = str(world.here / "file")
        Path(place).write_bytes({"empty": b"", "short": b"x", "other": b"no database " * 100}[what])
    elif what == "memory":
        place = "memory:"
    elif what == "workspace":
        place, workspace = str(world.here / "a.db"), "nobody's"
        filled(Path(place))
        kinds[what] = NotFound
    before = traces(world.here)
    with pytest.raises(kinds.get(what, error)):
        hitherto.open(place, workspace=workspace, read_only=True)
    assert traces(world.here) == before


def test_a_file_in_a_folder_that_may_not_be_written_can_be_read(world: World) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    id = filled(world.here / "a.db")
    (world.here / "a.db").chmod(0o400)
    world.here.chmod(0o500)
    try:
        with hitherto.open("a.db", read_only=True) as store:
            everything_that_reads(store, id)
    finally:
        world.here.chmod(0o700)


def test_a_sealed_store_is_not_read_without_its_key(world: World) -> None:
    filled(world.here / "a.db", bytes(range(1, 33)))
    before = traces(world.here)
    for key in (None, bytes(range(32))):
        with pytest.raises(KeyUnavailable):
            hitherto.open("a.db", key=key, read_only=True)
    assert traces(world.here) == before


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


FIRST = [
    "_engine", "_engine.appending", "_engine.attachments", "_engine.bodies", "_engine.breaker", "_engine.committer",
    "_engine.compression", "_engine.context", "_engine.creating", "_engine.describing", "_engine.engine",
    "_engine.filters", "_engine.finding", "_engine.items", "_engine.lease", "_engine.packing", "_engine.packs",
    "_engine.policy_memory", "_engine.process", "_engine.quota", "_engine.reading", "_engine.retry",
    "_engine.revisions", "_engine.selection", "_engine.setups", "_engine.signals", "_engine.state", "_engine.steps",
    "_engine.typed_items", "_engine.workspace", "_erasure", "_erasure.maintenance", "_erasure.purge",
    "_erasure.purging", "_erasure.schedule", "_erasure.shutdown", "_sealing", "_sealing.codec",
    "_sealing.quarantine", "_search", "_search.search", "_system", "_system.forks", "_system.locations",
    "_system.own_files", "accountability", "attachment", "backend", "conversation", "errors", "events", "ids", "items",
    "listing", "model", "opening", "reports", "store", "telemetry", "textindex",
]  # fmt: skip


def test_opening_a_store_and_a_message_are_named_with_few_modules() -> None:
    """Everybody waits for these, at every start: whoever adds one looks first whether it can come later."""
    loaded = modules_after("import apsw, msgspec; import hitherto; hitherto.open; hitherto.Message")
    assert {name.removeprefix("hitherto.") for name in loaded if name.startswith("hitherto.")} <= set(FIRST)
    rare = {"heapq", "json", "base64", "hashlib", "ssl", "queue", "urllib.parse", "asyncio", "uuid", "zstandard"}
    assert loaded & rare <= modules_after("import apsw, msgspec") & rare


def test_asking_for_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        getattr(hitherto, "nothing_of_that_name")  # noqa: B009  # mypy knows that it is not there
    assert not hasattr(hitherto, "_private")


# -- the public names


def lazy_names() -> set[str]:
    return {name for names in hitherto._HOMES.values() for name in names}


def public_names() -> list[tuple[str, str]]:
    """Each module and a name in it."""
    return [(module, name) for module in hitherto._MODULES for name in getattr(hitherto, module).__all__]


def imported_for_type_checkers() -> dict[str, set[str]]:
    """What `__init__` imports under `if TYPE_CHECKING`, by module."""
    tree = ast.parse(Path(hitherto.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    found: dict[str, set[str]] = {}
    for node in (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)):
        found.setdefault(str(node.module), set()).update(alias.name for alias in node.names)
    return found


def test_all_is_what_is_loaded_lazily_and_the_version() -> None:
    assert set(hitherto.__all__) == lazy_names() | {"__version__"}
    assert len(hitherto.__all__) == len(set(hitherto.__all__))
    assert list(hitherto.__all__) == sorted(hitherto.__all__)
    assert len(hitherto.__all__) <= 23  # the others are in their modules


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    found = imported_for_type_checkers()
    assert found.pop("None") == set(hitherto._MODULES)
    found["errors"].remove("*")
    assert found == {module: set(names) for module, names in hitherto._HOMES.items()}


def test_each_name_is_also_in_its_own_module() -> None:
    homes = ((module, name) for module, names in hitherto._HOMES.items() for name in names)
    assert [name for module, name in homes if name not in import_module(f"hitherto.{module}").__all__] == []


@pytest.mark.parametrize("name", hitherto._MODULES)
def test_modules_are_loaded_when_they_are_named(name: str) -> None:
    script = f"import hitherto, sys; print('hitherto.{name}' in sys.modules); hitherto.{name}; print(True)"
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert run.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("name", sorted(lazy_names()))
def test_every_name_at_the_top_is_there(name: str) -> None:
    assert getattr(hitherto, name) is getattr(hitherto, name)
    assert getattr(hitherto, name).__name__ == name


@pytest.mark.parametrize(("module", "name"), public_names())
def test_every_public_name_is_documented(module: str, name: str) -> None:
    value = getattr(getattr(hitherto, module), name)
    if not isinstance(value, type | FunctionType):
        return  # an alias of a type, or a constant
    assert value.__name__ == name
    assert value.__module__.startswith("hitherto.")
    own = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
    assert own, f"{name} has no docstring of its own"


@pytest.mark.parametrize("name", ["Store", "Conversation", "MessageSaver", "MessageGetter", "MessageLister"])
def test_every_public_method_is_documented(name: str) -> None:
    kind = getattr(hitherto, name, None) or getattr(hitherto.threads, name)
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


def test_a_link_to_a_store_is_that_store_also_while_others_write(tmp_path: Path) -> None:
    place, link = tmp_path / "chats.db", tmp_path / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(place)
    with hitherto.open(place) as store:
        store.start(title="Kept").append(Message.user("hi"))
        with hitherto.open(link, read_only=True) as same:  # most of it is in the WAL, beside the file
            assert [info.title for info in same.conversations()] == ["Kept"]
    assert os.listdir(link.parent) == ["link.db"]


def test_without_create_nothing_is_made(tmp_path: Path) -> None:
    place = tmp_path / "chats.db"
    with pytest.raises(CannotOpen):
        hitherto.open(place, create=False)
    with pytest.raises(CannotOpen):
        hitherto.open("memory:", create=False)
    assert list(tmp_path.iterdir()) == []
    hitherto.open(place).close()
    with hitherto.open(place, create=False) as store:
        store.start()
    with pytest.raises(NotFound, match="typo"):
        hitherto.open(place, workspace="typo", create=False)
    with hitherto.open(place, workspace="meant"):
        pass
    hitherto.open(place, workspace="meant", create=False).close()


def test_whoever_only_reads_is_patient_with_those_who_open_write_and_close(tmp_path: Path) -> None:
    """Each of these makes what is being read unbelievable, or unreadable, for a moment."""
    place = tmp_path / "chats.db"
    with hitherto.open(place) as store:
        talk = store.start()
        talk.extend([Message.user(f"message {n}") for n in range(300)])
    come_and_go = (
        "import sys, hitherto; from hitherto import Message\n"
        "while True:\n"
        "    with hitherto.open(sys.argv[1]) as store:\n"
        "        store.conversation(sys.argv[2]).append(Message.user('more'))\n"
        "    print('.', end='', flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", come_and_go, place, talk.id], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    try:
        writer.stdout.read(1)  # it has begun
        for _ in range(60):
            with hitherto.open(place, read_only=True) as reader:
                assert reader.stats().messages >= 300
                assert len(reader.conversation(talk.id).branches()) == 1
                assert reader.verify().ok
        assert writer.poll() is None
    finally:
        writer.kill()
        writer.stdout.close()
        writer.wait()
