"""Search: feeding the text index, and asking it.

The index is never updated while a message is saved. A search first takes in the conversations that moved since the last
one, so it finds every message that was acknowledged before it began. `answering` turns the findings of the index into
hits.

Several processes may feed one index. Each update names the state of the index that it was prepared from, and is refused
if another process has updated the index meanwhile: then it starts over. So a message that was deleted in between cannot
come back.

The index of a sealed store is in memory, and its segments are saved sealed in the store (`sealed_index_store`). The
first search of a process reads these, and only the messages which they lack.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from .._engine.packs import Reader
from ..attachment import Attachment
from ..backend import INTERNAL_KINDS, Changes, ConversationRow, MessageRow, Where, conversation_kinds
from ..errors import Busy, Closed, Damaged, HithertoError, NotFound, StorageError, StorageFull
from ..events import warn
from ..listing import conversations
from ..reports import Hit
from ..textindex import Entry, IndexDamaged, Known, TextIndex

if TYPE_CHECKING:
    from .._engine.engine import Engine
    from .answering import Asked
    from .sealed_index import WordIndex
    from .timeline import Limit

Progress = Callable[[int], None]  # called with the number of messages taken in

_BATCH, _BATCH_BYTES = 512, 8 << 20  # messages, and bytes of text, taken in at a time
_ROWS = 500  # conversations looked up at once
_LONGEST = 1 << 20  # bytes: a longer text in an attachment is not indexed
_TIGHT = 16 << 20  # free bytes: with fewer, the index does not grow
_MANY = 256  # messages: a search that took in so many saves their segments
_TRIES = 50  # attempts, when another process is faster


class Search:
    """The text index of a store, created by the first search."""

    def __init__(self, engine: "Engine") -> None:
        self._ref = weakref.ref(engine)  # weak, or the garbage collector would free the store late, in any thread
        self._index: TextIndex | None = None
        self._words: WordIndex | None = None  # the same, if the store is sealed
        self._replaced: list[TextIndex] = []
        self._looked = False  # whether there is an index in clear that should not be
        self._opening = threading.Lock()
        self._feeding = threading.Lock()
        self._saving = threading.Lock()
        self._could_save = True
        self._said = False  # a warning that the index cannot be written

    @property
    def _engine(self) -> "Engine":
        engine = self._ref()
        if engine is None:
            raise Closed("the store is gone")
        return engine

    def _open_index(self, *, create: bool) -> TextIndex | None:
        with self._opening:
            if self._index is None:
                engine = self._engine
                if engine.codec.in_clear:
                    self._index = engine.backend.text_index(create=create)
                    if self._index is not None and self._index.was_reset:
                        warn("the search index could not be read and is made again")
                elif create:
                    from .sealed_index import WordIndex  # noqa: PLC0415  # only those who search need it

                    self._index = self._words = WordIndex()
                if self._index is None and create:
                    from ..backends.sqlite.fts import FtsIndex  # noqa: PLC0415  # only those who search need it

                    self._index = FtsIndex(None, engine.backend.info.workspace)
            return self._index

    def close(self) -> None:
        for index in [*self._replaced, self._index]:
            if index is not None:
                index.close()

    def restart(self) -> None:
        """Start over with another index if the store was sealed or unsealed.

        Words of a store that is sealed now are removed from the index in clear text."""
        in_clear = self._engine.codec.in_clear
        with self._opening:
            if self._index is not None and in_clear == (self._words is not None):
                self._replaced.append(self._index)  # other threads may be searching in it
                self._index = self._words = None
        if not in_clear:
            self._forget_words_in_clear()

    def _forget_words_in_clear(self) -> None:
        """Clear the index in clear text. A process may have been killed while it sealed a plain store."""
        index = self._engine.backend.text_index(create=False)
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

    def find(self, asked: "Asked", progress: Progress | None = None) -> list[Hit]:
        """Return the hits. `progress` gets the number of messages that the index took in."""
        try:
            return self._find(asked, progress)
        except StorageError as error:
            if not isinstance(error, StorageFull) and type(error) is not StorageError:
                raise
            if not self._said:
                self._said = True
                warn(f"the search index takes nothing in, and each search makes its own: {type(error).__name__}")
            return self._find_without_it(asked, progress)

    def _find_without_it(self, asked: "Asked", progress: Progress | None) -> list[Hit]:
        """Search with an index in memory, for this search alone, because the disk is full or fails."""
        if self._engine.codec.in_clear:
            from ..backends.sqlite.fts import FtsIndex  # noqa: PLC0415  # only those who search need it

            index: TextIndex = FtsIndex(None, self._engine.backend.info.workspace)
        else:
            from .sealed_index import WordIndex  # noqa: PLC0415  # as above

            index = WordIndex()
        try:
            count = 0
            for some in self._updates(index, Changes(b"once", True, [], [])):
                count += some or 0
                if progress is not None:
                    progress(count)
            return self._answer(index, asked)
        finally:
            index.close()

    def _find(self, asked: "Asked", progress: Progress | None) -> list[Hit]:
        index = self._open_index(create=True)
        if index is None:
            raise AssertionError("there is always an index in memory")
        for attempt in (1, 2):
            try:
                count, _ = self._catch_up(index, progress=progress)
                hits = self._answer(index, asked)
                self._save(urgent_only=count < _MANY)
                return hits
            except IndexDamaged as error:
                if attempt == 2:
                    raise
                self._make_again(index, error)
        return []

    def _answer(self, index: TextIndex, asked: "Asked") -> list[Hit]:
        from .answering import answer  # noqa: PLC0415  # only those who search need it

        return answer(self._engine, index, asked)

    def _make_again(self, index: TextIndex, error: Exception) -> None:
        warn(f"the search index is damaged and is made again: {error}")
        index.clear()

    # -- feeding

    def keep_up(self, seconds: float, *, rebuild: bool = True, progress: Progress | None = None) -> tuple[int, bool]:
        """Update an existing index for about so long; return the number of messages, and whether that was all.

        With `rebuild`, the last step may take longer than that."""
        if not self._looked and not self._engine.codec.in_clear:
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
        """Remove the words of deleted messages of these conversations from the files.

        False if that takes longer: then maintenance is requested, and does it."""
        try:
            if self._index is None and not self._engine.codec.in_clear:
                from .sealed_index_store import drop_outdated  # noqa: PLC0415  # sealed stores alone need it

                done = drop_outdated(self._engine, conversations)
            else:
                done = self._keep_up_or_clear(seconds)
        except HithertoError as error:  # the messages are deleted, whatever the index does
            warn(f"the search index keeps words of what was deleted until maintenance succeeds: {error}")
            done = False
        if not done:
            self._engine.background.ask()
        return done

    def _keep_up_or_clear(self, seconds: float) -> bool:
        """Remove words, or clear the index on a full disk: removing single words takes space. It is rebuilt later."""
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
        """Tell whether the disk has so little space that the index, which can be rebuilt, must not take it."""
        disk = self._engine.backend.disk()
        return disk is not None and disk.free < _TIGHT

    def scrub(self) -> bool:
        """Remove all removed words, however long it takes. False if a reader delays it, or the disk is full."""
        index = self._open_index(create=False)
        if index is None:
            return True
        try:
            self._catch_up(index)
            if self._words is not None and self._words.list_unsaved():
                return self._save() and self._engine.backend.scrub()
            return index.scrub()
        except StorageFull:
            return self._words is None and self._begin_anew(index)

    @staticmethod
    def _begin_anew(index: TextIndex) -> bool:
        """Clear the index instead. False if another thread does the same and uses the space that this takes."""
        try:
            index.clear()
            return index.scrub()
        except StorageFull:
            return False

    def _save(self, deadline: float = float("inf"), *, urgent_only: bool = False) -> bool:
        """Save new segments of a sealed store, or with `urgent_only` only remove outdated ones.

        False if the time was not enough, or another thread is saving."""
        if self._words is None or not (unsaved := self._words.list_unsaved(urgent_only=urgent_only)):
            return True
        if not self._saving.acquire(blocking=False):
            return False
        try:
            from .sealed_index_store import save  # noqa: PLC0415  # sealed stores alone need it

            return save(self._engine, self._words, unsaved, deadline)
        except HithertoError as error:  # the words are only read again the next time
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
        changes = changes or self._engine.backend.changes(position)
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
        reader, size = Reader(self._engine), 0
        for row in rows:
            with suppress(NotFound):  # deleted at this moment: the feed will say so
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
        from heapq import merge  # noqa: PLC0415  # opening a store needs none

        strangers = set(index.conversations())
        backend = self._engine.backend
        kinds = [conversations(backend, Where(kind), oldest_first=True) for kind in conversation_kinds(backend)]
        for row in kinds[0] if len(kinds) == 1 else merge(*kinds, key=lambda row: row.created_at):
            yield _start(row, index if row.id in strangers else None, forget)
            strangers.discard(row.id)
        forget += strangers

    def _starts_of_moved(self, index: TextIndex, ids: Sequence[bytes], forget: list[bytes]) -> list["_Start"]:
        """Rows are read some at a time: what is held of them is small."""
        found: list[_Start] = []
        for first in range(0, len(ids), _ROWS):
            rows = self._engine.backend.lookup(ids=ids[first : first + _ROWS])
            found += [_start(row, index, forget) for row in rows if row.kind not in INTERNAL_KINDS]
        return sorted(found, key=lambda start: start.now.created_at)

    def _by_time(
        self, index: TextIndex, starts: Sequence["_Start"], grown: dict[bytes, Known], drop: list[int]
    ) -> Iterator[MessageRow]:
        """Yield the messages of these conversations by time, except those that the index has."""
        from .timeline import by_time  # noqa: PLC0415  # only those who search need it

        before = {start.now.conversation: start for start in starts}

        def open_one(now: Known, limit: "Limit") -> Iterator[MessageRow]:
            return self._rows_to_index(index, before.pop(now.conversation), grown, drop, limit)

        return self._with_content(by_time((start.now for start in starts), open_one))

    def _each(
        self, index: TextIndex, starts: Sequence["_Start"], grown: dict[bytes, Known], drop: list[int]
    ) -> Iterator[MessageRow]:
        """Yield the same for a sealed store, one conversation after the other; saved segments are loaded first."""
        from .sealed_index_store import load  # noqa: PLC0415  # sealed stores alone need it

        for first in range(0, len(starts), _ROWS):
            ids = [start.now.conversation for start in starts[first : first + _ROWS]]
            for row in self._engine.backend.lookup(ids=ids):
                if self._words is not None:
                    load(self._engine, self._words, row)
                found = self._rows_to_index(index, _start(row, index, []), grown, drop, lambda: _BATCH)
                yield from self._of_one(row, found)

    def _of_one(self, row: ConversationRow, found: Iterator[MessageRow]) -> Iterator[MessageRow]:
        header = next(found, None)
        if header is None:
            return
        state = None
        with suppress(Damaged, NotFound):  # then no message can be read, and reading each raises
            state = self._engine.state_of(row)  # kept alive, or each message would unwrap the key again
        yield from self._with_content(chain([header], found))
        del state

    def _rows_to_index(
        self, index: TextIndex, start: "_Start", grown: dict[bytes, Known], drop: list[int], limit: "Limit"
    ) -> Iterator[MessageRow]:
        """Yield new and changed messages of a conversation by sequence, without their content.

        `grown` gets the conversation if it was only appended to; `drop` gets the messages that are gone."""
        from .timeline import headers  # noqa: PLC0415  # as above

        now, before = start.now, start.before
        is_same = before is not None and before.rewrites == now.rewrites
        held = {} if is_same or not start.is_held else index.holds(now.conversation)
        if before is None and not held:
            before, is_same = replace(now, next_seq=0), True
        if before is not None and is_same:
            grown[now.conversation] = before
            if before.next_seq < now.next_seq:
                yield from headers(self._engine.backend, now.conversation, before.next_seq - 1, limit)
            return
        for header in headers(self._engine.backend, now.conversation, -1, limit):
            if held.pop(header.number, None) != header.revision:
                yield header
        drop += held

    def _with_content(self, headers: Iterator[MessageRow]) -> Iterator[MessageRow]:
        """Yield these messages with their content, a few at a time."""
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
        found = {m.number: m for m in self._engine.backend.messages(numbers=numbers)}
        return (found[number] for number in numbers if number in found)

    def _entry(self, row: MessageRow, reader: Reader) -> Entry:
        """Return a message as an entry. An unreadable message has no words; `verify` reports the reason."""
        text = searchable_text(self._engine.read_for_listing(row, lazy=True, reader=reader).blocks)
        return Entry(row.number, row.conversation, row.revision, row.role, row.created_at, text)


class _Start(Struct, frozen=True, gc=False):
    """A conversation to update: its state now, and its state in the index."""

    now: Known
    before: Known | None
    is_held: bool  # the index may have some of its messages


def _start(row: ConversationRow, index: TextIndex | None, forget: list[bytes]) -> _Start:
    """Compare a row with the index. `index` is None if it certainly has nothing of this conversation."""
    now = Known(row.id, row.created_at, row.rewrites, row.next_seq)
    before = None if index is None else index.known(row.id)
    if before is not None and before.created_at != row.created_at:  # another conversation with the same id
        forget.append(row.id)
        return _Start(now, None, is_held=False)
    return _Start(now, before, index is not None)


def searchable_text(blocks: Sequence[object]) -> str:
    """Return the searchable text of a message: the text of all its blocks."""
    found: list[str] = []
    for block in blocks:
        content = getattr(block, "content", None)
        if isinstance(content, Attachment) and content.text and content.size <= _LONGEST and not content.is_missing:
            content = content.load()
        if isinstance(content, str):
            found.append(content)
    return "\n".join(found)
