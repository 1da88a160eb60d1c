"""The backend in memory: the readable reference.

Dicts under one lock. The other backends are compared with it, and tests and short-lived programs use it. Rows are
frozen, so handing them out is safe. A batch is checked completely before anything is changed, so it needs no undo.
"""

import threading
from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from ..backend import (
    DONE,
    WORKSPACE,
    AttachmentRow,
    Batch,
    Change,
    Changes,
    ConversationRow,
    DayCount,
    Disk,
    Info,
    ItemRow,
    Lifetime,
    MessageRow,
    Missing,
    Outcome,
    PackRow,
    Position,
    Stale,
    Tag,
    Taken,
    Totals,
    UnpackedRun,
    Where,
)
from ..errors import Closed, InvalidArgument
from ..ids import RUN, new_conversation_id
from ..textindex import TextIndex


class _Attachment:
    """The chunks of an attachment, and the messages that refer to it."""

    def __init__(self) -> None:
        self.chunks: dict[int, bytes] = {}
        self.complete = False
        self.staged_at = 0
        self.messages: set[int] = set()


class MemoryBackend:
    """A workspace in dicts, which is gone when it is closed."""

    def __init__(self, *, identity: bytes | None = None) -> None:
        """`identity` is the id of the workspace. A copy has the id of its source."""
        workspace = identity or new_conversation_id()
        self.info = Info(name="memory", workspace=workspace, location="memory:", durable=False)
        self._feed = new_conversation_id()
        self._lock = threading.RLock()
        self._closed = False
        self._conversations: dict[bytes, ConversationRow] = {}
        self._messages: dict[int, MessageRow] = {}
        self._members: dict[bytes, list[tuple[int, int]]] = {}  # conversation -> (seq, number), sorted
        self._items: dict[bytes, dict[bytes, ItemRow]] = {}
        self._retired = -1  # the highest number that was in use once and is free now
        self._tags: set[tuple[bytes, bytes, int | None]] = set()  # value, conversation, message
        self._packs: dict[int, PackRow] = {}  # by the first number of the run
        self._attachments: dict[tuple[bytes, bytes], _Attachment] = {}  # by conversation and name
        self._commits = 0
        self._moved: dict[bytes, int] = {}  # conversation -> its last commit; purged ones stay

    # -- writing

    def commit(self, batches: Sequence[Batch]) -> list[Outcome]:
        with self._open():
            return [self._commit_one(batch) for batch in batches]

    def _commit_one(self, batch: Batch) -> Outcome:
        for conversation, token in batch.require:
            row = self._conversations.get(conversation)
            if row is None or row.token != token:
                return Stale(conversation, row)
        if batch.every_key is not None:
            for row in self._conversations.values():
                if row.kind != WORKSPACE and not batch.every_key.fits(row.data_key):
                    return Stale(row.id, row)
        for change in batch.changes:
            problem = self._problem(change, is_copy=batch.is_copy)
            if problem is not None:
                return problem
        for change in batch.changes:
            self._apply(change)
        return DONE

    def _problem(self, change: Change, *, is_copy: bool) -> Outcome | None:
        row = self._conversations.get(change.conversation)
        if change.expect is None:
            if row is not None:
                return Taken("id", row.id)
            if change.row is not None and change.row.key is not None:
                for other in self.lookup(key=(change.row.kind, change.row.key)):
                    return Taken("key", other.id)
        elif row is None or row.token != change.expect:
            return Stale(change.conversation, row)
        elif change.rekey and change.row is not None and change.row.key is not None:
            for other in self.lookup(key=(change.row.kind, change.row.key)):
                if other.id != row.id:
                    return Taken("key", other.id)
        for message in change.add:
            if message.number % RUN == 0 and self._run_taken(message.number, is_copy=is_copy):
                return Taken("number", change.conversation)
            if message.key is not None and self.messages(keys=(change.conversation, [message.key])):
                return Taken("message key", change.conversation)
        for _, name in change.attach:
            staged = self._attachments.get((change.conversation, name))
            if staged is None or not staged.complete:
                return Missing(change.conversation, name)
        return None

    def _run_taken(self, first: int, *, is_copy: bool) -> bool:
        """Tell whether a number of this run is, or ever was, in use."""
        was = first <= self._retired and not is_copy
        return was or any(number in self._messages for number in range(first, first + RUN))

    def _apply(self, change: Change) -> None:
        id = change.conversation
        self._commits += 1
        self._moved[id] = self._commits
        if change.row is None:
            for _, number in self._members.pop(id, ()):
                del self._messages[number]
                self._retire(number)
            self._packs = {first: pack for first, pack in self._packs.items() if pack.conversation != id}
            self._attachments = {key: kept for key, kept in self._attachments.items() if key[0] != id}
            self._items.pop(id, None)
            self._tags = {tag for tag in self._tags if tag[1] != id}
            del self._conversations[id]
            return
        self._conversations[id] = change.row
        members = self._members.setdefault(id, [])
        for number, name in change.attach:  # before another message releases it
            self._attachments[id, name].messages.add(number)
        for number in change.drop:
            gone = self._messages.pop(number)
            self._retire(number)
            members.remove((gone.seq, number))
        if change.drop:
            dropped = set(change.drop)
            self._tags = {tag for tag in self._tags if tag[1] != id or tag[2] not in dropped}
            for name in [key[1] for key in self._attachments if key[0] == id]:
                self._let_go(id, name, dropped)
        for number, name in change.detach:
            self._let_go(id, name, {number})
        for message in change.add:
            self._messages[message.number] = message
            insort(members, (message.seq, message.number))
        for message in change.amend:
            self._messages[message.number] = message
        for first in change.unpack:
            del self._packs[first]
        for pack in change.pack:
            self._packs[pack.first] = pack
            for number in range(pack.first, pack.first + pack.count):
                self._messages[number] = _header(self._messages[number])
        items = self._items.setdefault(id, {})
        for item in change.put:
            items[item.key] = item
        for key in change.unput:
            items.pop(key, None)
        self._tags -= {(tag.value, id, tag.message) for tag in change.untag}
        self._tags |= {(tag.value, id, tag.message) for tag in change.tag}

    def _let_go(self, conversation: bytes, name: bytes, messages: set[int]) -> None:
        """Remove the references of these messages to an attachment, and the attachment with its last reference."""
        kept = self._attachments[conversation, name]
        if kept.messages & messages:
            kept.messages -= messages
            if not kept.messages:
                del self._attachments[conversation, name]

    def _retire(self, number: int) -> None:
        self._retired = max(self._retired, number)

    # -- reading

    def lookup(
        self,
        *,
        ids: Sequence[bytes] = (),
        prefix: str | None = None,
        key: tuple[str, bytes] | None = None,
        limit: int = 10,
    ) -> list[ConversationRow]:
        with self._open():
            rows = self._conversations.values()
            if prefix is not None:
                return sorted((r for r in rows if r.id.hex().startswith(prefix)), key=lambda r: r.id)[:limit]
            if key is not None:
                return [r for r in rows if (r.kind, r.key) == key]
            return [self._conversations[id] for id in ids if id in self._conversations]

    def page(self, where: Where, after: Position | None, limit: int, *, oldest_first: bool = False) -> list[Position]:
        with self._open():
            rows = list(self._select(where))
        if oldest_first:
            places = sorted((row.created_at, row.id) for row in rows)
            places = [place for place in places if after is None or place > (after.at, after.id)]
        else:
            places = sorted(((row.active_at, row.id) for row in rows), reverse=True)
            places = [place for place in places if after is None or place < (after.at, after.id)]
        return [Position(*place) for place in places[:limit]]

    def count(self, where: Where) -> int:
        with self._open():
            return sum(1 for _ in self._select(where))

    def totals(self, kind: str) -> Totals:
        with self._open():
            rows = list(self._select(Where(kind)))
        if not rows:
            return Totals()
        count, size = sum(row.count for row in rows), sum(row.size for row in rows)
        return Totals(len(rows), count, size, min(row.created_at for row in rows), max(row.active_at for row in rows))

    def lifetimes(self, kind: str) -> Iterator[list[Lifetime]]:
        with self._open():
            rows = list(self._select(Where(kind)))
        yield [Lifetime(row.id, row.active_at, row.expires_at, row.held) for row in rows]

    def said(self, kind: str, since: int, day: int) -> list[DayCount]:
        with self._open():
            wanted = {row.id for row in self._select(Where(kind)) if row.active_at >= since}
            new = (m for m in self._messages.values() if m.created_at >= since and m.conversation in wanted)
            found = Counter((m.created_at // day, m.role) for m in new)
        return [DayCount(*what, count) for what, count in found.items()]

    def _select(self, where: Where) -> Iterable[ConversationRow]:
        for row in self._conversations.values():
            if row.kind != where.kind:
                continue
            if any((tag, row.id, None) not in self._tags for tag in where.tags):
                continue
            if where.key_prefix is not None and not (row.key or b"").startswith(where.key_prefix):
                continue
            expired = row.expires_at is not None and not row.held
            if where.alive_at is not None and expired and (row.expires_at or 0) <= where.alive_at:
                continue
            if where.expired_at is not None and (row.expires_at is None or row.expires_at > where.expired_at):
                continue
            yield row

    def messages(
        self, *, numbers: Sequence[int] = (), keys: tuple[bytes, Sequence[bytes]] | None = None, bodies: bool = True
    ) -> list[MessageRow]:
        with self._open():
            if keys is not None:
                conversation, wanted = keys
                members = (self._messages[n] for _, n in self._members.get(conversation, ()))
                found = [m for m in members if m.key is not None and m.key in wanted]
            else:
                found = [self._messages[n] for n in dict.fromkeys(numbers) if n in self._messages]
        return [m if bodies else _header(m) for m in found]

    def packs(self, runs: Sequence[int]) -> list[PackRow]:
        with self._open():
            return [self._packs[first] for first in runs if first in self._packs]

    def loose(self, *, full: bool, after: int = -1, limit: int) -> list[UnpackedRun]:
        with self._open():
            wanted = RUN - 1 if full else 0
            numbers = sorted(n for n, m in self._messages.items() if n % RUN == wanted and m.body is not None)
            runs = [UnpackedRun(n - wanted, self._messages[n].conversation) for n in numbers]
        return [run for run in runs if run.first > after][:limit]

    def path(self, number: int) -> Iterator[list[MessageRow] | PackRow]:
        next: int | None = number
        while next is not None:
            with self._open():
                piece = self._piece(next)
            next = piece.parent if isinstance(piece, PackRow) else piece[0].parent if piece else None
            if piece:
                yield piece

    def _piece(self, number: int) -> list[MessageRow] | PackRow:
        """Return the pack that holds this message, or else the loose messages of its run up to this one."""
        first = number - number % RUN
        pack = self._packs.get(first)
        start = first if pack is None else first + pack.count
        if pack is not None and number < start:
            return pack
        rows: list[MessageRow] = []
        while number >= start and number in self._messages:
            rows.append(replace(self._messages[number], key=None, token=b"", size=0))
            number -= 1
        return rows[::-1]

    def root(self, number: int) -> int | None:
        with self._open():
            first: int | None = number - number % RUN
            seen: set[int | None] = set()
            while first in self._messages and first not in seen and number in self._messages:
                seen.add(first)
                parent = self._messages[first].parent
                if parent is None:
                    return first
                first = parent - parent % RUN
        return None

    def scan(
        self,
        conversation: bytes,
        *,
        after: int | None = None,
        newest_first: bool = False,
        limit: int,
        bodies: bool = True,
    ) -> list[MessageRow]:
        with self._open():
            members = self._members.get(conversation, [])
            if newest_first:
                chosen = [n for seq, n in reversed(members) if after is None or seq < after]
            else:
                chosen = [n for seq, n in members if after is None or seq > after]
            found = [self._messages[n] for n in chosen[:limit]]
        return [m if bodies else _header(m) for m in found]

    def kinds(self) -> list[str]:
        with self._open():
            return sorted({row.kind for row in self._conversations.values()})

    def edge(self) -> int:
        with self._open():
            highest = max(self._retired, max(self._messages, default=-1))
        return (highest // RUN + 1) * RUN

    def numbers(self) -> Iterator[list[int]]:
        with self._open():
            numbers = list(self._messages)
        yield numbers

    def tagged(self, value: bytes) -> list[tuple[bytes, int | None]]:
        with self._open():
            found = [(conversation, message) for tag, conversation, message in self._tags if tag == value]
        return sorted(found, key=lambda f: (f[0], -1 if f[1] is None else f[1]))

    def tags(self, conversation: bytes, *, after: Tag | None = None, limit: int) -> list[Tag]:
        with self._open():
            mine = [Tag(value, message) for value, id, message in self._tags if id == conversation]
        return [tag for tag in sorted(mine, key=_order) if after is None or _order(tag) > _order(after)][:limit]

    def items(
        self,
        conversation: bytes,
        prefix: bytes = b"",
        *,
        after: bytes | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[ItemRow]:
        with self._open():
            found = [
                item
                for key, item in sorted(self._items.get(conversation, {}).items(), reverse=reverse)
                if key.startswith(prefix) and (after is None or (key < after if reverse else key > after))
            ]
        return found[:limit]

    # -- attachments

    def stage(
        self, conversation: bytes, attachment: bytes, start: int, chunks: Sequence[bytes], *, last: bool, at: int
    ) -> None:
        with self._open():
            kept = self._attachments.setdefault((conversation, attachment), _Attachment())
            kept.staged_at = at
            if kept.complete:  # and verified: a chunk that comes now is the same one, or a wrong one
                return
            kept.chunks.update(enumerate(chunks, start))
            if last:
                kept.complete = len(kept.chunks) == start + len(chunks)

    def chunks(self, conversation: bytes, attachment: bytes, start: int = 0) -> Iterator[bytes]:
        while True:
            with self._open():
                kept = self._attachments.get((conversation, attachment))
                chunk = None if kept is None else kept.chunks.get(start)
            if chunk is None:
                return
            yield chunk
            start += 1

    def attachments(self, conversation: bytes, names: Sequence[bytes] | None = None) -> list[AttachmentRow]:
        with self._open():
            return [
                AttachmentRow(key[1], len(kept.chunks) * kept.complete, kept.staged_at, tuple(sorted(kept.messages)))
                for key, kept in sorted(self._attachments.items())
                if key[0] == conversation and (names is None or key[1] in names)
            ]

    def attached(self, conversation: bytes) -> int:
        with self._open():
            mine = (kept for (id, _), kept in self._attachments.items() if id == conversation)
            return sum(len(chunk) for kept in mine for chunk in kept.chunks.values())

    def unstage(self, conversation: bytes, names: Sequence[bytes]) -> None:
        with self._open():
            for name in names:
                kept = self._attachments.get((conversation, name))
                if kept is not None and not kept.messages:
                    del self._attachments[conversation, name]

    def collect(self, before: int) -> int:
        with self._open():
            old = [key for key, kept in self._attachments.items() if not kept.messages and kept.staged_at < before]
            for key in old:
                del self._attachments[key]
            return len(old)

    # -- care

    def changes(self, since: bytes | None) -> Changes:
        """A position names the backend and its number of commits."""
        with self._open():
            known = since is not None and since.startswith(self._feed)
            after = int.from_bytes(since[16:], "big") if known and since is not None else 0
            moved = [id for id, commit in self._moved.items() if commit > after]
            position = self._feed + self._commits.to_bytes(8, "big")
            there = [id for id in moved if id in self._conversations]
            return Changes(position, not known, there, [id for id in moved if id not in self._conversations])

    def text_index(self, *, create: bool) -> TextIndex | None:  # noqa: ARG002  # no files to keep one in
        return None

    def maintain(self, seconds: float) -> bool:  # noqa: ARG002  # nothing to tidy up in a dict
        return True

    def backup(self, path: str) -> None:  # noqa: ARG002  # declared in `info`
        raise InvalidArgument("a store in memory cannot be backed up", hint="open it with a path instead")

    def check(self) -> list[str]:
        return []

    def scrub(self) -> bool:
        return True

    def is_scrubbed(self) -> bool:
        return True

    def size(self) -> int:
        with self._open():
            bodies = [m.body or b"" for m in self._messages.values()] + [p.body for p in self._packs.values()]
            chunks = (chunk for kept in self._attachments.values() for chunk in kept.chunks.values())
            return sum(map(len, bodies)) + sum(map(len, chunks))

    def used(self) -> int:
        with self._open():
            chunks = (chunk for kept in self._attachments.values() for chunk in kept.chunks.values())
            return sum(row.size for row in self._conversations.values()) + sum(map(len, chunks))

    def disk(self) -> Disk | None:
        return None

    def close(self, *, untouched: bool = False) -> None:  # noqa: ARG002  # there is nothing to touch
        self._closed = True

    def _open(self) -> threading.RLock:
        if self._closed:
            raise Closed("the store is closed")
        return self._lock


def _order(tag: Tag) -> tuple[int, bytes]:
    return -1 if tag.message is None else tag.message, tag.value


def _header(row: MessageRow) -> MessageRow:
    return replace(row, body=None)
