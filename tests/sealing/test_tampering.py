"""Tampering: whoever has the file, and not the key, changes it; and nothing false is ever read from it.

Real SQLite files are changed behind the store's back, with a library that is not the store's. What "false" means is
said once, by `look` and `falsehoods`: everything that the public interface tells about a store is asked before and
after. Afterwards each answer is the same as before, or an error of ours, or lacks records, or shows them with their
`problem`. Any other answer is false. And `verify` finds something wrong, unless what was changed means nothing
(`MEANINGLESS` says why).

Beside the protections stand controls: with a protection taken away, the same check has to find something false.
"""

import contextlib
import os
import random
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, count
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher as RawCipher
from cryptography.hazmat.primitives.ciphers import algorithms, modes
from msgspec.structs import replace

import hitherto
from hitherto import Block, Conversation, Key, Message, Store
from hitherto._engine import policy_memory
from hitherto._engine.bodies import Body, Meta, encode
from hitherto._engine.revisions import NOTHING
from hitherto._engine.state import ConversationState
from hitherto._sealing import primitives, sealed
from hitherto.attachment import Attachment
from hitherto.errors import (
    Closed,
    Damaged,
    HithertoError,
    InvalidArgument,
    KeyUnavailable,
    NotFound,
    NotSealed,
)
from hitherto.model import Usage
from tests.support.parts import schedule_of

from ..support.thorough import THOROUGH

ONE, TWO = "default", "other"  # the workspaces
START = 1_700_000_000_000_000  # of our clock
LATER = 4_000_000_000_000_000
TABLES = ("conversation", "message", "pack", "item", "tag", "attachment", "chunk", "reference")
Value = int | str | bytes | None


# -- a store with everything in it


class World(NamedTuple):
    """A store, closed, and how to ask it."""

    path: Path
    key: Key
    asked: "dict[str, Asked]"  # by workspace
    told: "dict[str, Told]"


class Asked(NamedTuple):
    """What there is to ask for."""

    conversations: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    attached: tuple[str, ...] = ()  # those of them with attachments, and one without: all that can be read lazily
    leaves: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    subagents: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of `ensure`
    keys: tuple[tuple[str, str], ...] = ()  # conversation and key of a message


def clock() -> Callable[[], int]:
    """Every look at it is a second later."""
    ticks = count()
    return lambda: START + next(ticks) * 1_000_000


def noise(seed: str, size: int = 70_000) -> bytes:
    return random.Random(seed).randbytes(size)


def opened(path: Path, key: Key | None, workspace: str = ONE, clock: Callable[[], int] = lambda: LATER) -> Store:
    return hitherto.open(path, key=key, workspace=workspace, maintenance=False, clock=clock, timeout_seconds=5)


def fill(store: Store, who: str) -> None:
    """Everything that a store can hold, with `who` in all of it."""
    talk = store.ensure(
        f"{who}-ensured",
        title=f"{who}-title",
        system_prompt=f"{who}-prompt",
        provider=f"{who}-provider",
        model=f"{who}-model",
        tools=[{"name": f"{who}-tool", "description": f"{who}-described"}],
        metadata={f"{who}-field": f"{who}-value"},
        project=f"/{who}-project",
    )
    for n in range(17):
        talk.append(Message.user(f"{who}-question number {n}", key=f"{who}-key-{n}" if n % 8 == 2 else None))
        usage = Usage(10 + n, n)
        talk.append(Message.assistant(f"{who}-answer number {n}", usage=usage, raw={f"{who}-raw": [n, f"{who}-json"]}))
        if n == 3:
            talk.append(Message.user((Block.text("an image"), Block.image(noise(who), "image/png"))))
        if n == 9:
            talk.label(f"{who}-label")
    side = talk.fork(at=store.thread(talk.at or "")[5])
    side.append(Message.user(f"{who}-aside"))
    side.append(Message.assistant(f"{who}-aside answered", label=f"{who}-label"))
    agent = talk.subagent(f"{who}-agent", f"{who}-run")
    agent.append(Message.user(f"{who}-errand"))
    agent.append(Message.assistant(f"{who}-errand done"))
    store.maintain()  # packs all of it
    talk.configure(model=f"{who}-model-two", system_prompt=f"{who}-prompt-two")
    talk.follow().compact(f"{who}-summary")
    for n in range(3):
        talk.append(Message.user(f"{who}-late number {n}", key=f"{who}-late-{n}"))
        talk.append(Message.assistant(f"{who}-late answer {n}"))
    talk.append(Message("event", (Block.text(f"{who}-event"),), extra={f"{who}-extra": True}))
    late = talk.thread()
    talk.label(f"{who}-label-amended", message=late[2])
    other = talk.fork(at=late[1])
    other.append(Message.assistant(f"{who}-otherwise", label=f"{who}-label"))
    other.append(Message.user(f"{who}-to be deleted"))
    store.delete([other.at or ""])
    talk.fork(at=late[-1]).append(Message.user(f"{who}-the head"))

    second = store.start(title=f"{who}-second", project=f"/{who}-elsewhere", model=f"{who}-model-three")
    second.append(Message.user(f"{who}-second question"))
    second.append(Message.user((Block.text("a long text"), Block.image(who.encode() * 9_000, "text/plain"))))
    second.append(Message.assistant(f"{who}-second answer", label=f"{who}-label"))
    second.subagent(f"{who}-agent", f"{who}-another run").append(Message.user(f"{who}-second errand"))
    second.hold()
    store.start(title=f"{who}-empty")
    store.search(f"{who}-question")
    store.maintain()  # keeps the words; and packs what was left
    talk.follow()
    talk.append(Message.user(f"{who}-loose question", key=f"{who}-loose-key"))
    talk.append(Message.assistant(f"{who}-loose answer", label=f"{who}-loose-label"))
    talk.label(f"{who}-loose-amended")
    second.follow()
    second.append(Message.user(f"{who}-loose second", label=f"{who}-loose-label"))
    second.append(Message.user((Block.text("again"), Block.image(noise(f"{who}, again"), "image/png"))))
    second.subagent(f"{who}-agent", f"{who}-third run").append(Message.user(f"{who}-third errand"))


def what_to_ask(store: Store, who: str) -> Asked:
    infos = store.conversations(limit=100).items
    messages = list(store.messages(newest_first=False))
    leaves = [branch.id for info in infos for branch in store.conversation(info).branches()]
    return Asked(
        conversations=tuple(info.id for info in infos),
        messages=tuple(m.id for m in messages),
        attached=(messages[0].id, *(m.id for m in messages if any(block.modality != "text" for block in m.blocks))),
        leaves=tuple(leaves),
        labels=tuple(sorted({m.label for m in messages if m.label is not None})),
        subagents=(f"{who}-agent",),
        projects=(f"/{who}-project", f"/{who}-elsewhere"),
        words=(f"{who}-question", "number", f'"{who}-second"', f"{who}-loose", "deleted"),
        names=tuple(info.key for info in infos if info.key is not None),
        keys=tuple((m.conversation, m.key) for m in messages if m.key is not None),
    )


def made(folder: Path, build: Callable[[Store, str], None] = fill) -> World:
    key = Key.generate()
    path = folder / "chats.db"
    asked: dict[str, Asked] = {}
    for workspace, who in ((ONE, "wombat"), (TWO, "quokka")):
        with opened(path, key, workspace, clock()) as store:
            build(store, who)
    for workspace, who in ((ONE, "wombat"), (TWO, "quokka")):
        with opened(path, key, workspace) as store:
            asked[workspace] = what_to_ask(store, who)
    told = {workspace: genuine(path, key, workspace, asked[workspace]) for workspace in (ONE, TWO)}
    assert not [name for one in told.values() for name, answer in one.items() if isinstance(answer, Failed)]
    return World(path, key, asked, told)


# -- what is false


class Failed(NamedTuple):
    """The call raised an error of ours."""

    error: str


class Strange(NamedTuple):
    """The call raised something else: always wrong."""

    error: str


class Many(NamedTuple):
    """A listing: records may be left out of it, and nothing else."""

    records: tuple[object, ...]
    ordered: bool = True


class OneOf(NamedTuple):
    """Any of these is true: a sum over what is there, where some of it may be left out."""

    values: tuple[object, ...]


Told = dict[str, object]  # by the call


def look(store: Store, asked: Asked, *, briefly: bool = False) -> Told:
    """Everything that a store tells; or a little of it."""
    told: Told = {}

    def ask(name: str, call: Callable[..., object], *about: object) -> None:
        told[name] = answer(call, *about)

    def found(words: str, **options: str) -> Many:
        return Many(tuple(store.search(words, limit=1000, **options)))  # type: ignore[arg-type]  # only `project`

    ask("conversations()", lambda: Many(tuple(info(one) for one in store.conversations(limit=100) if not one.problem)))
    ask("conversations(total)", lambda: total(store))
    ask("latest()", lambda: Many((latest.id,) if (latest := store.latest()) is not None else ()))
    ask("stats()", lambda: summed(store))
    ask("messages()", lambda: listed(store.messages())._replace(ordered=False))  # each carries its time
    if briefly:
        return told
    ask("messages(oldest first)", lambda: listed(store.messages(newest_first=False))._replace(ordered=False))
    for id in asked.conversations:
        ask_conversation(ask, store, id)
    for id in asked.messages:
        ask(f"message({id})", store.message, id)
    for id in asked.attached:
        ask(f"lazily({id})", lazily, store, id)
    for id in asked.leaves:
        ask(f"thread({id})", lambda id: tuple(store.thread(id)), id)
        ask(f"standing at({id})", lambda id: standing(store.conversation(id)), id)
    for folder in asked.projects:
        ask(f"conversations({folder})", lambda f: Many(tuple(one.id for one in store.conversations(project=f))), folder)
        ask(f"search({folder})", lambda f: found("number", project=f), folder)
    for label in asked.labels:
        ask(f"messages({label})", lambda label: listed(store.messages(label=label)), label)
    for name in asked.subagents:
        ask(f"messages({name})", lambda name: listed(store.messages(subagent=name)), name)
    for words in asked.words:
        ask(f"search({words})", found, words)
    return told


def answer(call: Callable[..., object], *about: object) -> object:
    try:
        return call(*about)
    except (InvalidArgument, Closed) as error:  # ours, but it blames the caller
        return Strange(f"{type(error).__name__}: {error}")
    except HithertoError as error:
        return Failed(type(error).__name__)
    except Exception as error:  # noqa: BLE001  # whatever it is, it should not be
        return Strange(f"{type(error).__name__}: {error}")


def info(one: hitherto.listing.ConversationInfo) -> tuple[object, ...]:
    described = (one.id, one.title, one.key, one.project, tuple(one.metadata.items()), one.head, one.count, one.size)
    return (*described, one.created_at, one.active_at, one.expires_at, one.held)


def total(store: Store) -> int:
    """How many conversations there are, but those that are listed with their problem."""
    page = store.conversations(limit=100, total=True)
    return (page.total or 0) - sum(1 for one in page if one.problem)


def summed(store: Store) -> tuple[object, ...]:
    stats = store.stats()
    return stats.conversations, stats.messages, stats.content_bytes, stats.oldest, stats.newest


def ask_conversation(ask: Callable[..., None], store: Store, id: str) -> None:
    def of(what: Callable[[Conversation], object]) -> Callable[[], object]:
        return lambda: what(store.conversation(id))

    ask(f"conversation({id})", of(standing))
    ask(f"described({id})", of(lambda c: (c.title, c.key, c.project, tuple(c.metadata.items()), c.held, c.count)))
    ask(f"times({id})", of(lambda c: (c.created_at, c.active_at)))
    ask(f"heads({id})", of(lambda c: c.head))
    ask(f"setup({id})", of(lambda c: c.setup))
    ask(f"thread({id})", of(lambda c: tuple(c.thread())))
    ask(f"full thread({id})", of(lambda c: tuple(c.thread(full=True))))
    ask(f"usage({id})", of(lambda c: c.usage()))
    ask(f"branches({id})", of(lambda c: Many(tuple(c.branches()))))
    ask(f"messages({id})", lambda: listed(store.messages(conversation=id)))


def standing(talk: Conversation) -> tuple[object, ...]:
    return talk.id, talk.at, talk.setup


def lazily(store: Store, id: str) -> tuple[object, ...]:
    blocks = store.message(id, attachments="lazy").blocks
    return tuple(b.content.load() if isinstance(b.content, Attachment) else b.content for b in blocks)


def listed(messages: Iterable[hitherto.Saved]) -> Many:
    return Many(tuple(message for message in messages if message.problem is None))


def insist(store: Store, asked: Asked) -> Told:
    """What is told by calls that find something or make it."""
    told: Told = {}

    def named(name: str) -> object:
        id = store.ensure(name).id
        return id if id in asked.conversations else "new"

    def keyed(conversation: str, key: str) -> object:
        message = store.conversation(conversation).append(Message.user("again", key=key))
        return message if message.id in asked.messages else "new"

    for name in asked.names:
        told[f"ensure({name})"] = answer(named, name)
    for conversation, key in asked.keys:
        told[f"append({key})"] = answer(keyed, conversation, key)
    return told


def genuine(path: Path, key: Key | None, workspace: str, asked: Asked) -> Told:
    """What a store tells, before anybody has tampered with it."""
    with opened(path, key, workspace) as store:
        told = {**look(store, asked), **insist(store, asked)}
        assert store.verify().ok
        infos = store.conversations(limit=100).items
        told["conversations(total)"] = OneOf(tuple(range(len(infos) + 1)))
        told["latest()"] = Many(tuple(one.id for one in infos))
        told["stats()"] = OneOf((told["stats()"], *sums(infos)))
    return {name: OneOf((was, "new")) if name.startswith(("ensure", "append")) else was for name, was in told.items()}


def sums(infos: Sequence[hitherto.listing.ConversationInfo]) -> Iterator[tuple[object, ...]]:
    for size in range(len(infos) + 1):
        for some in combinations(infos, size):
            times = (min((i.created_at for i in some), default=None), max((i.active_at for i in some), default=None))
            yield size, sum(i.count for i in some), sum(i.size for i in some), *times


def falsehoods(was: Told, now: Told) -> list[str]:
    """What is told now and was not so before."""
    found = []
    for name, after in now.items():
        before = was[name]
        if is_same(before, after) or isinstance(after, Failed):
            continue
        if isinstance(before, Many) and isinstance(after, Many):
            if left_out(before.records, after.records, ordered=before.ordered):
                continue
            strange = [one for one in after.records if one not in before.records]
            found.append(f"{name}: {strange!r:.500}" if strange else f"{name}: in another order, or twice")
        elif not (isinstance(before, OneOf) and after in before.values):
            found.append(f"{name}: {after!r:.300}, not {before!r:.300}")
    return found


def is_same(before: object, after: object) -> bool:
    """Is it what it was, but for attachments that are named as missing? Nobody takes such a hole for what was there."""
    if isinstance(before, tuple) and isinstance(after, tuple) and type(before) is type(after):
        return len(before) == len(after) and all(is_same(*pair) for pair in zip(before, after, strict=True))
    if isinstance(before, hitherto.Saved) and isinstance(after, hitherto.Saved) and after.problem is not None:
        holes = [isinstance(b.content, hitherto.attachment.Attachment) and b.content.is_missing for b in after.blocks]
        blocks = [b if hole else a for a, b, hole in zip(after.blocks, before.blocks, holes, strict=True)]
        return any(holes) and replace(after, blocks=tuple(blocks), problem=before.problem) == before
    return after == before


def left_out(before: Sequence[object], after: Sequence[object], *, ordered: bool) -> bool:
    """Is it the same, in the same order, but for some?"""
    if not ordered:
        return all(after.count(one) <= before.count(one) for one in after)
    rest = iter(before)
    return all(one in rest for one in after)


class Outcome(NamedTuple):
    """What became of a store that was tampered with."""

    false: list[str]
    noticed: bool  # by `verify`, or by opening it

    def __bool__(self) -> bool:
        return not self.false and self.noticed


def examined(world: World, path: Path, *, briefly: str | None = None) -> Outcome:
    """Ask everything, in both workspaces; in one of them only for a few things, if it has nothing to do with it. What
    checks everything comes after what reads, and what writes comes last: they might stop something false on its way."""
    false: list[str] = []
    noticed = False
    for workspace in (ONE, TWO):
        asked, was = world.asked[workspace], world.told[workspace]
        try:
            store = opened(path, world.key, workspace)
        except HithertoError:
            noticed = True
            continue
        except Exception as error:  # noqa: BLE001  # whatever it is, it should not be
            false.append(f"open({workspace}) raised {type(error).__name__}: {error}")
            continue
        with store:
            now = look(store, asked, briefly=workspace == briefly)
            verified = answer(lambda store: store.verify().ok, store)
            noticed = noticed or verified is not True
            if isinstance(verified, Strange):
                false.append(f"verify() raised {verified.error}")
            if workspace != briefly:
                now |= insist(store, asked)
            false += [f"{workspace}: {one}" for one in falsehoods(was, now)]
    return Outcome(false, noticed)


# -- changing the file


@contextlib.contextmanager
def inside(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, open to whoever has it. Nothing that it says about itself is minded."""
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        yield db
    finally:
        db.close()


def columns(db: sqlite3.Connection, table: str) -> dict[str, bool]:
    """The columns of a table, and whether they may be NULL."""
    return {row[1]: not row[3] and not row[5] for row in db.execute(f"PRAGMA table_info({table})")}


def primary(db: sqlite3.Connection, table: str) -> tuple[str, ...]:
    rows = sorted((row[5], row[1]) for row in db.execute(f"PRAGMA table_info({table})") if row[5])
    return tuple(name for _, name in rows)


def rows(db: sqlite3.Connection, table: str, where: str = "1") -> list[dict[str, Value]]:
    cursor = db.execute(f"SELECT * FROM {table} WHERE {where}")
    names = [one[0] for one in cursor.description]
    return [dict(zip(names, found, strict=True)) for found in cursor]


def row(db: sqlite3.Connection, table: str, where: str) -> dict[str, Value]:
    found = rows(db, table, where)
    assert found, f"there is no {table} with {where}"
    return found[0]


def update(db: sqlite3.Connection, table: str, of: dict[str, Value], **values: Value) -> None:
    """Change some columns of a row."""
    key = primary(db, table)
    changes, where = ", ".join(f"{name} = ?" for name in values), " AND ".join(f"{name} = ?" for name in key)
    cursor = db.execute(f"UPDATE {table} SET {changes} WHERE {where}", (*values.values(), *(of[name] for name in key)))
    assert cursor.rowcount == 1


def insert(db: sqlite3.Connection, table: str, values: dict[str, Value], **others: Value) -> None:
    values = {**values, **others}
    marks = ", ".join("?" * len(values))
    db.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


def remove(db: sqlite3.Connection, table: str, of: dict[str, Value]) -> None:
    key = primary(db, table)
    db.execute(f"DELETE FROM {table} WHERE {' AND '.join(f'{name} = ?' for name in key)}", [of[name] for name in key])


def swap(db: sqlite3.Connection, table: str, a: dict[str, Value], b: dict[str, Value], *names: str) -> None:
    """Exchange these columns of two rows."""
    away: dict[str, Value] = {}
    for name in names:  # what has to be unique goes out of the way first
        value = a[name]
        away[name] = -1 - value if isinstance(value, int) else b"away" if isinstance(value, bytes) else value
    update(db, table, a, **away)
    update(db, table, b, **{name: a[name] for name in names})
    update(db, table, a, **{name: b[name] for name in names})


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def others(value: Value, *, nullable: bool) -> Iterator[tuple[str, Value]]:
    """What could stand there instead, and in what way it differs."""
    if nullable and value is not None:
        yield "nothing", None
    if isinstance(value, bytes):
        if value:
            for where, at in {"first": 0, "middle": len(value) // 2, "last": len(value) - 1}.items():
                yield f"{where} byte", flipped(value, at)
            yield "cut", value[:-1]
            yield "empty", b""
        yield "longer", value + b"\0"
    elif isinstance(value, int):
        yield from (("more", value + 1), ("less", value - 1), ("huge", 1 << 61))
        if value not in (-1, 0, 1):
            yield "negated", -value
    elif isinstance(value, str):
        yield from (("empty", ""), ("longer", value + "x"), ("large", value.upper()))
        yield "a role", "user" if value != "user" else "assistant"
    else:
        yield from ((f"{one!r} for nothing", one) for one in (-1, 0, 1, b"", b"x"))  # one of them has the right type


@pytest.fixture(scope="module")
def quick() -> Iterator[Path]:
    """A folder in memory, where there is one: nothing here is about the disk, and thousands of stores are opened."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def world(quick: Path) -> World:
    (quick / "world").mkdir()
    return made(quick / "world")


def copied(path: Path, folder: Path) -> Path:
    """The same store, to be spoilt."""
    for left in folder.glob("chats.db*"):
        left.unlink()
    return Path(shutil.copy(path, folder / "chats.db"))


@pytest.fixture
def copy(world: World, quick: Path) -> Path:
    return copied(world.path, quick)


# -- every column of every row

# Rows that stand for all of their kind, in the words of SQL.
CHOSEN: dict[str, tuple[str, ...]] = {
    "conversation": (
        "workspace = 1 AND kind = 'workspace'",
        "workspace = 1 AND kind = 'chat' AND key IS NOT NULL",
        "workspace = 1 AND kind = 'chat' AND head IS NULL",
        "workspace = 2 AND held",
    ),
    "message": (
        "number = 0",  # the root of a pack
        "number = 96",  # a sub-agent's root, in a pack
        "number = 193",  # with a body and a key of its own
        "number = 194",  # the head
        "number < 1 << 47 AND link AND body IS NOT NULL",  # a sub-agent's root
        "number = (1 << 47) + 128",  # a compaction, in a pack
    ),
    "pack": ("first = 0", "first = 64", "first = (1 << 47) + 96"),
    "item": (
        "conversation = 2 AND key = CAST('setup/000002' AS BLOB)",
        "conversation = 2 AND key < CAST('words/l' AS BLOB) AND key > CAST('words' AS BLOB)",
        "conversation = 2 AND key = CAST('words/list' AS BLOB)",
        "conversation = 6 AND key = CAST('setup/000001' AS BLOB)",
    ),
    "tag": (
        "workspace = 1 AND message = -1",
        "workspace = 1 AND message = 20",
        "workspace = 1 AND message = 96",
        "workspace = 2 AND message = 194",
    ),
    "attachment": ("workspace = 1", "workspace = 2"),
    "chunk": ("1", "number >> 24 > 3"),
    "reference": ("conversation = 2", "conversation = 7"),
}
COLUMNS = {
    "conversation": "place workspace id kind key version token generation head tips next_seq count size rewrites "
    "created_at active_at shelf expires_at held data_key meta proof moved",
    "message": "number conversation seq parent link main role revision created_at key token size body",
    "pack": "first conversation parent count body",
    "item": "conversation key revision body",
    "tag": "workspace value conversation message",
    "attachment": "place workspace conversation name chunks staged_at",
    "chunk": "number body",
    "reference": "conversation message attachment",
}
# What can be changed without `verify` finding anything wrong, because it means nothing to who reads: why, and in which
# of the rows above.
MEANINGLESS: dict[str, tuple[str, tuple[str, ...]]] = {
    "conversation.place": (
        "nothing is found by it, where a conversation owns nothing",
        ("kind = 'workspace'", "IS NULL"),
    ),
    "conversation.held": ("whatever is not 1 is no hold", ("kind", "IS NULL")),
    "conversation.moved": ("the feed of changes: at worst, a search index in memory takes something in again", ("",)),
    "message.token": ("only the process that wrote it asks for it, to find out whether the write was kept", ("",)),
    "item.revision": ("nothing reads it", ("",)),
    "item.conversation": ("the words of a conversation are made again from its messages", ("words",)),
    "item.key": ("the same", ("words",)),
    "item.body": ("the same", ("words",)),
    "attachment.staged_at": ("when to collect what no message refers to; what one refers to is not collected", ("",)),
}


def means_nothing(column: str, which: str) -> bool:
    return any(part in which for part in MEANINGLESS.get(column, ("", ()))[1])


def chosen_values(path: Path, table: str, name: str, of: Sequence[dict[str, Value]]) -> list[tuple[int, Value]]:
    """What is put into this column, and in which of the rows. Every row gets something else there, and every way to
    differ is tried in some row: in every second or third one that it is possible in, beginning elsewhere for each way.
    Only not every way in every row, unless the tests are to be thorough."""
    ways: dict[str, list[tuple[int, Value]]] = {}
    with inside(path) as db:
        nullable = columns(db, table)[name]
        for number, row in enumerate(of):
            for way, value in others(row[name], nullable=nullable):
                db.execute("BEGIN")
                with contextlib.suppress(sqlite3.IntegrityError):  # it has to be unique, or of another type
                    update(db, table, row, **{name: value})
                    ways.setdefault(way, []).append((number, value))
                db.execute("ROLLBACK")
    everything = [one for found in ways.values() for one in found]
    if THOROUGH:
        return everything
    step = min(9, len(of))
    some = [one for n, found in enumerate(ways.values()) for one in found[n % min(step, len(found)) :: step]]
    missed = dict(everything).keys() - dict(some).keys()
    return some + [next(one for one in everything if one[0] == number) for number in sorted(missed)]


@pytest.mark.parametrize("column", [f"{t}.{c}" for t in TABLES for c in COLUMNS[t].split()])
def test_a_changed_column_is_never_believed(world: World, quick: Path, column: str) -> None:
    table, name = column.split(".")
    false: list[str] = []
    unnoticed: list[str] = []
    with inside(world.path) as db:
        chosen = [row(db, table, where) for where in CHOSEN[table]]
    tried = 0
    for place, value in chosen_values(copied(world.path, quick), table, name, chosen):
        which, of = CHOSEN[table][place], chosen[place]
        path = copied(world.path, quick)
        with inside(path) as db:
            update(db, table, of, **{name: value})
        tried += 1
        what = f"{table} with {which}: {name} = {value!r:.40} instead of {of[name]!r:.40}"
        outcome = examined(world, path, briefly=TWO if of_the_first(table, of) else ONE)
        false += [f"{what}: {one}" for one in outcome.false]
        if not outcome.noticed and not means_nothing(column, which):
            unnoticed.append(what)
    assert tried
    assert not false, "\n".join(false[:20])
    assert not unnoticed, "\n".join(unnoticed[:20])


def of_the_first(table: str, of: dict[str, Value]) -> bool:
    """Is this row one of the first workspace?"""
    if "workspace" in of:
        return of["workspace"] == 1
    if table == "chunk":
        return number(of["number"]) >> 24 <= 3
    return number(of["conversation"]) <= 4


def number(value: Value) -> int:
    assert isinstance(value, int)
    return value


# -- rows that are swapped, moved, copied and dropped

Tamper = Callable[[sqlite3.Connection], None]
BASE = 1 << 47  # of the numbers in the second workspace
_MOVABLE = [name for name in COLUMNS["message"].split() if name not in ("number", "conversation")]
_ROW = [name for name in COLUMNS["conversation"].split() if name not in ("place", "workspace", "id", "kind", "key")]


def message(db: sqlite3.Connection, number: int) -> dict[str, Value]:
    return row(db, "message", f"number = {number}")


def conversation(db: sqlite3.Connection, place: int) -> dict[str, Value]:
    return row(db, "conversation", f"place = {place}")


def exchange(table: str, one: str, other: str, *names: str) -> Tamper:
    return lambda db: swap(db, table, row(db, table, one), row(db, table, other), *names)


def messages(one: int, other: int, *names: str) -> Tamper:
    return exchange("message", f"number = {one}", f"number = {other}", *(names or _MOVABLE))


def conversations(one: int, other: int, *names: str) -> Tamper:
    return exchange("conversation", f"place = {one}", f"place = {other}", *names)


def setup(place: int, number: int) -> str:
    return f"conversation = {place} AND key = CAST('setup/{number:06}' AS BLOB)"


def set_to(table: str, where: str, **values: Value) -> Tamper:
    return lambda db: update(db, table, row(db, table, where), **values)


def again(table: str, where: str, **values: Value) -> Tamper:
    return lambda db: insert(db, table, row(db, table, where), **values)


def without(table: str, where: str) -> Tamper:
    def drop(db: sqlite3.Connection) -> None:
        assert rows(db, table, where)
        db.execute(f"DELETE FROM {table} WHERE {where}")

    return drop


def conversation_again(db: sqlite3.Connection) -> None:
    """All of a conversation, under another id."""
    insert(db, "conversation", conversation(db, 3), place=90, id=b"\1" * 16, shelf=5)
    for n, m in enumerate(rows(db, "message", "conversation = 3")):
        insert(db, "message", m, conversation=90, number=3200 + n)
    for item in rows(db, "item", "conversation = 3"):
        insert(db, "item", item, conversation=90)


def conversation_elsewhere(db: sqlite3.Connection) -> None:
    """All of a conversation, in the other workspace."""
    update(db, "conversation", conversation(db, 3), workspace=2)
    db.execute("UPDATE message SET number = number + ? + 3200 WHERE conversation = 3", (BASE,))
    db.execute("UPDATE pack SET first = first + ? + 3200 WHERE conversation = 3", (BASE,))
    db.execute("UPDATE tag SET workspace = 2 WHERE conversation = 3")
    db.execute("UPDATE attachment SET workspace = 2 WHERE conversation = (SELECT id FROM conversation WHERE place = 3)")


def workspaces_swapped(db: sqlite3.Connection) -> None:
    db.execute("UPDATE workspace SET name = 'away' WHERE place = 1")
    db.execute("UPDATE workspace SET name = ? WHERE place = 2", (ONE,))
    db.execute("UPDATE workspace SET name = ? WHERE place = 1", (TWO,))


def leaf_and_pack(db: sqlite3.Connection) -> None:
    without("message", "number = 160")(db)
    without("pack", "first = 160")(db)


def labelled(number: int, like: int) -> Tamper:
    """Let a message be found by the label of another."""

    def tag(db: sqlite3.Connection) -> None:
        insert(db, "tag", row(db, "tag", f"workspace = 1 AND message = {like}"), message=number)

    return tag


MOVES: dict[str, Tamper] = {
    "the bodies of two messages": messages(193, 194, "body"),
    "the bodies of messages of two conversations": messages(193, 227, "body"),
    "the bodies of messages of two workspaces": messages(193, BASE + 193, "body"),
    "two messages": messages(193, 194),
    "two messages of two conversations": messages(193, 227, *(n for n in _MOVABLE if n != "seq")),
    "two messages of two conversations, with these": messages(193, 227, "conversation", *_MOVABLE),
    "two messages of two workspaces": messages(193, BASE + 193),
    "the headers of two packed messages": messages(3, 5),
    "the headers of packed messages of two workspaces": messages(3, BASE + 4, "role", "key", "size"),
    "the keys of two messages": messages(131, 193, "key"),
    "the keys of two packed messages": messages(4, 21, "key"),
    "the sizes of two messages": messages(193, 194, "size"),
    "two packs": exchange("pack", "first = 64", "first = 96", "parent", "count", "body"),
    "the bodies of two packs": exchange("pack", "first = 64", "first = 96", "body"),
    "packs of two workspaces": exchange("pack", "first = 0", f"first = {BASE}", "parent", "count", "body"),
    "two chunks": exchange("chunk", "number = 1 << 24", "number = 2 << 24", "body"),
    "chunks of two workspaces": exchange("chunk", "number = 1 << 24", "number = 4 << 24", "body"),
    "the names of two attachments": exchange("attachment", "place = 2", "place = 3", "name"),
    "two setups": exchange("item", setup(2, 1), setup(2, 2), "body"),
    "setups of two conversations": exchange("item", setup(2, 1), setup(3, 1), "body"),
    "setups of two workspaces": exchange("item", setup(2, 1), setup(6, 1), "body"),
    "the keys of two conversations": conversations(2, 3, "data_key"),
    "the keys of conversations of two workspaces": conversations(2, 6, "data_key"),
    "the keys of two workspaces": conversations(1, 5, "data_key"),
    "the descriptions of two conversations": conversations(2, 3, "meta"),
    "the descriptions of two workspaces": conversations(1, 5, "meta"),
    "the proofs of two conversations": conversations(2, 3, "proof"),
    "the proofs of conversations of two workspaces": conversations(2, 6, "proof"),
    "the rows of two conversations": conversations(2, 3, *_ROW),
    "the rows of two conversations, with their ids": conversations(2, 3, "id", *_ROW),
    "the rows of conversations of two workspaces": conversations(3, 7, *_ROW),
    "the rows of two workspaces": conversations(1, 5, *_ROW),
    "the ids of two conversations": conversations(2, 3, "id"),
    "the places of two conversations": conversations(2, 3, "place"),
    "the places of conversations of two workspaces": conversations(2, 6, "place"),
    "the names of the two workspaces": workspaces_swapped,
    "a message below another one": set_to("message", "number = 227", parent=224),
    "a packed message below another one": set_to("message", "number = 64", parent=3),
    "a pack below another message": set_to("pack", "first = 64", parent=3),
    "a root below a message": set_to("message", "number = 96", parent=34),
    "a sub-agent that serves another message": set_to("message", "number = 288", link=225),
    "a compaction of another message": set_to("message", "number = 128", link=20),
    "a message in another conversation": set_to("message", "number = 194", conversation=3, seq=99),
    "a message in another workspace": set_to("message", "number = 194", number=BASE + 195, conversation=6, seq=99),
    "a packed message in another conversation": set_to("message", "number = 34", conversation=3, seq=99),
    "a conversation in another workspace": conversation_elsewhere,
    "the name of a conversation on another one": set_to("conversation", "place = 3", key=b"\0" * 16),
    "a message twice": again("message", "number = 194", number=195, parent=194, seq=99, key=None),
    "a packed message twice": again("message", "number = 34", number=35, parent=34, seq=99),
    "a message twice, in another conversation": again("message", "number = 193", number=229, conversation=3, seq=99),
    "a conversation's row twice": again("conversation", "place = 3", place=90, id=b"\1" * 16, shelf=5),
    "a conversation twice": conversation_again,
    "a pack twice": again("pack", "first = 64", first=3200),
    "a setup twice": again("item", setup(2, 2), key=b"setup/000003"),
    "a chunk twice": again("chunk", "number = 1 << 24", number=(1 << 24) + 1),
    "a message found by the label of another": labelled(193, 194),
    "a message found by the name of a sub-agent": labelled(193, 96),
    "a conversation found in another project": again("tag", "workspace = 1 AND message = -1", conversation=4),
    "a message dropped in the middle": without("message", "number = 193"),
    "the head dropped": without("message", "number = 194"),
    "a packed message dropped in the middle": without("message", "number = 12"),
    "a leaf of another branch dropped": without("message", "number = 160"),
    "a leaf dropped with its pack": leaf_and_pack,
    "a sub-agent dropped": without("message", "number = 288"),
    "all messages of a conversation dropped": without("message", "conversation = 3"),
    "a pack dropped": without("pack", "first = 0"),
    "a chunk dropped": without("chunk", "number = 1 << 24"),
    "an attachment dropped": without("attachment", "place = 1"),
    "a reference dropped": without("reference", "conversation = 2"),
    "a setup dropped": without("item", setup(2, 2)),
    "a label's tag dropped": without("tag", "workspace = 1 AND message = 194"),
    "a project's tag dropped": without("tag", "workspace = 1 AND message = -1"),
    "a conversation's row dropped": without("conversation", "place = 3"),
    "a workspace's row dropped": without("conversation", "place = 1"),
    "a workspace's row dropped, and its conversations": without("conversation", "workspace = 1"),
}


@pytest.mark.parametrize("move", MOVES)
def test_what_is_swapped_moved_copied_or_dropped_is_never_believed(world: World, copy: Path, move: str) -> None:
    with inside(copy) as db:
        MOVES[move](db)
    outcome = examined(world, copy)
    assert not outcome.false, "\n".join(outcome.false[:20])
    assert outcome.noticed


# -- older versions, put back


class History(NamedTuple):
    """A store as it was and as it is, and its conversations by what happened to them since."""

    early: Path
    world: World
    place: dict[str, int]
    id: dict[str, str]


EVENTS = ("relabelled", "relabelled in a pack", "shrunk", "shrunk in a pack", "grown", "renamed", "moved on")


@pytest.fixture(scope="module")
def history(quick: Path) -> History:
    folder = quick / "history"
    folder.mkdir()
    key, path, early = Key.generate(), folder / "chats.db", folder / "early.db"
    with opened(path, key, ONE, clock()) as store:
        talks = {name: store.start(title=f"before: {name}", model="before") for name in EVENTS}
        for packing in (True, False):
            for name, talk in talks.items():
                if name.endswith("in a pack") == packing:
                    for n in range(3):
                        talk.append(Message.user(f"message {n} of {name}", label="before"))
            if packing:
                store.maintain()
        store.backup(early)
        for name, talk in talks.items():
            if name.startswith("relabelled"):
                talk.label("after", message=talk.thread()[1])
            elif name.startswith("shrunk"):
                store.delete([talk.thread()[-1]])
            elif name == "grown":
                talk.append(Message.user("and another one"))
            elif name == "renamed":
                talk.rename(f"after: {name}")
            else:
                talk.configure(model="after")
                talk.hold()
                talk.fork(at=talk.thread()[0]).append(Message.user("otherwise"))
        ids = {name: talk.id for name, talk in talks.items()}
    with opened(path, key) as store:
        before = [m.id for name in EVENTS for m in store.messages(conversation=ids[name])]
        asked = Asked(
            conversations=tuple(one.id for one in store.conversations(limit=100)),
            messages=tuple(before),
            leaves=tuple(branch.id for id in ids.values() for branch in store.conversation(id).branches()),
            labels=("before", "after"),
            projects=("/nowhere",),
            words=("message", "another", "otherwise"),
        )
    opened(path, key, TWO).close()
    told = {ONE: genuine(path, key, ONE, asked), TWO: genuine(path, key, TWO, Asked(projects=("/nowhere",)))}
    with inside(path) as db:
        places = {name: number(row(db, "conversation", f"hex(id) = '{hexed(ids[name])}'")["place"]) for name in EVENTS}
    return History(early, World(path, key, {ONE: asked, TWO: Asked(projects=("/nowhere",))}, told), places, ids)


def hexed(id: str) -> str:
    return id.replace("-", "").upper()


def put_back(db: sqlite3.Connection, history: History, table: str, where: str) -> None:
    """Rows as they were, in place of what is there."""
    db.execute("ATTACH ? AS early", (str(history.early),))
    db.execute(f"DELETE FROM {table} WHERE {where}")
    db.execute(f"INSERT INTO {table} SELECT * FROM early.{table} WHERE {where}")
    db.execute("DETACH early")


def all_of(place: int) -> dict[str, str]:
    """Where everything of a conversation lies."""
    owned = dict.fromkeys(("message", "pack", "item", "tag", "reference"), f"conversation = {place}")
    return {"conversation": f"place = {place}", **owned}


Back = Callable[[sqlite3.Connection, History], None]


def back(table: str, event: str, condition: str = "1") -> Back:
    column = "place" if table == "conversation" else "conversation"
    return lambda db, history: put_back(db, history, table, f"{column} = {history.place[event]} AND {condition}")


def both(*backs: Back) -> Back:
    def put(db: sqlite3.Connection, history: History) -> None:
        for one in backs:
            one(db, history)

    return put


def description_back(event: str) -> Back:
    def put(db: sqlite3.Connection, history: History) -> None:
        with inside(history.early) as early:
            meta = conversation(early, history.place[event])["meta"]
        update(db, "conversation", conversation(db, history.place[event]), meta=meta)

    return put


BACK: dict[str, Back] = {
    "a message as it was before it was relabelled": back("message", "relabelled"),
    "the same with its tags": both(back("message", "relabelled"), back("tag", "relabelled")),
    "a pack as it was before": back("pack", "relabelled in a pack"),
    "a pack as it was before, with its messages": both(
        back("pack", "relabelled in a pack"), back("message", "relabelled in a pack")
    ),
    "a deleted message": back("message", "shrunk"),
    "a deleted message without its pack": back("message", "shrunk in a pack"),
    "a deleted message with its pack": both(back("message", "shrunk in a pack"), back("pack", "shrunk in a pack")),
    "a pack with a deleted message": back("pack", "shrunk in a pack"),
    "the items of before": back("item", "relabelled"),
    "the items of before a message was deleted, and the message": both(
        back("item", "shrunk"), back("message", "shrunk")
    ),
    "the items of before, and the message": both(back("item", "relabelled"), back("message", "relabelled")),
    "the row of a conversation that has grown": back("conversation", "grown"),
    "the row of a conversation that has shrunk": back("conversation", "shrunk"),
    "the row of a conversation with a relabelled message": back("conversation", "relabelled"),
    "the row of a conversation that has moved on": back("conversation", "moved on"),
    "the description of a conversation": description_back("renamed"),
    "the description of one that has moved on": description_back("moved on"),
    "all but the row of a conversation that has grown": back("message", "grown"),
}


@pytest.mark.parametrize("name", BACK)
def test_what_is_put_back_is_never_believed(history: History, quick: Path, name: str) -> None:
    path = copied(history.world.path, quick)
    with inside(path) as db:
        BACK[name](db, history)
    outcome = examined(history.world, path)
    assert not outcome.false, "\n".join(outcome.false[:20])
    assert outcome.noticed


@pytest.mark.parametrize("event", EVENTS)
def test_a_whole_conversation_put_back_reads_as_it_was_and_only_a_witness_outside_of_the_store_could_tell(
    history: History, quick: Path, event: str
) -> None:
    path = copied(history.world.path, quick)
    with inside(path) as db:
        for table, where in all_of(history.place[event]).items():
            put_back(db, history, table, where)
        db.execute("UPDATE conversation SET shelf = active_at WHERE place = ?", (history.place[event],))
    with opened(history.early, history.world.key) as store:
        was = [store.conversation(history.id[event]).thread(), store.conversation(history.id[event]).title]
    with opened(path, history.world.key) as store:
        talk = store.conversation(history.id[event])
        assert [talk.thread(), talk.title] == was
        assert store.verify().ok


def test_a_row_put_back_alone_is_noticed_even_if_only_a_title_has_changed(history: History, quick: Path) -> None:
    path = copied(history.world.path, quick)
    with inside(path) as db:
        back("conversation", "renamed")(db, history)
    with opened(path, history.world.key) as store:
        assert not store.verify().ok
        with pytest.raises(Damaged):
            store.conversation(history.id["renamed"])


def test_a_whole_conversation_taken_away_is_missed_by_nobody_but_a_witness(history: History, quick: Path) -> None:
    path = copied(history.world.path, quick)
    with inside(path) as db:
        for table, where in all_of(history.place["grown"]).items():
            db.execute(f"DELETE FROM {table} WHERE {where}")
    with opened(path, history.world.key) as store:
        with pytest.raises(NotFound):
            store.conversation(history.id["grown"])
        assert store.verify().ok


# -- downgrades

FORGED = "a forged text"


def plain_body(text: str = FORGED) -> bytes:
    """What anybody can write: content with a fitting checksum."""
    content = encode(Body((Block.text(text),)))
    return zlib.crc32(content).to_bytes(4, "big") + content


def forgeries(world: World, path: Path, key: Key | None) -> list[str]:
    """Where forged text is given out."""
    try:
        store = opened(path, key)
    except HithertoError:
        return []
    with store:
        told = {
            "messages": answer(lambda: [m.text for m in store.messages()]),
            "search": answer(lambda: [hit.snippet for hit in store.search("forged")]),
            "titles": answer(lambda: [one.title for one in store.conversations(limit=100) if not one.problem]),
        }
        for id in (*world.asked[ONE].conversations, *(one.id for one in store.conversations(limit=100))):
            told[f"thread({id})"] = answer(lambda id: [m.text for m in store.conversation(id).thread()], id)
        return [name for name, answered in told.items() if "forged" in repr(answered)]


def all_plain(db: sqlite3.Connection, place: int) -> None:
    """A conversation without any sealing."""
    meta = encode(Meta("a forged title"))
    closed = zlib.crc32(meta).to_bytes(4, "big") + meta
    update(db, "conversation", conversation(db, place), data_key=b"", proof=b"", meta=closed, tips=b"\x90")
    db.execute("DELETE FROM pack WHERE conversation = ?", (place,))
    db.execute("UPDATE message SET body = ? WHERE conversation = ?", (plain_body(), place))


def plain_message(db: sqlite3.Connection) -> None:
    update(db, "message", message(db, 194), body=plain_body())


def plain_conversation(db: sqlite3.Connection) -> None:
    all_plain(db, 2)


def plain_conversation_added(db: sqlite3.Connection) -> None:
    insert(db, "conversation", conversation(db, 4), place=90, id=b"\1" * 16, shelf=5, key=None, head=3200, count=1)
    update(db, "conversation", conversation(db, 90), next_seq=1)
    insert(db, "message", message(db, 194), number=3200, conversation=90, seq=0, parent=None, key=None)
    all_plain(db, 90)


def unproven(db: sqlite3.Connection, place: int, **values: Value) -> None:
    """A row as if it were being made right now: those have no proof yet."""
    of = conversation(db, place)
    update(db, "conversation", of, proof=b"", version=of["created_at"], **values)


def with_none(box: Value) -> bytes:
    """The box of keys, with "none" as a further key: what a store has while it is sealed or unsealed."""
    assert isinstance(box, bytes)
    slots = sealed.read_box(box)
    return sealed.write_box((*slots, sealed.Slot(sealed.NO_KEY, 0, 0)))


def box_of_the_workspace(db: sqlite3.Connection) -> None:
    """The workspace seems to be sealed this moment, and has a plain conversation."""
    update(db, "conversation", conversation(db, 1), data_key=with_none(conversation(db, 1)["data_key"]))
    plain_conversation_added(db)


def box_of_an_unproven_workspace(db: sqlite3.Connection) -> None:
    unproven(db, 1, data_key=with_none(conversation(db, 1)["data_key"]))
    plain_conversation_added(db)


def box_of_an_unproven_conversation(db: sqlite3.Connection) -> None:
    unproven(db, 1, data_key=with_none(conversation(db, 1)["data_key"]))
    unproven(db, 2, data_key=with_none(conversation(db, 2)["data_key"]))
    plain_message(db)


def box_of_a_conversation(db: sqlite3.Connection) -> None:
    unproven(db, 2, data_key=with_none(conversation(db, 2)["data_key"]))
    plain_message(db)


DOWNGRADES: dict[str, Tamper] = {
    "a plain message in a sealed conversation": plain_message,
    "a conversation made plain": plain_conversation,
    "a plain conversation added": plain_conversation_added,
    "a workspace that seems to be sealed this moment": box_of_the_workspace,
    "the same, as if it were being made": box_of_an_unproven_workspace,
    "a conversation that seems to be sealed this moment": box_of_a_conversation,
    "the same, and its workspace": box_of_an_unproven_conversation,
}


@pytest.mark.parametrize("name", DOWNGRADES)
def test_what_is_plain_is_refused_in_a_sealed_store(world: World, copy: Path, name: str) -> None:
    with inside(copy) as db:
        DOWNGRADES[name](db)
    for key in (world.key, None):
        assert not forgeries(world, copy, key)
    outcome = examined(world, copy)
    assert not outcome.false, "\n".join(outcome.false[:20])
    assert outcome.noticed


UNPROVEN: dict[str, dict[str, Value]] = {
    "another head": {"head": 3},
    "no hold": {"held": 0},
    "another count": {"count": 7},
    "as it was": {},
}


@pytest.mark.parametrize("name", UNPROVEN)
def test_a_row_without_a_proof_is_never_believed(world: World, copy: Path, name: str) -> None:
    with inside(copy) as db:
        unproven(db, 2 if name != "no hold" else 3, **UNPROVEN[name])
    outcome = examined(world, copy)
    assert not outcome.false, "\n".join(outcome.false[:20])
    assert outcome.noticed


def test_a_sealed_conversation_is_refused_in_a_plain_store(world: World, quick: Path) -> None:
    path = quick / "plain.db"
    path.unlink(missing_ok=True)
    with opened(path, None) as store:
        store.start(title="plain").append(Message.user("in clear"))
    with inside(world.path) as db:
        sealed_row, sealed_messages = conversation(db, 3), rows(db, "message", "conversation = 3 AND body IS NOT NULL")
    with inside(path) as db:
        insert(db, "conversation", sealed_row, place=90, shelf=5)
        for m in sealed_messages:
            insert(db, "message", m, conversation=90)
    with opened(path, None) as store:
        id = next(
            one.id for one in store.conversations() if one.id.replace("-", "") == bytes_of(sealed_row["id"]).hex()
        )
        with pytest.raises(KeyUnavailable):
            store.conversation(id)
        with pytest.raises((KeyUnavailable, Damaged)):
            _ = next(one for one in store.conversations() if one.id == id).title
        assert not store.verify().ok


def bytes_of(value: Value) -> bytes:
    assert isinstance(value, bytes)
    return value


def test_a_plain_workspace_in_the_place_of_a_sealed_one_is_refused(world: World, copy: Path, quick: Path) -> None:
    path = quick / "plain.db"
    path.unlink(missing_ok=True)
    opened(path, None).close()
    with inside(path) as db:
        plain = row(db, "conversation", "kind = 'workspace'")
    with inside(copy) as db:
        update(db, "conversation", conversation(db, 1), **{name: plain[name] for name in ("id", *_ROW)})
    with pytest.raises(NotSealed):
        opened(copy, world.key)
    with opened(copy, None) as store:
        assert isinstance(answer(lambda: list(store.messages())), Failed)
        for id in world.asked[ONE].conversations:
            with pytest.raises(KeyUnavailable):
                store.conversation(id)


def test_a_store_that_has_data_never_gets_a_fresh_key(world: World, copy: Path) -> None:
    with inside(copy) as db:
        remove(db, "conversation", conversation(db, 1))
    before = copy.read_bytes()
    for key in (world.key, Key.generate(), None):
        with pytest.raises(Damaged):
            opened(copy, key)
    assert copy.read_bytes() == before


def test_a_workspace_put_back_after_a_rotation_opens_with_the_old_key_and_gives_nothing_away(
    world: World, copy: Path
) -> None:
    with inside(copy) as db:
        old = conversation(db, 1)
    with opened(copy, world.key) as store:
        store.rotate(Key.generate())
    with inside(copy) as db:
        update(db, "conversation", conversation(db, 1), **{name: old[name] for name in _ROW})
    with opened(copy, world.key) as store:
        assert not store.verify().ok
        for id in world.asked[ONE].conversations:
            with pytest.raises(Damaged):
                store.conversation(id)


def test_a_workspace_put_back_to_when_it_was_being_sealed_lets_in_what_is_plain(world: World, quick: Path) -> None:
    """Not to be noticed from inside the file, like every rollback of all that there is: SECURITY.md says so."""
    with tempfile.TemporaryDirectory(dir=quick) as folder:
        path, key = Path(folder) / "chats.db", Key.generate()
        seen: list[bytes] = []

        def look_at_it(_: object) -> None:
            if not seen:
                db = apsw.Connection(str(path))  # the same SQLite, or its locks would be lost
                db.execute("VACUUM INTO ?", (f"{path}-early",))
                db.close()
                seen.append(b"")

        with opened(path, None, ONE, clock()) as store:
            fill(store, "wombat")
            assert store.seal(key, progress=look_at_it).complete
        with inside(Path(f"{path}-early")) as db:
            early = conversation(db, 1)
        with inside(path) as db:
            update(db, "conversation", conversation(db, 1), **{name: early[name] for name in _ROW})
            plain_conversation_added(db)
        assert forgeries(world, path, key)


# -- what is in quarantine


@pytest.mark.parametrize("message", [b"", (194).to_bytes(8, "big")], ids=["a conversation", "a message"])
def test_a_forged_note_in_the_quarantine_destroys_nothing(world: World, copy: Path, message: bytes) -> None:
    with inside(copy) as db:
        key = b"quarantine/" + bytes_of(conversation(db, 2)["id"]) + message
        insert(db, "item", {"conversation": 1, "key": key, "revision": 0, "body": b"forged"})
    with opened(copy, world.key) as store:
        assert store.purge_quarantine().purged_count == 0
        assert not store.quarantine()
    assert not examined(world, copy).false


def test_purging_the_quarantine_does_not_hide_what_else_was_tampered_with(world: World, copy: Path) -> None:
    with inside(copy) as db:
        leaf_and_pack(db)
        without("tag", "workspace = 1 AND message = 160")(db)
        update(db, "message", message(db, 194), body=b"damaged")
    with opened(copy, world.key) as store:
        for _ in store.messages():
            pass
        store.purge_quarantine()
        assert not store.verify().ok


# -- while the store is open


def test_a_row_that_is_changed_while_its_conversation_is_in_use_is_never_believed(world: World, copy: Path) -> None:
    id = world.asked[ONE].conversations[1]
    with opened(copy, world.key) as store:
        held = store.conversation(id)
        was = held.thread()
        db = apsw.Connection(str(copy))  # the same SQLite, or its locks would be lost
        db.execute("UPDATE conversation SET head = 3 WHERE place = 2")
        db.close()
        found = answer(lambda: store.conversation(id).thread())
        assert found == was or isinstance(found, Failed)
        assert held.thread() == was
        assert held.append(Message.user("on top of it"), on_conflict="follow").parent == was[-1].id


# -- without the key


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def pending(world: World, tmp_path: Path) -> Path:
    """A store whose last process was killed: its newest writes are in the WAL."""
    (tmp_path / "live").mkdir()
    path = Path(shutil.copy(world.path, tmp_path / "live" / "chats.db"))
    with opened(path, world.key) as store:
        store.start(title="the last one").append(Message.user("the last words"))
        shutil.copytree(tmp_path / "live", tmp_path / "killed", ignore=shutil.ignore_patterns("*-shm"))
    found = tmp_path / "killed" / "chats.db"
    assert (tmp_path / "killed" / "chats.db-wal").stat().st_size
    return found


@pytest.mark.parametrize("key", [None, Key(bytes(range(32)))], ids=["no key", "another key"])
def test_without_the_key_nothing_is_touched(world: World, tmp_path: Path, key: Key | None) -> None:
    path = Path(shutil.copy(world.path, tmp_path / "chats.db"))
    before = files(tmp_path)
    for workspace in (ONE, TWO):
        with pytest.raises(KeyUnavailable):
            opened(path, key, workspace)
    assert files(tmp_path) == before


@pytest.mark.parametrize("key", [None, Key(bytes(range(32)))], ids=["no key", "another key"])
def test_without_the_key_what_is_in_the_wal_stays_there(world: World, pending: Path, key: Key | None) -> None:
    before = files(pending.parent)
    for workspace in (ONE, TWO):
        with pytest.raises(KeyUnavailable):
            opened(pending, key, workspace)
    after = files(pending.parent)
    after.pop(pending.name + "-shm", None)  # SQLite's own notes of what is in the WAL
    assert after == before
    with opened(pending, world.key) as store:
        assert store.search("last")


def test_with_the_key_something_is_touched(world: World, pending: Path) -> None:
    """The control of the two above: the comparison would notice."""
    before = files(pending.parent)
    opened(pending, world.key).close()
    assert files(pending.parent) != before


# -- what can be read in the files

# Every text of `fill` has one of the first two in it; the rest is from its attachments, and what is in all of them.
TRACES = (b"wombat", b"quokka", b"question", b"errand", b"image/png", b"input_tokens", b"subagent:", b"system_prompt")


def traces(folder: Path, *more: bytes) -> list[str]:
    """Which words of what was kept can be read in which files."""
    return [
        f"{trace!r} in {path.name}"
        for path in sorted(folder.iterdir())
        for trace in (*TRACES, *more, noise("wombat")[:16], noise("wombat")[40_000:40_016])
        for form in (trace, trace.decode("latin-1").encode("utf-16-le"))
        if form.lower() in path.read_bytes().lower()
    ]


def test_no_word_can_be_read_in_any_file_of_a_sealed_store(tmp_path: Path) -> None:
    folder = tmp_path / "folder"  # files are looked at by their content and in it by nobody else
    folder.mkdir()
    path, key = folder / "chats.db", Key.generate()
    with opened(path, key, ONE, clock()) as store:
        assert not traces(folder)
        fill(store, "wombat")
        assert (folder / "chats.db-wal").stat().st_size > 100_000
        assert not traces(folder)
        assert store.search("question")
        assert not traces(folder)
        talk = store.ensure("wombat-ensured")
        store.delete([talk.thread()[-1]])
        talk.rename("wombat renamed")
        store.maintain()
        assert not traces(folder)
        store.backup(folder / "backup.db")
        for anew in (False, True):
            key = Key.generate()
            assert store.rotate(key, reencrypt=anew).complete
            assert not traces(folder)
        assert store.search("question")
        assert store.verify().ok
    assert not traces(folder)
    with opened(path, key) as store:
        store.purge(store.ensure("wombat-ensured"), reason="user-requested")
        assert not traces(folder)
    assert {path.name for path in folder.iterdir()} == {"chats.db", "chats.db-ballast", "backup.db"}
    assert not traces(folder)


def test_no_word_can_be_read_in_any_file_of_a_store_that_was_sealed_later(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with opened(folder / "chats.db", None, ONE, clock()) as store:
        fill(store, "wombat")
        words = {trace.split("'")[1] for trace in traces(folder)}
        assert words >= {"wombat", "question", "image/png"}  # the control: there, they are found
        assert store.seal(Key.generate()).complete
        assert store.scrub()
        assert not traces(folder)
    assert not traces(folder)


# -- flipped bits anywhere in the file


@pytest.mark.parametrize("seed", range(8 if THOROUGH else 1))
def test_a_file_with_flipped_bits_never_tells_anything_false(world: World, quick: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(12):
        path = copied(world.path, quick)
        data = bytearray(path.read_bytes())
        for _ in range(chance.choice((1, 1, 2, 8))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        outcome = examined(world, path)
        assert not outcome.false, "\n".join(outcome.false[:10])


@pytest.mark.timeout(10)
def test_a_conversation_that_only_an_index_knows_is_not_looked_for_for_ever(world: World, copy: Path) -> None:
    """One flipped bit is enough."""
    data = copy.read_bytes()
    with inside(copy) as db:
        front = bytes_of(row(db, "conversation", f"workspace = 1 AND kind = 'chat' AND shelf = {1 << 62}")["id"])
    entry = b"chat" + (1 << 62).to_bytes(8, "big") + front
    assert data.count(entry) == 1
    copy.write_bytes(data.replace(entry, flipped(entry, len(entry) - 1)))
    with opened(copy, world.key) as store:
        assert isinstance(answer(store.latest), (Failed, Conversation))


def test_a_message_that_an_index_gives_in_the_place_of_another_is_not_shown_twice(world: World, copy: Path) -> None:
    """One flipped bit in `message_by_seq`: the entry of message 133 leads to 132."""
    data = copy.read_bytes()
    with inside(copy) as db:
        entry = bytes((4, 1, 1, 2, 2, number(message(db, 133)["seq"]), 0, 133))  # types, conversation 2, sequence, row
    assert data.count(entry) == 1
    copy.write_bytes(data.replace(entry, flipped(entry, len(entry) - 1)))
    outcome = examined(world, copy)
    assert not outcome.false, "\n".join(outcome.false[:20])
    assert outcome.noticed


# -- calls that show what they read from headers and rows


@pytest.mark.parametrize(
    "tamper",
    [
        set_to("message", "number = 194", created_at=START),
        set_to("message", "number = 64", parent=3),
        without("message", "number = 194"),
        again("conversation", "place = 3", place=90, id=b"\1" * 16, shelf=5),
        set_to("conversation", "place = 2", count=1000),
        set_to("message", "number = 193", created_at=START, role="assistant"),
    ],
    ids=["branches: time", "branches: depth", "branches: leaves", "conversations: total", "stats", "search: role"],
)
def test_a_call_that_only_shows_headers_checks_them(world: World, copy: Path, tamper: Tamper) -> None:
    with inside(copy) as db:
        tamper(db)
    outcome = examined(world, copy)
    assert not outcome.false, "\n".join(outcome.false[:20])
    assert outcome.noticed


# -- controls: without the protection, the same checks find something false


def test_control_without_the_tag(world: World, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unchecked(primitives.Cipher):
        __slots__ = ("_key",)

        def __init__(self, key: bytes) -> None:
            super().__init__(key)
            self._key = key

        def open(self, sealed: bytes, place: bytes) -> bytes:
            nonce, content = sealed[:12], sealed[12:-16]
            decryptor = RawCipher(algorithms.AES(self._key), modes.CTR(nonce + b"\0\0\0\2")).decryptor()
            return decryptor.update(content)

    monkeypatch.setattr(primitives, "Cipher", Unchecked)
    with inside(copy) as db:
        body = bytes_of(message(db, 193)["body"])
        at = len(body) - 16 - 30  # in the text
        update(db, "message", message(db, 193), body=flipped(body, at))
    assert examined(world, copy).false


@pytest.mark.parametrize(
    "move", ["the bodies of two messages", "the bodies of messages of two workspaces", "two setups"]
)
def test_control_without_the_place(quick: Path, monkeypatch: pytest.MonkeyPatch, move: str) -> None:
    """The bodies of two workspaces are kept apart by their keys, too."""
    monkeypatch.setattr(sealed.SealedEnvelope, "_message_place", lambda *_: b"anywhere")
    monkeypatch.setattr(sealed.SealedEnvelope, "_bytes_of", lambda *_: b"anywhere")
    with tempfile.TemporaryDirectory(dir=quick) as folder:
        weak = made(Path(folder))
        with inside(weak.path) as db:
            MOVES[move](db)
        assert bool(examined(weak, weak.path).false) == (move != "the bodies of messages of two workspaces")


@pytest.mark.parametrize("values", [{"head": 3}, {"held": 1}, {"count": 7}, {"active_at": START}], ids=str)
def test_control_without_the_proof_of_a_row(
    world: World, copy: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, Value]
) -> None:
    with inside(copy) as db:
        update(db, "conversation", conversation(db, 2), **values)
    assert not examined(world, copy).false
    monkeypatch.setattr(sealed.SealedEnvelope, "total", lambda *_: 0)
    assert examined(world, copy).false


def test_control_without_the_refusal_of_what_is_plain(
    world: World, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with inside(copy) as db:
        plain_conversation_added(db)
    assert not forgeries(world, copy, world.key)
    monkeypatch.setattr(sealed.Sealed, "_agrees", lambda *_: True)
    assert forgeries(world, copy, world.key)


@pytest.mark.parametrize("name", ["a message as it was before it was relabelled", "a pack as it was before"])
def test_control_without_the_ledger(history: History, quick: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(ConversationState, "ledger", property(lambda _: NOTHING))
    path = copied(history.world.path, quick)
    with inside(path) as db:
        BACK[name](db, history)
    assert examined(history.world, path).false


def test_control_nothing_is_false_or_noticed_where_nothing_was_changed(world: World, copy: Path) -> None:
    outcome = examined(world, copy)
    assert not outcome.false
    assert not outcome.noticed


# -- the policy of a workspace


def workspace_row(path: Path) -> tuple[Value, ...]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        (row,) = db.execute("SELECT * FROM conversation WHERE kind <> 'chat'").fetchall()
        return tuple(row)


def put_row_back(path: Path, row: tuple[Value, ...]) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        names = [name for _, name, *_ in db.execute("PRAGMA table_info(conversation)")]
        changed = ", ".join(f"{name} = ?" for name in names)
        db.execute(f"UPDATE conversation SET {changed} WHERE kind <> 'chat'", row)


class Revived(NamedTuple):
    """A store whose policy was 7 days, then something else, and is 7 days again because a row was put back."""

    path: Path
    key: Key
    clock: Callable[[], int]

    def open(self, **how: bool) -> Store:
        return hitherto.open(self.path, key=self.key, clock=self.clock, maintenance=how.get("maintenance", False))


@pytest.fixture(params=[None, 90], ids=["switched off", "lengthened"])
def revived(tmp_path: Path, request: pytest.FixtureRequest) -> Revived:
    now = [START]

    def tick() -> int:
        now[0] += 1000
        return now[0]

    world = Revived(tmp_path / "chats.db", Key.generate(), tick)
    with world.open() as store:
        store.start(title="precious").append(Message.user("keep this"))
        store.set_retention(hitherto.RetentionPolicy(7))
    row = workspace_row(world.path)
    with world.open() as store:
        store.set_retention(None if request.param is None else hitherto.RetentionPolicy(request.param))
    now[0] += 30 * 86_400 * 1_000_000
    put_row_back(world.path, row)
    return world


def titles(world: Revived) -> list[str]:
    with world.open() as store:
        return [info.title for info in store.conversations()]


def test_a_policy_that_was_put_back_purges_nothing_in_a_process_that_saw_a_newer_one(revived: Revived) -> None:
    with revived.open() as store:
        for use in (store.sweep, store.plan_sweep, lambda: store.retention):
            with pytest.raises(Damaged, match="older than one that was seen before") as refused:
                use()
            assert "set_retention" in str(refused.value.hint)
        store.engine.workspace.describe(
            lambda meta: replace(meta, sweeper=(bytes(16), 0))
        )  # writes raise the version again
        store.engine.workspace.describe(lambda meta: replace(meta, sweeper=None))
        store.engine.workspace.describe(lambda meta: replace(meta, sweeper=(bytes(16), 0)))
        with pytest.raises(Damaged, match="older than one"):
            store.sweep()
    with revived.open(maintenance=True) as store:  # which sweeps by itself
        schedule_of(store)._next = 0
        with pytest.raises(Damaged, match="older than one"):
            store.engine.schedule.sweep(lambda: True)
    assert titles(revived) == ["precious"]
    with revived.open() as store:
        store.set_retention(hitherto.RetentionPolicy(60))  # whoever sets one decides
        assert store.sweep().purged_count == 0
        store.set_retention(hitherto.RetentionPolicy(7))
        assert store.sweep().purged_count == 1


def test_without_the_memory_of_policies_it_destroys_the_conversation(revived: Revived) -> None:
    """The negative control; and what a process meets that begins after the row was put back: SECURITY.md says so."""
    policy_memory._seen.clear()
    with revived.open() as store:
        assert store.sweep().purged_count == 1
    assert titles(revived) == []


def test_a_policy_that_another_process_sets_is_believed(tmp_path: Path) -> None:
    path, key = tmp_path / "chats.db", Key.generate()
    with hitherto.open(path, key=key) as one, hitherto.open(path, key=key) as other:
        for days in (90, 30, 7, 180):
            other.set_retention(hitherto.RetentionPolicy(days))
            assert one.retention == hitherto.RetentionPolicy(days)
        other.set_retention(None)
        assert one.retention is None


def test_the_memory_of_policies_is_bounded() -> None:
    before = dict(policy_memory._seen)
    try:
        for number in range(policy_memory._MAX_REMEMBERED + 10):
            policy_memory.note(("somewhere", number.to_bytes(16, "big")), 1, 7)
        assert len(policy_memory._seen) == policy_memory._MAX_REMEMBERED
    finally:
        policy_memory._seen.clear()
        policy_memory._seen.update(before)


# -- what SECURITY.md says of the rest


def test_an_attachment_that_was_taken_away_with_all_its_rows_is_named(tmp_path: Path) -> None:
    path, key = tmp_path / "chats.db", Key.generate()
    with hitherto.open(path, key=key) as store:
        talk = store.start(title="with a picture")
        picture = Block(type="content", content=os.urandom(200_000), mime_type="image/png", modality="image")
        saved = talk.append(Message(role="user", blocks=[picture]))
        assert store.verify().ok  # the control
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for table in ("chunk", "reference", "attachment"):
            assert db.execute(f"DELETE FROM {table}").rowcount
    with hitherto.open(path, key=key) as store:
        (message,) = store.conversation(talk.id).thread()
        assert message.problem is not None
        assert [problem.message for problem in store.verify().problems] == [saved.id]


def test_a_workspace_row_put_back_brings_its_quota_back_and_only_a_witness_outside_could_tell(tmp_path: Path) -> None:
    path, key = tmp_path / "chats.db", Key.generate()
    with hitherto.open(path, key=key) as store:
        store.start().append(Message.user("something"))
        store.set_quota(1_000_000)
    row = workspace_row(path)
    with hitherto.open(path, key=key) as store:
        store.set_quota(None)
    put_row_back(path, row)
    with hitherto.open(path, key=key) as store:
        assert store.quota == 1_000_000
        assert store.verify().ok


def test_a_note_of_quarantine_that_was_taken_away_is_made_again_when_the_record_is_read(tmp_path: Path) -> None:
    path, key = tmp_path / "chats.db", Key.generate()
    with hitherto.open(path, key=key) as store:
        talk = store.start()
        saved = talk.append(Message.user("something"))
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE message SET body = x'00'")
    for _ in range(2):
        with hitherto.open(path, key=key) as store:
            assert store.quarantine() == []  # nobody can tell that there was a note
            with pytest.raises(Damaged):
                store.get([saved.id])
            assert len(store.quarantine()) == 1
        with contextlib.closing(sqlite3.connect(path)) as db, db:
            query = "DELETE FROM item WHERE conversation = (SELECT place FROM conversation WHERE kind <> 'chat')"
            assert db.execute(query).rowcount
