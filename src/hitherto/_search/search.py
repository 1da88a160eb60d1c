"""Search: feeding the text index, and turning what it finds into hits.

The index is behind, not during: nothing of it happens while a message is saved. A search first takes in what has
moved since the last one, so it always finds what was acknowledged before it began. What the index finds is looked up
in the store, where messages may have been deleted since; snippets are made from the messages themselves.

Several processes may feed one index. Each update names the state of the index that it was prepared from, and is refused
if somebody else has updated it meanwhile: then one starts over. So a message that was deleted in between cannot
come back.

The index of a sealed store is in memory, and what is in it is kept sealed in the store (`sealed_index_store`): the
first search of a process reads that, and only the messages which it lacks.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from .._engine.packs import Reader
from ..attachment import Attachment
from ..backend import CHAT, Changes, ConversationRow, MessageRow, Where
from ..errors import Busy, Closed, Damaged, HithertoError, NotFound, StorageError, StorageFull
from ..events import warn
from ..listing import conversations
from ..textindex import Entry, IndexDamaged, Known, TextIndex

if TYPE_CHECKING:
    from ..store import Store
    from .query import Query
    from .sealed_index import WordIndex
    from .timeline import Limit

Progress = Callable[[int], None]  # hears how many messages are done

_BATCH, _BATCH_BYTES = 512, 8 << 20  # messages, and bytes of text, taken in at a time
_ROWS = 500  # conversations looked up at a time
_LONGEST = 1 << 20  # bytes of a text in an attachment that are looked at
_TIGHT = 16 << 20  # bytes that are free: then the index does not grow
_MANY = 256  # messages: a search that took in so many keeps what it made of them
_TRIES = 50  # how often we start over because another process was faster


class Hit(Struct, frozen=True):
    """A message that fits a search."""

    message_id: str
    conversation: str
    role: str
    created_at: datetime
    snippet: str
    spans: tuple[tuple[int, int], ...]  # the places in the snippet that fit: from, to
    score: float  # higher fits better; 0 unless ranked


class Asked(Struct, frozen=True):
    """A search, checked."""

    query: "Query"
    limit: int
    offset: int
    ranked: bool
    role: str | None
    conversations: Sequence[bytes] | None
    since: int | None
    until: int | None
    alive_at: int | None


class Search:
    """The text index of a store, made when somebody searches for the first time."""

    def __init__(self, store: "Store") -> None:
        self._ref = weakref.ref(store)  # weak, or the store would be freed late, and anywhere
        self._index: TextIndex | None = None
        self._words: WordIndex | None = None  # the same, if the store is sealed
        self._replaced: list[TextIndex] = []
        self._looked = False  # whether there is an index in clear that should not be
        self._opening = threading.Lock()
        self._feeding = threading.Lock()
        self._saving = threading.Lock()
        self._could_save = True
        self._said = False  # that the index cannot be written

    @property
    def _store(self) -> "Store":
        store = self._ref()
        if store is None:
            raise Closed("the store is gone")
        return store

    def _open_index(self, *, create: bool) -> TextIndex | None:
        with self._opening:
            if self._index is None:
                store = self._store
                if store._codec.in_clear:
                    self._index = store.backend.text_index(create=create)
                    if self._index is not None and self._index.was_reset:
                        warn("the search index could not be read and is made again")
                elif create:
                    from .sealed_index import WordIndex  # noqa: PLC0415  # only those who search need it

                    self._index = self._words = WordIndex()
                if self._index is None and create:
                    from ..backends.sqlite.fts import FtsIndex  # noqa: PLC0415  # only those who search need it

                    self._index = FtsIndex(None, store.backend.info.workspace)
            return self._index

    def close(self) -> None:
        for index in [*self._replaced, self._index]:
            if index is not None:
                index.close()

    def restart(self) -> None:
        """The store may have been sealed or unsealed: then begin again. What was indexed in clear, and may not be any
        more, is taken out of the files."""
        in_clear = self._store._codec.in_clear
        with self._opening:
            if self._index is not None and in_clear == (self._words is not None):
                self._replaced.append(self._index)  # others may be searching in it
                self._index = self._words = None
        if not in_clear:
            self._forget_words_in_clear()

    def _forget_words_in_clear(self) -> None:
        """A sealed store has no index in clear; but it may have been plain, and killed when it was sealed."""
        index = self._store.backend.text_index(create=False)
        if index is not None:
            if index.state()[1] is not None or index.conversations():
                index.clear()
            index.scrub()
            index.close()
        self._looked = True

    def size(self) -> int:
        index = self._open_index(create=False)
        return 0 if index is None else index.size()

    # -- asking

    def find(self, asked: Asked, progress: Progress | None = None) -> list[Hit]:
        """The hits, newest or best first. `progress` hears how many messages the index has taken in."""
        try:
            return self._find(asked, progress)
        except StorageError as error:
            if not isinstance(error, StorageFull) and type(error) is not StorageError:
                raise
            if not self._said:
                self._said = True
                warn(f"the search index takes nothing in, and each search makes its own: {type(error).__name__}")
            return self._find_without_it(asked, progress)

    def _find_without_it(self, asked: Asked, progress: Progress | None) -> list[Hit]:
        """The disk is full, or fails what is written, and the index takes nothing in: reading goes on all the same, by
        one in memory, for this search alone."""
        if self._store._codec.in_clear:
            from ..backends.sqlite.fts import FtsIndex  # noqa: PLC0415  # only those who search need it

            index: TextIndex = FtsIndex(None, self._store.backend.info.workspace)
        else:
            from .sealed_index import WordIndex  # noqa: PLC0415  # as above

            index = WordIndex()
        try:
            count = 0
            for some in self._updates(index, Changes(b"once", True, [], [])):
                count += some or 0
                if progress is not None:
                    progress(count)
            return self._hits(index, asked)
        finally:
            index.close()

    def _find(self, asked: Asked, progress: Progress | None) -> list[Hit]:
        index = self._open_index(create=True)
        if index is None:
            raise AssertionError("there is always an index in memory")
        for attempt in (1, 2):
            try:
                count, _ = self._catch_up(index, progress=progress)
                hits = self._hits(index, asked)
                self._save(urgent_only=count < _MANY)
                return hits
            except IndexDamaged as error:
                if attempt == 2:
                    raise
                self._make_again(index, error)
        return []

    def _make_again(self, index: TextIndex, error: Exception) -> None:
        warn(f"the search index is damaged and is made again: {error}")
        index.clear()

    def _hits(self, index: TextIndex, asked: Asked) -> list[Hit]:
        """Of what the index finds, what is there: some may be gone since."""
        end = asked.offset + asked.limit
        want = end
        while True:
            found = index.find(
                asked.query,
                limit=want,
                ranked=asked.ranked,
                role=asked.role,
                conversations=asked.conversations,
                since=asked.since,
                until=asked.until,
            )
            rows = {row.number: row for row in self._store.backend.messages(numbers=[hit.number for hit in found])}
            hidden = self._hidden({row.conversation for row in rows.values()}, asked.alive_at)
            shown = [
                hit
                for hit in found
                if hit.number in rows
                and rows[hit.number].conversation == hit.conversation
                and hit.conversation not in hidden
            ]
            if len(shown) >= end or len(found) < want:
                break
            want *= 4
        reader, hits = Reader(self._store), []
        for hit in shown[asked.offset : end]:
            with suppress(NotFound):  # deleted this moment
                hits.append(self._hit(rows[hit.number], hit.score, asked.query, reader))
        return hits

    def _hidden(self, ids: set[bytes], alive_at: int | None) -> set[bytes]:
        """Of these conversations, those that expired by then."""
        if alive_at is None:
            return set()
        rows = self._store.backend.lookup(ids=list(ids))
        return {row.id for row in rows if row.expires_at is not None and row.expires_at <= alive_at and not row.held}

    def _hit(self, row: MessageRow, score: float, query: "Query", reader: Reader) -> Hit:
        from .snippets import snippet  # noqa: PLC0415  # only those who search need it

        message = self._store._saved(row, lazy=True, reader=reader)
        text, spans = snippet(_text(message.blocks), query)
        return Hit(message.id, message.conversation, message.role, message.created_at, text, spans, score)

    # -- feeding

    def keep_up(self, seconds: float, *, rebuild: bool = True, progress: Progress | None = None) -> tuple[int, bool]:
        """If there is an index, let it take in what moved and forget what went, for about so long; how many messages,
        and whether that was all. With `rebuild`, the last step may take longer than that."""
        if not self._looked and not self._store._codec.in_clear:
            self._forget_words_in_clear()
        index = self._open_index(create=False)
        if index is None:
            return 0, True
        deadline = time.monotonic() + seconds
        try:
            count, complete = self._catch_up(index, deadline, progress)
            complete = complete and self._save(deadline)
            return count, complete and index.scrub(max(0.0, deadline - time.monotonic()), rebuild=rebuild)
        except IndexDamaged as error:
            self._make_again(index, error)
            return 0, False

    def forget(self, seconds: float, conversations: Sequence[bytes] = ()) -> bool:
        """Messages of these conversations were deleted: take their words out of the files. False if that takes longer:
        then maintenance, which is called for, does it."""
        try:
            if self._index is None and not self._store._codec.in_clear:
                from .sealed_index_store import drop_outdated  # noqa: PLC0415  # sealed stores alone need it

                done = drop_outdated(self._store, conversations)
            else:
                done = self._keep_up_or_clear(seconds)
        except HithertoError as error:  # the messages are gone, whatever becomes of the index
            warn(f"the search index keeps words of what was deleted until maintenance succeeds: {error}")
            done = False
        if not done:
            self._store._upkeep.ask()
        return done

    def _keep_up_or_clear(self, seconds: float) -> bool:
        """Taking words out of an index takes room. Without any, all of them go: it is made again when there is some."""
        index = self._open_index(create=False)
        try:
            if index is None or self._words is not None or not self.is_tight:
                return self.keep_up(seconds, rebuild=False)[1]
        except StorageFull:
            if index is None or self._words is not None:
                raise
        index.clear()
        return index.scrub(seconds)

    @property
    def is_tight(self) -> bool:
        """Is there so little room on the disk that the index, which can be made again, is not to take it?"""
        disk = self._store.backend.disk()
        return disk is not None and disk.free < _TIGHT

    def scrub(self) -> bool:
        """The same, however long it takes. False if a reader delays it, or there is no room for it."""
        index = self._open_index(create=False)
        if index is None:
            return True
        try:
            self._catch_up(index)
            if self._words is not None and self._words.list_unsaved():
                return self._save() and self._store.backend.scrub()
            return index.scrub()
        except StorageFull:
            return self._words is None and self._begin_anew(index)

    @staticmethod
    def _begin_anew(index: TextIndex) -> bool:
        """Drop every word instead. False if another thread does the same, and has the room that this takes."""
        try:
            index.clear()
            return index.scrub()
        except StorageFull:
            return False

    def _save(self, deadline: float = float("inf"), *, urgent_only: bool = False) -> bool:
        """Keep what is new in the index of a sealed store, or only take out what must not stay. False if there was not
        enough time, or others are at it."""
        if self._words is None or not (unsaved := self._words.list_unsaved(urgent_only=urgent_only)):
            return True
        if not self._saving.acquire(blocking=False):
            return False
        try:
            from .sealed_index_store import save  # noqa: PLC0415  # sealed stores alone need it

            return save(self._store, self._words, unsaved, deadline)
        except HithertoError as error:  # it is only made again the next time
            if self._could_save:
                warn(f"the search index could not be kept, so the first search of every process is slow: {error}")
            self._could_save = False
            return False
        finally:
            self._saving.release()

    def _catch_up(
        self, index: TextIndex, deadline: float = float("inf"), progress: Progress | None = None
    ) -> tuple[int, bool]:
        """Take in everything that moved; how many messages, and whether that was all."""
        count = 0
        left = -1.0 if deadline == float("inf") else max(0.0, deadline - time.monotonic())
        if not self._feeding.acquire(timeout=left):  # another thread feeds it: for all that we know, for long
            return 0, False
        try:
            for attempt in range(_TRIES):
                for some in self._updates(index):
                    if some is None:
                        break  # another process was faster
                    count += some
                    if progress is not None:
                        progress(count)
                    if time.monotonic() > deadline:
                        return count, False
                else:
                    return count, True
                time.sleep(0.001 * attempt)
        finally:
            self._feeding.release()
        raise Busy("the search index is updated by others all the time")

    def _updates(self, index: TextIndex, changes: Changes | None = None) -> Iterator[int | None]:
        """Bring the index up to date step by step: the number of messages taken in by each, or None if somebody else
        has updated it since."""
        stamp, position = index.state()
        changes = changes or self._store.backend.changes(position)
        if not (changes.everything or changes.moved or changes.gone):  # on a server, the position moves all the time
            return
        if changes.everything and position is not None:  # of another copy of the store, or of long ago
            index.clear()
            stamp, _ = index.state()
        grown: dict[bytes, Known] = {}
        drop: list[int] = []
        forget = list(changes.gone)
        starts = list(self._starts(index, changes, forget))
        is_kept = changes.everything and index is self._words  # a part of it, in the store
        rows = (self._each if is_kept else self._by_time)(index, starts, grown, drop)
        if forget:  # before anything is put: an id may be in use again
            after = index.update(stamp, forget=forget)
            if after is None:
                yield None
                return
            stamp = after
        batch: list[Entry] = []
        progress: dict[bytes, Known] = {}
        reader, size = Reader(self._store), 0
        for row in rows:
            with suppress(NotFound):  # deleted this moment: the feed will say so
                batch.append(self._entry(row, reader))
                size += len(batch[-1].text)
            if row.conversation in grown:
                progress[row.conversation] = replace(grown[row.conversation], next_seq=row.seq + 1)
            if len(batch) == _BATCH or size > _BATCH_BYTES:
                after = index.update(stamp, put=batch, known=list(progress.values()))
                if after is None:
                    yield None
                    return
                stamp = after
                yield len(batch)
                batch, progress, size = [], {}, 0
        after = index.update(
            stamp, put=batch, drop=drop, known=[start.now for start in starts], position=changes.position
        )
        yield None if after is None else len(batch)

    def _starts(self, index: TextIndex, changes: Changes, forget: list[bytes]) -> Iterator["_Start"]:
        """The conversations to look at, by the time of their creation. `forget` gets those that are gone, or had
        another one's id."""
        if not changes.everything:
            yield from self._starts_of_moved(index, changes.moved, forget)
            return
        strangers = set(index.conversations())
        for row in conversations(self._store.backend, Where(CHAT), oldest_first=True):
            yield _start(row, index if row.id in strangers else None, forget)
            strangers.discard(row.id)
        forget += strangers

    def _starts_of_moved(self, index: TextIndex, ids: Sequence[bytes], forget: list[bytes]) -> list["_Start"]:
        """Rows are read some at a time: what is held of them is small."""
        found: list[_Start] = []
        for first in range(0, len(ids), _ROWS):
            rows = self._store.backend.lookup(ids=ids[first : first + _ROWS])
            found += [_start(row, index, forget) for row in rows if row.kind == CHAT]
        return sorted(found, key=lambda start: start.now.created_at)

    def _by_time(
        self, index: TextIndex, starts: Sequence["_Start"], grown: dict[bytes, Known], drop: list[int]
    ) -> Iterator[MessageRow]:
        """The messages of these conversations by time, but those that the index has already."""
        from .timeline import by_time  # noqa: PLC0415  # only those who search need it

        before = {start.now.conversation: start for start in starts}

        def open_one(now: Known, limit: "Limit") -> Iterator[MessageRow]:
            return self._rows_to_index(index, before.pop(now.conversation), grown, drop, limit)

        return self._with_content(by_time((start.now for start in starts), open_one))

    def _each(
        self, index: TextIndex, starts: Sequence["_Start"], grown: dict[bytes, Known], drop: list[int]
    ) -> Iterator[MessageRow]:
        """The same in a sealed store, conversation by conversation: what is kept of it first."""
        from .sealed_index_store import load  # noqa: PLC0415  # sealed stores alone need it

        for first in range(0, len(starts), _ROWS):
            ids = [start.now.conversation for start in starts[first : first + _ROWS]]
            for row in self._store.backend.lookup(ids=ids):
                if self._words is not None:
                    load(self._store, self._words, row)
                found = self._rows_to_index(index, _start(row, index, []), grown, drop, lambda: _BATCH)
                yield from self._of_one(row, found)

    def _of_one(self, row: ConversationRow, found: Iterator[MessageRow]) -> Iterator[MessageRow]:
        header = next(found, None)
        if header is None:
            return
        desk = None
        with suppress(Damaged, NotFound):  # then no message can be read, and that is seen there
            desk = self._store._desk(row)  # kept, or each of them would ask for the key again
        yield from self._with_content(chain([header], found))
        del desk

    def _rows_to_index(
        self, index: TextIndex, start: "_Start", grown: dict[bytes, Known], drop: list[int], limit: "Limit"
    ) -> Iterator[MessageRow]:
        """The new and changed messages of a conversation by sequence, without their content. `grown` gets it if
        nothing but appending happened to it; `drop` gets what is not there any more."""
        from .timeline import headers  # noqa: PLC0415  # as above

        now, before = start.now, start.before
        is_same = before is not None and before.rewrites == now.rewrites
        held = {} if is_same or not start.is_held else index.holds(now.conversation)
        if before is None and not held:
            before, is_same = replace(now, next_seq=0), True
        if before is not None and is_same:
            grown[now.conversation] = before
            if before.next_seq < now.next_seq:
                yield from headers(self._store.backend, now.conversation, before.next_seq - 1, limit)
            return
        for header in headers(self._store.backend, now.conversation, -1, limit):
            if held.pop(header.number, None) != header.revision:
                yield header
        drop += held

    def _with_content(self, headers: Iterator[MessageRow]) -> Iterator[MessageRow]:
        """These messages with their content, a few at a time."""
        wanted: list[int] = []
        size = 0
        for header in headers:
            wanted.append(header.number)
            size += header.size
            if len(wanted) == _BATCH or size > _BATCH_BYTES:
                yield from self._in_order(wanted)
                wanted, size = [], 0
        yield from self._in_order(wanted)

    def _in_order(self, numbers: Sequence[int]) -> Iterator[MessageRow]:
        found = {m.number: m for m in self._store.backend.messages(numbers=numbers)}
        return (found[number] for number in numbers if number in found)

    def _entry(self, row: MessageRow, reader: Reader) -> Entry:
        """A message for the index. One that cannot be read has no words; `verify` tells why."""
        text = _text(self._store._shown(row, lazy=True, reader=reader).blocks)
        return Entry(row.number, row.conversation, row.revision, row.role, row.created_at, text)


class _Start(Struct, frozen=True, gc=False):
    """A conversation to look at: as it is now, and as the index knew it."""

    now: Known
    before: Known | None
    is_held: bool  # the index may have some of its messages


def _start(row: ConversationRow, index: TextIndex | None, forget: list[bytes]) -> _Start:
    """`index` is None if it is known to have nothing of this conversation."""
    now = Known(row.id, row.created_at, row.rewrites, row.next_seq)
    before = None if index is None else index.known(row.id)
    if before is not None and before.created_at != row.created_at:  # another one of the same id
        forget.append(row.id)
        return _Start(now, None, is_held=False)
    return _Start(now, before, index is not None)


def _text(blocks: Sequence[object]) -> str:
    """What can be found of a message: the text of all its blocks."""
    found: list[str] = []
    for block in blocks:
        content = getattr(block, "content", None)
        if isinstance(content, Attachment) and content.text and content.size <= _LONGEST and not content.is_missing:
            content = content.load()
        if isinstance(content, str):
            found.append(content)
    return "\n".join(found)
