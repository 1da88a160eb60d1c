"""`hitherto copy` and its rows: from a file to a server and back, with keys and without them, one workspace or all.

Requirements: C15, D17.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import hitherto
from hitherto import Message
from hitherto.records import Records

from ..support.command import World
from ..support.server import Server, find_binaries

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL here")
    try:
        server = Server(binaries)
    except PermissionError:
        pytest.skip(f"PostgreSQL does not run as root, and others may not run {binaries}")
    yield server
    server.stop()


def fill(world: World, count: int = 3, *, key: bytes | None = None, workspace: str = "default") -> list[str]:
    with hitherto.open(world.place, key=key, workspace=workspace) as store:
        for n in range(count):
            store.start(title=f"t{n}").extend([Message.user(f"u{n}"), Message.assistant(f"a{n}")])
        return [m.id for m in store.messages()]


def ids(place: str | Path, *, key: bytes | None = None, workspace: str = "default") -> list[str]:
    with hitherto.open(place, key=key, workspace=workspace, create=False) as store:
        assert store.verify().ok
        return [m.id for m in store.messages()]


def key_file(world: World, key: bytes = KEY) -> str:
    path = world.here / f"key-{key[0]}"
    path.touch(0o600)
    path.write_bytes(key)
    return f"file:{path}"


def test_from_a_file_to_a_server_and_back_the_messages_keep_their_ids(world: World, server: Server) -> None:
    known = fill(world, key=KEY)
    there = world.command("copy", str(world.place), server.url, "--workspace", "acme", "--key", key_file(world))
    assert there.returncode == 0, there.stderr
    assert there.stderr == (
        "SRC has no workspace acme: its only one, default, is copied\n"
        "3 conversations, 6 messages copied; all rows compared, verified\n"
    )
    assert ids(server.url, key=KEY, workspace="acme") == known
    back = world.command("copy", server.url, "back.db", "--workspace", "acme")  # without the key
    assert back.returncode == 0, back.stderr
    assert back.stderr == "3 conversations, 6 messages copied; all rows compared, sealed, and not opened\n"
    assert ids(world.here / "back.db", key=KEY, workspace="acme") == known


def test_a_workspace_that_the_environment_names_is_that_of_the_target_too(world: World) -> None:
    known = fill(world)
    world.env["HITHERTO_WORKSPACE"] = "acme"
    done = world.command("copy", str(world.place), "copy.db")
    assert done.returncode == 0, done.stderr
    assert "SRC has no workspace acme: its only one, default, is copied\n" in done.stderr
    assert ids(world.here / "copy.db", workspace="acme") == known
    assert world.command("copy", str(world.place), "all.db", "--all-workspaces").returncode == 0
    assert ids(world.here / "all.db") == known


def test_who_names_a_workspace_that_is_not_there_is_told_of_the_only_one(world: World) -> None:
    fill(world)
    done = world.command("stats", "--workspace", "misspelt")
    assert (done.returncode, "its only one is 'default'" in done.stderr) == (4, True), done.stderr


def test_a_program_reads_what_came_of_it(world: World) -> None:
    fill(world)
    given = ["copy", str(world.place), "copy.db", "--to-workspace", "w", "--json"]
    assert json.loads(world.command(*given, "--more").stdout) == {
        "source": str(world.place),
        "workspace": "default",
        "target": "copy.db",
        "to_workspace": "w",
        "way": "rows",
        "conversations": 3,
        "messages": 6,
        "unchanged": 0,
        "compared": 0,
        "different": [],
        "finished": False,
        "opened": False,
        "problems": [],
    }
    closed = world.command("conversation", "list", "--store", "copy.db", "--workspace", "w")
    assert closed.returncode != 0
    assert "a copy into this workspace is not finished" in closed.stderr
    finished = json.loads(world.command(*given).stdout)
    counts = [finished[name] for name in ("conversations", "unchanged", "compared", "finished", "opened")]
    assert counts == [0, 3, 3, True, True]
    fill(world, 1)
    grown = json.loads(world.command(*given).stdout)
    assert [grown[name] for name in ("way", "conversations", "messages", "unchanged", "missing")] == [
        *("messages", 1, 2, 3),
        [],
    ]


def test_a_workspace_is_meant_in_both_unless_each_has_its_own(world: World) -> None:
    fill(world, 1, workspace="one")
    source = str(world.place)
    assert world.command("copy", source, "a.db", "--workspace", "one").stderr.startswith("1 conversation, ")
    assert len(ids(world.here / "a.db", workspace="one")) == 2
    assert world.command("copy", source, "b.db", "--from-workspace", "one", "--to-workspace", "two").returncode == 0
    assert len(ids(world.here / "b.db", workspace="two")) == 2
    assert world.command("copy", source, "c.db", "--workspace", "w").returncode == 0  # there is no other
    assert len(ids(world.here / "c.db", workspace="w")) == 2
    assert world.command("copy", source, "d.db").returncode == 4  # none was named, and it has no default
    fill(world, 1, workspace="two")
    refused = world.command("copy", source, "e.db", "--workspace", "w")  # which of the two?
    assert refused.returncode == 4
    assert not (world.here / "d.db").exists()
    assert not (world.here / "e.db").exists()


def test_all_workspaces_go_at_once(world: World, server: Server) -> None:
    known = {name: fill(world, n, workspace=name) for n, name in enumerate(("default", "one", "two"), 1)}
    done = world.command("copy", str(world.place), "copy.db", "--all-workspaces", "--json")
    assert done.returncode == 0
    assert [json.loads(line)["to_workspace"] for line in done.stdout.splitlines()] == list(known)
    assert {name: ids(world.here / "copy.db", workspace=name) for name in known} == known
    for given in (["--workspace", "one"], ["--to-workspace", "w"]):
        assert world.command("copy", str(world.place), "other.db", "--all-workspaces", *given).returncode == 2
    of_a_server = world.command("copy", server.url, "other.db", "--all-workspaces")
    assert of_a_server.returncode == 2
    assert "one by one" in of_a_server.stderr


def test_what_is_sealed_stays_so_unless_it_is_asked_for_otherwise(world: World) -> None:
    known = fill(world, 2, key=KEY)
    source, ours, theirs = str(world.place), key_file(world), key_file(world, OTHER)
    for n, given in enumerate(([], ["--key", ours], ["--key", ours, "--to-key", ours], ["--to-key", ours])):
        assert world.command("copy", source, f"{n}.db", *given).returncode == 0, given
        assert ids(world.here / f"{n}.db", key=KEY) == known
    for n, given in enumerate((["--to-key", theirs], ["--in-clear"])):
        locked = world.command("copy", source, f"locked-{n}.db", *given)
        assert locked.returncode == 6, given
        assert not (world.here / f"locked-{n}.db").exists()
        assert world.command("copy", source, f"new-{n}.db", "--key", ours, *given).returncode == 0
    assert len(ids(world.here / "new-0.db", key=OTHER)) == len(ids(world.here / "new-1.db")) == 4
    wrong = world.command("copy", source, "wrong.db", "--key", theirs)
    assert wrong.returncode == 6
    into_plain = world.command("copy", source, "new-1.db", "--key", ours)
    assert into_plain.returncode == 6
    assert "--in-clear" in into_plain.stderr
    unopened = world.command("copy", source, "new-0.db")
    assert unopened.returncode == 2
    assert "the rows cannot be copied as they are" in unopened.stderr
    assert not (world.here / "wrong.db").exists()


def test_a_sanitiser_is_not_gone_around(world: World) -> None:
    secret = "gh" + "p_" + "a1B2c3D4e5F6g7H8i9J0" + "k1L2m3N4o5P6q7R8"
    with world.store() as store:
        store.start().append(Message.user(f"token={secret}"))
    done = world.command("copy", str(world.place), "clean.db", "--json", HITHERTO_SANITISE="secrets")
    assert json.loads(done.stdout)["way"] == "messages"
    refused = world.command("copy", str(world.place), "more.db", "--more", HITHERTO_SANITISE="secrets")
    assert refused.returncode == 2
    assert not any(secret.encode() in file.read_bytes() for file in world.here.glob("clean.db*"))


def test_a_record_that_must_not_leave_stays(world: World, server: Server) -> None:
    with world.store() as store:
        kept = Records(store).create(messages=[{"role": "user", "content": "x"}], privacy={"exportable": False})
    for target in (server.url, "copy.db"):
        done = world.command("copy", str(world.place), target, "--to-workspace", "kept")
        assert done.returncode == 5
        assert kept.conversation_id in done.stderr
    with pytest.raises(hitherto.NotFound):
        hitherto.open(server.url, workspace="kept", create=False)
    assert os.listdir(world.here) == []


def test_a_password_is_never_shown(world: World, server: Server) -> None:
    fill(world, 1)
    parts = server.url.removeprefix("postgresql://")
    url = f"postgresql://ada:open-sesame@{parts.partition('?')[0]}?host={server.folder}"
    nobody = world.command("copy", str(world.place), url, "--json")
    assert nobody.returncode != 0
    there = server.url.replace("user=postgres", "user=postgres&password=open-sesame")
    fine = world.command("copy", str(world.place), there, "--to-workspace", "p", "--json")
    assert fine.returncode == 0
    for done in (nobody, fine):
        assert "sesame" not in done.stdout + done.stderr


def test_restoring_tells_a_program_what_it_did(world: World) -> None:
    fill(world, 1)
    world.command("backup", "b.db")
    done = world.command("restore", "b.db", "--replace", "--yes", "--json")
    told = json.loads(done.stdout)
    assert (told["store"], told["file"]) == (str(world.place), str(world.here / "b.db"))
    assert Path(told["kept"]).exists()
    world.place.unlink()
    assert json.loads(world.command("restore", "b.db", "--json").stdout)["kept"] is None
