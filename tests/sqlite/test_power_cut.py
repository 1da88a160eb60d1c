"""The store on a disk that loses what was not synced: the power is cut after every single operation (C1, C6, D14).

One life of a store (conversations, turns, attachments, forks, labels, packs, deletes, purges, backups, closing and
opening again) runs on the simulated disk. It writes down what it began and what was acknowledged; every image of the
disk is then opened with the ordinary VFS and owes exactly that. Beside each claim stands a control: with the
protection taken away, the same check must find the loss.
"""

import errno
import hashlib
import itertools
import os
import random
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import apsw
import pytest

import hitherto
from hitherto import Block, Conversation, HithertoError, Key, Message, Saved, Store
from hitherto._engine import attachments, compression
from hitherto._sealing import primitives
from hitherto.attachment import Attachment
from hitherto.backend import DONE, Batch, Outcome
from hitherto.backends import sqlite
from hitherto.backends.sqlite import connections, erasure, opening
from hitherto.backends.sqlite.erasure import Erasure
from hitherto.errors import Damaged, NotAStore, NotFound, StorageError, StorageFull
from hitherto.testing.faultdisk import FaultDisk, Mode, Operation

from ..support.thorough import THOROUGH

T = TypeVar("T")

FILE = "store.db"
SECRET = "unspeakable"
MODES: tuple[Mode, ...] = ("none", "random", "torn")


@pytest.fixture
def disk(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultDisk]:
    with new_disk(place / "live", monkeypatch) as disk:
        yield disk


def new_disk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> FaultDisk:
    """A disk that also hears the syncs which the store makes itself, and fails them as an operating system does."""
    directory.mkdir()
    disk = FaultDisk(directory)

    def fsync(descriptor: int) -> None:
        try:
            disk.fsync(descriptor)
        except apsw.Error as error:
            raise OSError(errno.EIO, str(error)) from error

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(compression, "_MIN_BYTES", 1 << 40)  # what is squeezed leaves no traces that a test could find
    monkeypatch.setattr(attachments, "CHUNK", 700)  # several chunks and several transactions, of few bytes
    monkeypatch.setattr(attachments, "_AT_ONCE", 2)
    return disk


def synchronous(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    others = [pragma for pragma in opening.PER_CONNECTION if not pragma.startswith("synchronous")]
    monkeypatch.setattr(opening, "PER_CONNECTION", (f"synchronous = {how}", *others))


# What a life did, and what an image owes


@dataclass
class Step:
    """One call, and what is different after it."""

    adds: tuple[str, ...] = ()  # messages, by the first word of their text
    drops: frozenset[str] = frozenset()
    titles: dict[str, str | None] = field(default_factory=dict)
    labels: dict[str, str | None] = field(default_factory=dict)
    purges: str = ""  # no file may hold this afterwards


class Life:
    """A store in use on a disk. Everything that is begun and acknowledged is marked in the disk's log."""

    def __init__(self, disk: FaultDisk, *, tries: int = 1, in_one: bool = True, key: Key | None = None) -> None:
        self.disk = disk
        self.key = key
        self.steps: list[Step] = []
        self.parents: dict[str, str | None] = {}
        self.words: dict[str, str] = {}  # of message ids
        self.attached: dict[str, bytes] = {}  # by the word of their message
        self.refused: list[HithertoError] = []
        self._tries = tries
        self._in_one = in_one
        self._lock = threading.Lock()
        self._count = itertools.count(1)
        self.store = self._try(self._open)

    def _open(self) -> Store:
        return hitherto.open(self.disk.directory / FILE, key=self.key, vfs=self.disk.name)

    def _try(self, call: Callable[[], T]) -> T:
        """A call that may be refused, but not twice: the disk fails one operation only."""
        for _ in range(self._tries - 1):
            try:
                return call()
            except HithertoError as error:
                self.refused.append(error)
        return call()

    def _step(self, step: Step, call: Callable[[], T]) -> T:
        with self._lock:
            number = len(self.steps)
            self.steps.append(step)
            self.disk.mark(f"begun {number}")
        result = call()
        self.disk.mark(f"done {number}")
        return result

    def _word(self, secret: str) -> str:
        return f"{secret}-{next(self._count)}"

    def start(self, title: str) -> Conversation:
        def call() -> Conversation:
            id = f"00000000-0000-4000-8000-{next(self._count):012d}"
            step = Step(titles={id: title})
            return self._step(step, lambda: self.store.start(title=title, id=id, system_prompt="Be brief."))

        return self._try(call)

    def turn(self, talk: Conversation, secret: str = "said", size: int = 30) -> list[Saved]:
        """Two messages that are kept both or not at all."""

        def call() -> list[Saved]:
            words = self._word(secret), self._word(secret)
            self.parents[words[0]] = None if talk.at is None else self.words[talk.at]
            self.parents[words[1]] = words[0]
            texts = [" ".join([word] * size) for word in words]
            messages = [Message.user(texts[0]), Message.assistant(texts[1])]
            saved = self._step(Step(words), lambda: self._say(talk, messages))
            self.words.update({message.id: word for message, word in zip(saved, words, strict=True)})
            return saved

        return self._try(call)

    def _say(self, talk: Conversation, messages: Sequence[Message]) -> list[Saved]:
        return talk.extend(messages) if self._in_one else [talk.append(message) for message in messages]

    def attach(self, talk: Conversation, secret: str = "seen") -> list[Saved]:
        """A message with an attachment of a few chunks."""

        def call() -> list[Saved]:
            word = self._word(secret)
            content = b" ".join([word.encode()] * 150)
            self.parents[word] = None if talk.at is None else self.words[talk.at]
            self.attached[word] = content
            image = Block.image(Attachment(len(content), lambda: iter([content])), "image/png")
            saved = self._step(Step((word,)), lambda: talk.append(Message.user([Block.text(word), image])))
            self.words[saved.id] = word
            return [saved]

        return self._try(call)

    def maintain(self) -> None:
        """Pack all there is. Nothing else is different afterwards."""
        self._try(lambda: self._step(Step(), self.store.maintain))

    def backup(self) -> None:
        """A copy on another disk has all that the store has now."""
        target = self.disk.directory.parent / f"backup-{next(self._count)}.db"
        self._try(lambda: self.store.backup(target))
        with hitherto.open(target, key=self.key) as copy:
            assert copy.verify().ok
            assert list(copy.messages()) == list(self.store.messages())
        target.unlink()

    def label(self, talk: Conversation, message: Saved, label: str | None) -> None:
        step = Step(labels={self.words[message.id]: label})
        self._try(lambda: self._step(step, lambda: talk.label(label, message=message.id)))

    def rename(self, talk: Conversation, title: str) -> None:
        self._try(lambda: self._step(Step(titles={talk.id: title}), lambda: talk.rename(title)))

    def delete(self, message: Saved, *others: Saved) -> None:
        """Delete a message and, with it, the others below it."""
        step = Step(drops=frozenset(self.words[m.id] for m in (message, *others)))
        self._try(lambda: self._step(step, lambda: self.store.delete([message.id], recursive=True, missing_ok=True)))

    def purge(self, talk: Conversation, secret: str, messages: Sequence[Saved]) -> None:
        step = Step(drops=frozenset(self.words[m.id] for m in messages), titles={talk.id: None}, purges=secret)

        def call() -> None:
            try:
                if self.store.purge(talk.id, reason="user-requested").scrub_pending:
                    self._scrubbed()  # the disk failed in the last step, which can be done again
            except NotFound:  # an earlier try got so far
                assert self._tries > 1
                assert self.store.scrub()

        self._try(lambda: self._step(step, call))

    def _scrubbed(self) -> None:
        deadline = time.monotonic() + 10
        while not self.store.scrub():  # maintenance, which was called for, may be at it
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def close(self) -> None:
        try:
            self.store.close()
        except HithertoError as error:
            if self._tries == 1:
                raise
            self.refused.append(error)

    def reopen(self) -> None:
        self.close()
        self.store = self._try(self._open)

    def find(self, id: str) -> Conversation:
        return self._try(lambda: self.store.conversation(id))


def live(life: Life) -> None:
    """All that a store does, in small."""
    one = life.start("one")
    turns = [life.turn(one) for _ in range(2)]
    two = life.start("two")
    secrets = life.turn(two, SECRET) + life.attach(two, SECRET)
    life.maintain()
    secrets += life.turn(two, SECRET, size=300)
    life.label(two, secrets[0], f"label {SECRET}")  # in a pack
    life.rename(two, f"title {SECRET}")
    fork = one.fork(turns[0][1].id)
    forked = life.turn(fork, size=150)
    life.label(one, turns[1][0], "starred")
    life.rename(one, "one, renamed")
    life.delete(*forked)
    seen = life.attach(one)
    life.purge(two, SECRET, secrets)
    life.label(one, turns[1][0], None)
    life.reopen()
    one = life.find(one.id)
    last = life.turn(one)
    three = life.start("three")
    others = life.turn(three, "unmentionable", size=100)
    life.reopen()
    three = life.find(three.id)
    others += life.turn(three, "unmentionable")
    life.maintain()
    life.backup()
    life.purge(three, "unmentionable", others)
    life.delete(last[1])
    one = life.find(one.id)
    life.turn(one)
    life.delete(turns[1][1], *seen, *(message for message in one.thread() if message.seq > seen[0].seq))
    life.close()


class Lost(AssertionError):
    """An image does not hold what it owes."""


@dataclass(frozen=True)
class Held:
    """The content of a store that was opened from an image."""

    found: dict[str, Saved]  # by the first word of their text
    titles: dict[str, str]


Known = dict[frozenset[tuple[str, bytes]], Held]  # by the names of files, and the digests of what is in them


def check(life: Life, at: int, image: Path, known: Known | None = None) -> None:
    """An image that was taken at this operation holds all acknowledged writes, and none that had not begun.

    The content of an image with the very same bytes is `known`, and is not read again; but more may be owed by now."""
    marks = [mark.split() for mark in life.disk.acknowledged_at(at)]
    begun = [int(number) for what, number in marks if what == "begun"]
    done = {int(number) for what, number in marks if what == "done"}
    files = {file.name: file.read_bytes() for file in image.iterdir()}
    for number in done:
        secret = life.steps[number].purges
        if secret and any(secret.encode() in content for content in files.values()):
            raise Lost(f"{at}: purged text is in the files")
    known = {} if known is None else known
    content = frozenset((name, hashlib.sha256(data).digest()) for name, data in files.items())
    if content not in known:
        known[content] = _read(life, at, image)
    _compare(life, at, begun, done, known[content].found, known[content].titles)


def _read(life: Life, at: int, image: Path) -> Held:
    with hitherto.open(image / FILE, key=life.key) as store:
        report = store.verify()
        if not report.ok:
            raise Lost(f"{at}: {[str(problem) for problem in report.problems]}")
        messages = list(store.messages())
        found = {message.text.split()[0]: message for message in messages}
        if len(found) != len(messages):
            raise Lost(f"{at}: some messages are doubled")
        titles = {info.id: info.title for info in store.conversations(limit=100).items}
        for talk in titles:
            store.conversation(talk).thread()
        store.start().append(Message.user("it goes on"))
    return Held(found, titles)


def _compare(
    life: Life, at: int, begun: Sequence[int], done: set[int], found: dict[str, Saved], titles: dict[str, str]
) -> None:
    must: set[str] = set()
    may: set[str] = set()
    names: dict[str, set[str | None]] = {}
    labels: dict[str, set[str | None]] = {}
    for number in begun:
        step, sure = life.steps[number], number in done
        must -= step.drops
        if sure:
            must |= set(step.adds)
            may -= step.drops
        else:
            may |= {*step.adds, *step.drops}
        for ours, theirs in ((names, step.titles), (labels, step.labels)):
            for name, value in theirs.items():
                ours[name] = {value} if sure else {*ours.get(name, {None}), value}
    words = {message.id: word for word, message in found.items()}
    if not must <= found.keys() <= must | may:
        raise Lost(f"{at}: {sorted(must - found.keys())} are missing, {sorted(found.keys() - must - may)} are too many")
    dropped = {word for number in begun for word in life.steps[number].drops}
    for number in begun:
        for together in (set(life.steps[number].adds) - dropped, life.steps[number].drops):
            if len(together & found.keys()) not in (0, len(together)):
                raise Lost(f"{at}: only {sorted(together & found.keys())} of {sorted(together)}")
    for word, message in found.items():
        parent = None if message.parent is None else words.get(message.parent, "missing")
        if parent != life.parents[word]:
            raise Lost(f"{at}: {word} is below {parent}, not below {life.parents[word]}")
        if message.label not in labels.get(word, {None}):
            raise Lost(f"{at}: {word} has the label {message.label}")
        meant = [life.attached[word]] if word in life.attached else []
        if [block.content for block in message.blocks[1:]] != meant:
            raise Lost(f"{at}: the attachment of {word} is not what it was")
    for id, allowed in names.items():
        if titles.get(id) not in allowed:
            raise Lost(f"{at}: {id} has the title {titles.get(id)}, not one of {allowed}")
    if not titles.keys() <= names.keys():
        raise Lost(f"{at}: there are conversations that nobody started")


def telling(log: Sequence[Operation]) -> Iterator[int]:
    """The operations at which something may go wrong in its own way: every one but a write amid writes to the same
    file. Of those that come in a row (a transaction in the WAL, a checkpoint) one stands for all, since nothing happens
    between them that could be left half done: the first, the last or one between them, in turn."""
    turns: dict[str, int] = {}  # how many rows there were, by the file
    for (kind, name), run in itertools.groupby(enumerate(log, 1), lambda one: (one[1].kind, one[1].name)):
        numbers = [number for number, _ in run]
        if kind == "write":
            turns[name] = turns.get(name, -1) + 1
            numbers = [numbers[(0, -1, len(numbers) // 2)[turns[name] % 3]]]
        yield from numbers


def chosen(log: Sequence[Operation], mode: Mode) -> set[int]:
    """The crash points to look at. Where all is lost: every one that is told apart, and every third amid writes. Where
    some writes are kept whole, or torn: every third that is told apart, in turn."""
    if THOROUGH:
        return set(range(len(log) + 1))
    points = sorted({0, len(log), *telling(log)})
    if mode == "none":
        return {*points, *range(0, len(log), 3)}
    return set(points[{"all": 0, "random": 1, "torn": 2}[mode] :: 3])


def losses(life: Life, mode: Mode, into: Path, seed: int = 0) -> tuple[int, list[str]]:
    """How many crash points there are, and what was lost at them."""
    count, lost = 0, []
    known: Known = {}
    looked_at = chosen(life.disk.log, mode)
    for number, image in life.disk.images(mode, into, seed=seed):
        count += 1
        if number not in looked_at:
            continue
        try:
            check(life, number, image, known)
        except (Lost, Damaged, NotAStore) as error:
            lost.append(str(error))
    return count, lost


@pytest.mark.parametrize("mode", MODES)
def test_a_power_cut_at_any_operation_loses_nothing_acknowledged(disk: FaultDisk, place: Path, mode: Mode) -> None:
    """C1, C6: no acknowledged message, label, title or delete is lost, no turn is halved, and what was purged is in
    no file."""
    life = Life(disk)
    live(life)
    count, lost = losses(life, mode, place / "images")
    assert lost == []
    assert count > 300


@pytest.mark.parametrize("mode", [*MODES, "all"])
def test_a_power_cut_amid_checkpoints_loses_nothing_acknowledged(
    disk: FaultDisk, place: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: the WAL is moved into the database, and begun anew, every few commits. `all` is a killed process."""
    monkeypatch.setattr(opening, "PER_CONNECTION", (*opening.PER_CONNECTION, "wal_autocheckpoint = 12"))
    life = Life(disk)
    live(life)
    for seed in range(2 if THOROUGH and mode not in ("none", "all") else 1):
        count, lost = losses(life, mode, place / "images", seed)
        assert lost == []
        assert count > 400


@pytest.mark.parametrize("mode", MODES)
def test_threads_that_ride_one_sync_lose_nothing_acknowledged(disk: FaultDisk, place: Path, mode: Mode) -> None:
    """C1: nobody is told "done" before the commit that carries the others too is on the disk."""
    life = Life(disk)
    talks = [life.start(f"talk {number}") for number in range(6)]

    def say(talk: Conversation) -> None:
        for _ in range(3):
            life.turn(talk)

    with ThreadPoolExecutor(len(talks) + 1) as pool:
        packing = pool.submit(life.maintain)
        list(pool.map(say, talks))
        packing.result()
    life.close()
    assert len(life.steps) == 6 + 6 * 3 + 1
    count, lost = losses(life, mode, place / "images")
    assert lost == []
    assert count > 100


@pytest.mark.parametrize("how", ["OFF", "NORMAL"])
def test_without_a_sync_per_commit_acknowledged_messages_are_lost(
    disk: FaultDisk, place: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control for the three above: it is `synchronous=FULL` that keeps what was acknowledged."""
    synchronous(monkeypatch, how)
    life = Life(disk)
    live(life)
    _, lost = losses(life, "none", place / "images")
    assert sum("are missing" in what for what in lost) > 50


def test_two_commits_instead_of_one_leave_half_a_turn(disk: FaultDisk, place: Path) -> None:
    """C6, the control: a turn is never halved because it is one transaction, not because nobody looks."""
    life = Life(disk, in_one=False)
    live(life)
    _, lost = losses(life, "none", place / "images")
    assert any("only" in what for what in lost)


def test_packing_in_two_commits_leaves_messages_without_their_text(
    disk: FaultDisk, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control for packs: bodies leave the messages in the commit that puts the pack."""
    commit = sqlite.SqliteBackend.commit

    def halved(backend: sqlite.SqliteBackend, batches: Sequence[Batch]) -> list[Outcome]:
        packs = [pack for batch in batches for change in batch.changes for pack in change.pack]
        for pack in packs:
            with backend._connection() as connection:
                between = (pack.first, pack.first + pack.count - 1)
                connection.execute("UPDATE message SET body = NULL WHERE number BETWEEN ? AND ?", between)
        return commit(backend, batches)

    monkeypatch.setattr(sqlite.SqliteBackend, "commit", halved)
    life = Life(disk)
    talk = life.start("one")
    life.turn(talk)
    life.maintain()
    life.close()
    _, lost = losses(life, "none", place / "images")
    assert any("do not agree" in what for what in lost)


def test_attachments_that_are_staged_after_their_message_are_lost(
    disk: FaultDisk, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control for attachments: they are on the disk before the message that refers to them is acknowledged."""
    stage = sqlite.SqliteBackend.stage
    chunks = "UPDATE attachment SET chunks = 4 WHERE workspace = ? AND conversation = ? AND name = ?"

    def hasty(
        backend: sqlite.SqliteBackend, id: bytes, name: bytes, start: int, some: Sequence[bytes], *, last: bool, at: int
    ) -> None:
        stage(backend, id, name, start, some[:1], last=False, at=at)
        with backend._connection() as connection:
            connection.execute(chunks, (backend._workspace, id, name))

    monkeypatch.setattr(sqlite.SqliteBackend, "stage", hasty)
    life = Life(disk)
    life.attach(life.start("one"))
    life.close()
    _, lost = losses(life, "none", place / "images")
    assert any("an attachment has" in what for what in lost)


def test_no_power_cut_brings_purged_text_back(disk: FaultDisk) -> None:
    """D14: not just in the images that chance has drawn: after the acknowledgement nothing on the disk, kept or
    pending, holds a byte of it."""
    life = Life(disk)
    live(life)
    for number, step in enumerate(life.steps):
        if step.purges:
            done = next(operation for operation, mark in disk.marks if mark == f"done {number}")
            assert max(disk.traces(step.purges.encode())) < done


@pytest.mark.parametrize("mode", ["torn"])
def test_a_power_cut_loses_nothing_acknowledged_in_a_sealed_store(disk: FaultDisk, place: Path, mode: Mode) -> None:
    """C1, D6: every image opens with the key, and every proof and ledger in it fits."""
    life = Life(disk, key=Key.generate())
    live(life)
    count, lost = losses(life, mode, place / "images")
    assert lost == []
    assert count > 300
    assert max(disk.traces(SECRET.encode()), default=-1) == -1  # nor was it ever on the disk


class Sealings:
    """Remembers all that was ever sealed, by the conversation in whose place it was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._all: list[tuple[bytes, bytes]] = []
        seal = primitives.Cipher.seal

        def remembered(cipher: primitives.Cipher, data: bytes, place: bytes, nonce: bytes | None = None) -> bytes:
            sealed = seal(cipher, data, place, nonce)
            self._all.append((place, sealed))
            return sealed

        monkeypatch.setattr(primitives.Cipher, "seal", remembered)

    def of(self, conversation: str) -> list[bytes]:
        """Also its key, wrapped."""
        return [sealed for place, sealed in self._all if uuid.UUID(conversation).bytes in place]


def purged(life: Life, disk: FaultDisk, sealings: Sealings) -> Iterator[tuple[int, int]]:
    """For each record of each conversation that was purged: when that was acknowledged, and its last trace."""
    for number, step in enumerate(life.steps):
        if step.purges:
            done = next(operation for operation, mark in disk.marks if mark == f"done {number}")
            for sealed in sealings.of(*step.titles):
                yield done, max(disk.traces(sealed[:28]), default=-1)  # the nonce, and more


def test_no_power_cut_brings_back_what_was_sealed_or_its_key(disk: FaultDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """D9: after the acknowledgement of a purge no ciphertext of it and no wrapped key is on the disk, kept or
    pending; so not even the workspace's key brings it back."""
    sealings = Sealings(monkeypatch)
    life = Life(disk, key=Key.generate())
    live(life)
    traces = list(purged(life, disk, sealings))
    assert len([last for _, last in traces if last >= 0]) > 20
    assert all(last < done for done, last in traces)


def test_without_secure_delete_what_was_sealed_stays_in_the_file(
    disk: FaultDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    others = [pragma for pragma in opening.PER_CONNECTION if not pragma.startswith("secure_delete")]
    monkeypatch.setattr(opening, "PER_CONNECTION", ("secure_delete = OFF", *others))
    monkeypatch.setattr(Erasure, "advance", lambda *_: True)  # tables that are written anew hold nothing of it
    sealings = Sealings(monkeypatch)
    life = Life(disk, key=Key.generate())
    live(life)
    assert any(last >= done for done, last in purged(life, disk, sealings))


def test_without_the_sync_of_the_truncated_wal_purged_text_comes_back(
    disk: FaultDisk, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control for the purge: SQLite truncates the WAL, but only `scrub` syncs it."""
    monkeypatch.setattr(connections, "sync", lambda _: None)
    monkeypatch.setattr(Erasure, "advance", lambda *_: True)  # whose commits would put new frames over the old
    life = Life(disk)
    live(life)
    _, lost = losses(life, "none", place / "images")
    assert any("purged text" in what for what in lost)


# A disk that fails while it runs


def same_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same random numbers, hence the same operations in every life."""
    monkeypatch.setattr(os, "urandom", random.Random(0).randbytes)


def one_error_each(
    place: Path, monkeypatch: pytest.MonkeyPatch, first: int = 1, step: int = 6
) -> Iterator[tuple[int, str | None]]:
    """Lives with one I/O error each, at one operation after the other: how many calls were refused, and what was
    lost."""
    same_life(monkeypatch)
    with new_disk(place / "unharmed", monkeypatch) as disk:
        live(Life(disk))
        numbers = range(1, disk.operations + 1) if THOROUGH else list(telling(disk.log))[::step]
    for number in numbers:
        if number < first:
            continue
        same_life(monkeypatch)
        with new_disk(place / f"live-{number}", monkeypatch) as disk:
            disk.fail(number)
            life = Life(disk, tries=2)
            problem = None
            try:
                live(life)
                disk.heal()
                check(life, disk.operations, disk.image(disk.operations, "none", place / f"image-{number}"))
                check(life, disk.operations, disk.directory)
            except (Lost, HithertoError, OSError) as error:
                problem = f"operation {number} failed: {error!r}"
            finally:
                life.store.close()
            assert disk.log[number - 1].kind in ("failed", "adopt")  # to adopt is no operation of the program
            yield len(life.refused), problem
        shutil.rmtree(disk.directory)
        shutil.rmtree(place / f"image-{number}", ignore_errors=True)


def test_one_io_error_anywhere_is_raised_or_does_no_harm(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: each call raises a HithertoError or is kept; the next try works; what was refused is there wholly or not
    at all."""
    lives = list(one_error_each(place, monkeypatch))
    assert [problem for _, problem in lives if problem] == []
    assert len(lives) > (700 if THOROUGH else 35)
    assert sum(refused for refused, _ in lives) > (100 if THOROUGH else 15)


def test_a_backend_that_hides_io_errors_loses_messages(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control for the one above."""
    commit = sqlite.SqliteBackend.commit

    def careless(backend: sqlite.SqliteBackend, batches: Sequence[Batch]) -> list[Outcome]:
        try:
            return commit(backend, batches)
        except StorageError:
            return [DONE] * len(batches)

    monkeypatch.setattr(sqlite.SqliteBackend, "commit", careless)
    assert any(problem and "are missing" in problem for _, problem in one_error_each(place, monkeypatch, 550, 1))


def fill(life: Life, talk: Conversation) -> None:
    """Go on until the disk is full: until not even a little fits."""

    def go_on(size: int) -> None:
        for _ in range(100):
            life.turn(talk, size=size)

    for size in (2000, 30):
        with pytest.raises(StorageFull) as refused:
            go_on(size)
        assert refused.value.hint


def some_losses(life: Life, place: Path, first: int = 0) -> list[str]:
    """Return the losses at some or all of the crash points: on a full disk many operations repeat."""
    if THOROUGH:
        return [loss for mode in MODES for loss in losses(life, mode, place / "images")[1]]
    lost: list[str] = []
    known: Known = {}
    for number in sorted(random.Random(1).sample(range(first, life.disk.operations + 1), 50)):
        image = life.disk.image(number, "torn", place / "images" / str(number), seed=number)  # or lost, by chance
        try:
            check(life, number, image, known)
        except (Lost, Damaged, NotAStore) as error:
            lost.append(str(error))
        shutil.rmtree(image)
    return lost


@pytest.mark.parametrize("room", [0, 1_000, 30_000, 100_000])
def test_a_full_disk_refuses_writes_and_reads_go_on(disk: FaultDisk, place: Path, room: int) -> None:
    """D14: `StorageFull` is raised, everything can be read, and with more space the same handles write again."""
    life = Life(disk)
    talk, other = life.start("one"), life.start("two")
    life.turn(talk)
    disk.capacity = disk.used + room
    fill(life, talk)
    fill(life, other)

    def go_on() -> None:
        for number in range(100):
            life.start(f"more {number}")

    with pytest.raises(StorageFull):
        go_on()
    words = [life.words[message.id] for message in talk.thread()]
    others = [life.words[message.id] for message in other.thread()]
    assert words + others == list(life.words.values())
    assert life.store.stats().messages == len(words + others)
    assert life.store.verify().ok
    with hitherto.open(disk.directory / FILE, vfs=disk.name) as second:
        assert len(second.conversation(talk.id).thread()) == len(words)
    disk.capacity += 200_000
    life.turn(talk)
    life.turn(other)
    assert len(talk.thread()) == len(words) + 2
    life.close()
    assert some_losses(life, place) == []


def test_a_purge_on_a_full_disk_makes_room(disk: FaultDisk, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D14: a purge still works, frees space, and then writes resume. Its last step waits for more room."""
    life = Life(disk)
    talk, large = life.start("one"), life.start("two")
    secrets = [message for _ in range(8) for message in life.turn(large, SECRET, size=400)]
    life.turn(talk)
    disk.capacity = disk.used
    fill(life, talk)
    before = disk.operations

    def later(life: Life) -> None:
        assert disk.capacity is not None
        assert disk.used < disk.capacity  # the purge has made room
        disk.capacity += 1_000_000
        scrubbed(life)

    scrubbed = Life._scrubbed
    monkeypatch.setattr(Life, "_scrubbed", later)
    life.purge(large, SECRET, secrets)
    life.turn(talk)
    life.close()
    assert some_losses(life, place, before) == []


def test_room_that_is_taken_before_the_last_step_of_a_purge_only_delays_it(
    disk: FaultDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables are written anew, and before that is moved from the WAL into the file another writer, such as the
    packing of maintenance, takes all the room there is."""
    vacuum = erasure.vacuum
    backend = sqlite.SqliteBackend(disk.directory / FILE, vfs=disk.name)
    with Store(backend, maintenance=False) as store:
        talk, large = store.start(), store.start()
        large.extend([Message.user(" ".join([SECRET] * 400)) for _ in range(8)])
        monkeypatch.setattr(erasure, "vacuum", lambda _: False)
        assert store.purge(large, reason="user-requested").scrub_pending

        def then_full(pool: connections.Pool) -> bool:
            done = vacuum(pool)
            if disk.capacity is None:
                talk.append(Message.user("more " * 40_000))
                disk.capacity = disk.used + 20_000  # for the row that says how far it is
            return done

        monkeypatch.setattr(erasure, "vacuum", then_full)
        assert not store.backend.scrub()
        assert store.scrub()  # what was set aside is room enough for the rest
        assert not [file for file in disk.directory.iterdir() if SECRET.encode() in file.read_bytes()]
