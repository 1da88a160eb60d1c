"""Freeze stores of the format that this version writes, so that later versions can prove that they open them.

    python scripts/freeze_stores.py

It makes the folder `tests/data/stores/sqlite-<steps>-postgresql-<steps>`: an archive of each SQLite store, a dump of a
PostgreSQL database, and `holds.json`, which says what is in them (`tests/support/frozen_stores.py` describes it). Run
it once for each format, with the code that is released with it, and commit what it made; it never writes over a folder
that is there.

Times, texts, conversations' ids and keys are the same each time; ids of messages, and what is sealed, are random.
"""

import hashlib
import itertools
import json
import lzma
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import hitherto
from hitherto import Block, Message, RetentionPolicy, Store
from hitherto.attachment import Attachment
from hitherto.backends.postgres import schema as postgresql_schema
from hitherto.backends.sqlite import schema as sqlite_schema
from hitherto.chat import Client, Config, new_client
from hitherto.model import Usage
from hitherto.records import Records
from tests.support.databases import Database, new_database
from tests.support.frozen_stores import DUMP, FOLDER, HOLDS, START, Kept, described, packed, unpacked
from tests.support.provider import Asked, Reply, chat_events, provider
from tests.support.rotation_processes import run, small_steps
from tests.support.server import find_binaries

DAY = 86_400_000_000  # microseconds
OLD, NEW = "11" * 32, "22" * 32  # keys, in hexadecimal
JOBS = {"rewrap": (OLD, NEW), "reencrypt": (OLD, NEW), "seal": (None, NEW), "unseal": (OLD, None)}
WRITES = ("commit", "stage", "unstage", "scrub")  # of a backend
WORDS = ("xylograph", "résumé", "otherwise", "gist", "absent")


@dataclass
class Place:
    """Where a workspace is made."""

    location: str
    workspace: str = "default"
    key: str | None = None
    start: int = START

    def open(self, **options: Any) -> Store:
        key = None if self.key is None else bytes.fromhex(self.key)
        ticks = itertools.count(self.start, 1_000_000)
        return hitherto.open(
            self.location,
            key=key,
            workspace=self.workspace,
            **{"maintenance": False, "clock": lambda: next(ticks), **options},
        )

    def later(self, microseconds: int = DAY) -> "Place":
        return Place(self.location, self.workspace, self.key, self.start + microseconds)


# -- what the stores hold


def noise(size: int, seed: str) -> bytes:
    """Bytes that do not compress."""
    blocks = (hashlib.sha256(f"{seed} {n}".encode()).digest() for n in range(size // 32 + 1))
    return b"".join(blocks)[:size]


def attached(size: int, seed: str) -> Block:
    content = noise(size, seed)
    return Block.image(Attachment(size, lambda: iter((content,))), "image/png", alt=f"picture {seed}")


def id_of(number: int) -> str:
    return str(uuid.UUID(int=number, version=4))


def fill(store: Store, *, small: bool) -> None:
    """A bit of everything. A small one is for stores that are made many times."""
    turns = 10 if small else 40
    tools = [{"name": "read", "description": "read a file", "parameters": {"type": "object"}}]
    tree = store.start(
        id=id_of(1), title="A tree", system_prompt="Be terse.", provider="openai", model="gpt-5", tools=tools,
        metadata={"about": "trees", "empty": ""}, project="/p/trees",
    )  # fmt: skip
    for n in range(turns):
        tree.extend(
            [
                Message.user(f"question {n} \0 🎉 xylograph", key=f"turn-{n}"),
                Message.assistant(f"answer {n}", usage=Usage(n, 2 * n), raw={"id": f"msg_{n}", "n": n}),
            ]
        )
    fork = tree.fork(at=tree.thread()[9])
    small_image = Block.image(bytes(range(256)), "image/png")
    fork.append(Message.user([Block.text("otherwise", cited=True), small_image], label="picture"))
    fork.append(Message.assistant([Block.thinking("hm"), Block.tool_call("call_1", "read", {"path": "a.py"})]))
    fork.append(Message.tool_result("call_1", "no such file", error=True, key="result-1"))
    fork.label("the résumé")
    tree.subagent("review", "r1").append(Message.user("look at this"))
    doomed = fork.append(Message.user("deleted later"))
    store.delete([doomed.id])
    store.maintain()  # packs
    tree.follow().compact("The gist of it.")
    tree.configure(system_prompt="Be verbose.")
    tree.append(Message("event", (Block("metadata", "{}"),), extra={"a": [1, None, "ß"]}, privacy={"pii": False}))
    tree.append(Message.user("and now, after packing?"))

    large = store.start(id=id_of(2), title="Attachments", project="/p/trees")
    large.append(Message.user([Block.text("see"), attached(3000, "a"), attached(700, "b")], label="picture"))
    long_text = "ä résumé " * (2_000 if small else 20_000)
    large.append(Message.user([Block.text("again"), attached(3000, "a")], raw={"data": [long_text]}))
    large.append(Message.assistant("I see."))

    named = store.ensure("user-42", title="By key", metadata={"a": "b"})
    named.append(Message.user("hello"))
    named.rename("By key, renamed")
    named.describe({"a": "c", "résumé": "ü"})
    held = store.start(id=id_of(4), title="On hold")
    held.append(Message.user("keep this"))
    held.hold()
    store.start(id=id_of(5), title="Empty")
    records = Records(store)
    record = records.create(
        id_of(6), title="A record", participants=[{"id": "u1", "role": "user", "display_name": "Ada"}],
        messages=[{"role": "user", "content": "my résumé"}, {"role": "assistant", "content": "read"}],
        summary={"synopsis": "about work"}, privacy={"exportable": False, "consent": "given"},
    )  # fmt: skip
    records.update(record.conversation_id, append_messages=[{"role": "user", "content": "one more"}], title="Changed")
    recorded = store.start(id=id_of(7), title="Left open")
    recorded.append(Message.user("do it"))
    records.commit_snapshot(recorded.id, {"step": 3, "files": ["a.py"]})
    tree.detach(title="Detached")
    gone = store.start(id=id_of(8), title="Gone")
    gone.append(Message.user("purged text"))
    store.purge(gone, reason="user-requested")
    store.set_quota(50_000_000)


def interrupt(place: Place) -> None:
    """Record an answer, in a process that is killed while it streams."""

    def die() -> None:
        with place.open(read_only=True) as store:
            while not any("three" in one.text for info in store.conversations() for one in partials(store, info)):
                pass
        process.kill()

    def partials(store: Store, info: hitherto.listing.ConversationInfo) -> list[hitherto.reports.Partial]:
        return store.conversation(info.id).partials()

    def answer(_: Asked) -> Reply:
        return Reply(events=[*chat_events("one two three four five")[:4], die])

    with provider(answer) as server:
        process = start("record", place, server.url)
        process.wait()


def record(place: Place, url: str) -> None:
    """The process of `interrupt`."""
    with place.open() as store:
        config = Config("openai-compatible", "m", base_url=url + "/v1", allow_insecure_base_url=True, api_key="k")
        client = new_client(config)
        assert isinstance(client, Client)
        hitherto.record(client, store, title="Interrupted", partial_seconds=0.05)
        for _ in client.stream("tell me about the xylograph"):
            pass


def fill_fully(place: Place) -> None:
    with place.open() as store:
        fill(store, small=False)
        store.maintain()
    interrupt(place.later())
    with place.later(2 * DAY).open() as store:
        store.search("xylograph")  # from here on there is an index
        store.conversation(id_of(4)).append(Message.assistant("said after the index was made: xylograph"))
        store.maintain(0.01)


def fill_for_retention(place: Place) -> None:
    with place.open() as store:
        for number in (1, 2):
            store.start(id=id_of(number), title=f"Old {number}").append(Message.user("long ago"))
        store.conversation(id_of(2)).hold()
    with place.later(28 * DAY).open() as store:
        store.start(id=id_of(3), title="New").append(Message.user("just now"))
        store.set_retention(RetentionPolicy(30))
        Records(store).create(id_of(4), title="Its own", retention={"expires_at": "2033-01-01T00:00:00Z"})


# -- what happens to them


def damage(place: Place) -> tuple[str, ...]:
    """Turn a bit of a message, and have it noticed: it is in quarantine then."""
    with place.open() as store:
        talk = store.start(id=id_of(1), title="Damaged")
        said = talk.extend([Message.user(f"message {n} xylograph") for n in range(4)])
        store.start(id=id_of(2), title="Sound").append(Message.user("xylograph"))
    database = sqlite3.connect(place.location)
    (body,) = database.execute("SELECT body FROM message WHERE seq = ? ORDER BY number", (said[2].seq,)).fetchone()
    turned = body[:-3] + bytes([body[-3] ^ 1]) + body[-2:]
    database.execute("UPDATE message SET body = ? WHERE body = ?", (turned, body))
    database.commit()
    database.close()
    with place.later().open() as store:
        assert [message.id for message in store.messages() if message.problem] == [said[2].id]
        noticed = tuple(str(one.message) for one in store.quarantine())
        assert noticed == (said[2].id,)
    return noticed


def purge_beside_a_reader(place: Place) -> tuple[str, ...]:
    """A purge whose bytes a reader keeps in the files; and then all of it is cut off."""
    texts = tuple(f"purged xylograph {n} {noise(20, str(n)).hex()}" for n in range(3))
    with place.open() as store:
        store.start(id=id_of(1), title="Stays").append(Message.user("stays"))
        gone = store.start(id=id_of(2), title="Goes")
        gone.extend([Message.user(text) for text in texts])
        store.search("xylograph")
    reader = sqlite3.connect(place.location)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM message").fetchone()
    assert start("purge", place, id_of(2)).wait() == -signal.SIGKILL
    # As the files are at this moment: closing the last connection would tidy them.
    shutil.copytree(Path(place.location).parent, Path(place.location).parent.with_name("cut"))
    reader.close()
    shutil.rmtree(Path(place.location).parent)
    Path(place.location).parent.with_name("cut").rename(Path(place.location).parent)
    return texts


def purge(place: Place, id: str) -> None:
    """The process of `purge_beside_a_reader`."""
    store = place.later().open()
    assert store.purge(id, reason="user-requested").scrub_pending
    os.kill(os.getpid(), signal.SIGKILL)


def rotate(place: Place, job: str, after: str, moment: str) -> None:
    """Do a job in this process, and be killed when it is about to write for this time; 0: say how often it wrote."""
    small_steps()
    store = place.open()
    count = 0

    def watched(real: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object, **named: object) -> object:
            nonlocal count
            count += 1
            if count == int(moment):
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **named)

        return call

    backend = type(store.backend)
    for name in WRITES:
        setattr(backend, name, watched(getattr(backend, name)))
    key = None if after == "-" else hitherto.Key(bytes.fromhex(after))
    assert run(store, "rotate" if job == "rewrap" else job, key).complete
    print(count, flush=True)
    store.close()


def half_done(place: Place, job: str, trial: Place) -> None:
    """Begin a job in a process that is killed half way. `trial` holds the same: it shows how far that is."""
    after = JOBS[job][1] or "-"
    writes = start("rotate", trial.later(), job, after, "0", stdout=subprocess.PIPE).communicate()[0]
    process = start("rotate", place.later(), job, after, str(int(writes) // 2))
    assert process.wait() == -signal.SIGKILL, "it was not killed"


def start(what: str, place: Place, *more: str, **options: Any) -> "subprocess.Popen[bytes]":
    told = json.dumps([what, asdict(place), *more])
    return subprocess.Popen([sys.executable, __file__, told], **options)


# -- keeping them


def kept(form: str, place: Place, seen: dict[str, Any], **more: Any) -> Kept:
    key = more.pop("key", place.key)
    where = place.location.split("/")[-2] if place.location.endswith(".db") else "postgresql"
    now = START + 30 * DAY
    return Kept(form, where, place.workspace, key, now, WORDS, seen, **more)


@contextmanager
def copied(place: Place) -> Iterator[Place]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(Path(place.location).parent, Path(folder) / "copy")
        yield Place(f"{folder}/copy/store.db", place.workspace, place.key, place.start + 3 * DAY)


def look(place: Place) -> dict[str, Any]:
    """What is seen of a store; of a copy, because looking changes a little."""
    with copied(place) as copy, copy.open() as store:
        return described(store, WORDS)


def freeze_sqlite(form: str, folder: Path) -> Iterator[Kept]:
    def made(name: str, key: str | None = None, workspace: str = "default") -> Place:
        (folder / name).mkdir(exist_ok=True)
        return Place(str(folder / name / "store.db"), workspace, key)

    for name, key in (("plain", None), ("sealed", OLD)):
        place = made(name, key)
        fill_fully(place)
        yield kept(form, place, look(place))
    # Two workspaces in one file, one of them sealed.
    for workspace, key in (("first", None), ("second", OLD)):
        place = made("workspaces", key, workspace)
        with place.open() as store:
            store.start(id=id_of(1), title=f"In the {workspace}").append(Message.user("xylograph"))
    for workspace, key in (("first", None), ("second", OLD)):
        place = made("workspaces", key, workspace)
        yield kept(form, place, look(place))
    place = made("retention")
    fill_for_retention(place)
    yield kept(form, place, look(place))
    for name, key in (("quarantine-plain", None), ("quarantine-sealed", OLD)):
        place = made(name, key)
        damaged = damage(place)
        yield kept(form, place, look(place), damaged=damaged)
    place = made("purged")
    purged = purge_beside_a_reader(place)
    yield kept(form, place, look(place), purged=purged)
    for job, (before, after) in JOBS.items():
        place = made(job, before)
        with place.open() as store:
            fill(store, small=True)
        seen = look(place)
        with copied(place) as trial:
            half_done(place, job, trial)
        yield kept(form, place, seen, job=job, after=after, key=after or before)


def freeze_postgresql(form: str, database: Database) -> Iterator[Kept]:
    for name, key in (("plain", None), ("sealed", OLD)):
        place = Place(database.url(), name, key)
        fill_fully(place)
        with place.later(3 * DAY).open() as store:
            seen = described(store, WORDS)
        yield kept(form, place, seen)
    for job, (before, after) in JOBS.items():
        place, trial = (Place(one.url(), job, before) for one in (database, new_database()))
        for each in (trial, place):
            with each.open() as store:
                fill(store, small=True)
                seen = described(store, WORDS)
        half_done(place, job, trial)
        yield kept(form, place, seen, job=job, after=after, key=after or before)


def dumped(database: Database) -> bytes:
    """All of it as SQL that any server of these versions takes, whoever restores it."""
    binaries = find_binaries()
    assert binaries is not None
    command: list[str | Path] = [binaries / "pg_dump", "--schema=hitherto", "--inserts", "--rows-per-insert=50"]
    command += [
        "--no-owner",
        "--no-privileges",
        "--no-comments",
        "-h",
        database.folder,
        "-U",
        "postgres",
        database.name,
    ]
    sql = subprocess.run(command, check=True, capture_output=True).stdout.decode()
    own = re.compile(r"^(\\(un)?restrict .*|SET transaction_timeout = .*|-- .*|--)\n", re.MULTILINE)  # of a version
    return re.sub(r"\n{2,}", "\n", own.sub("", sql)).encode()


def told(stores: list[Kept]) -> str:
    """What is frozen, as JSON that is read by people as well: one line for each conversation and message."""
    lines = []
    for store in stores:
        about = {name: value for name, value in asdict(store).items() if name != "format" and value not in (None, ())}
        seen = about.pop("seen")
        parts = []
        for name, value in seen.items():
            if isinstance(value, dict) and value:
                inner = ",\n".join(f"  {one(key)}: {one(part)}" for key, part in value.items())
                parts.append(f" {one(name)}: {{\n{inner}\n }}")
            else:
                parts.append(f" {one(name)}: {one(value)}")
        lines.append(one(about)[:-1] + ', "seen": {\n' + ",\n".join(parts) + "\n}}")
    steps = {"sqlite": len(sqlite_schema.MIGRATIONS), "postgresql": len(postgresql_schema.MIGRATIONS)}
    head = f'{{"format": {one(steps)}, "version": {one(hitherto.__version__)}, "stores": [\n'
    return head + ",\n".join(lines) + "\n]}\n"


def one(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    form = f"sqlite-{len(sqlite_schema.MIGRATIONS)}-postgresql-{len(postgresql_schema.MIGRATIONS)}"
    target = FOLDER / form
    if target.exists():
        sys.exit(f"{target} is there: what was frozen is never changed")
    with tempfile.TemporaryDirectory() as folder:
        stores = list(freeze_sqlite(form, Path(folder)))
        database = new_database()
        stores += freeze_postgresql(form, database)
        target.mkdir(parents=True)
        for place in sorted(Path(folder).iterdir()):
            (target / f"{place.name}.tar.xz").write_bytes(packed(place))
        (target / DUMP).write_bytes(lzma.compress(dumped(database), preset=9 | lzma.PRESET_EXTREME))
        (target / HOLDS).write_text(told(stores))
    # What comes out of the archives is what went in.
    for store in stores:
        if store.place != "postgresql":
            with tempfile.TemporaryDirectory() as folder:
                path = unpacked(target / f"{store.place}.tar.xz", Path(folder) / "store")
                with Place(str(path), store.workspace, store.key, store.now).open() as opened:
                    assert json.loads(one(described(opened, WORDS))) == json.loads(one(store.seen)), store.name
    print(target, sum(path.stat().st_size for path in target.iterdir()), "bytes")


if __name__ == "__main__":
    if len(sys.argv) == 2:  # a process of ours
        what, place, *more = json.loads(sys.argv[1])
        does: dict[str, Callable[..., None]] = {"record": record, "purge": purge, "rotate": rotate}
        does[what](Place(**place), *more)
    else:
        main()
