"""The text index of a sealed store, in memory.

FTS5 would write its words to a file, or index all messages again in every process. This index consists of segments
(`segments`), which `sealed_index_store` stores sealed. So a cold start reads the segments and not the messages.

A conversation's segments stand in the order in which its messages came. New messages form new
segments, and segments of similar size at the end are merged, so that there are never many. A segment with a replaced or
dropped message is rebuilt: removed words are nowhere any more.

A search goes through the segments, those with the newest messages first, and stops when no newer message can come. The
order of time is that of every listing: `(created_at, conversation, the order of coming)`. Ranking is FTS5's bm25.
"""

import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from math import log

from msgspec import Struct

from .._system import forks
from ..errors import Closed
from ..ids import RUN
from ..textindex import Entry, Found, Known
from .query import All, Either, Query, Term, Tree, split, terms
from .segments import LONGEST, MOST_MESSAGES, MOST_WORDS, Message, Place, Segment, Sought

_SPARE = 1_000  # hits beyond the limit that are collected before sorting
_K1, _B, _LEAST_IDF = 1.2, 0.75, 1e-6  # of FTS5's bm25

# -- questions


class _Question:
    """A query, evaluated in one segment after the other."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._sought = {term: Sought(term) for term in terms(tree, wanted=False)}
        self.wanted = tuple(dict.fromkeys(terms(tree, wanted=True)))
        self._segment: Segment
        self._places: dict[Term, Place | None] = {}
        self._having: dict[Term, set[int]] = {}

    def look(self, segment: Segment) -> set[int]:
        """Return the messages of a segment that match."""
        self._segment, self._places, self._having = segment, {}, {}
        return self._fitting(self._tree) if self._may_fit(self._tree) else set()

    def having(self, term: Term) -> set[int]:
        """Return the messages of the current segment that have this term."""
        if term not in self._having:
            place = self._place(term)
            self._having[term] = set() if place is None else self._segment.having(place)
        return self._having[term]

    def counts(self, among: set[int]) -> Iterator[tuple[Term, dict[int, int]]]:
        """Yield how often these matching messages have each term. Only matching alternatives count, as in FTS5."""
        return self._counts(self._tree, among)

    def _counts(self, tree: Tree, among: set[int]) -> Iterator[tuple[Term, dict[int, int]]]:
        if isinstance(tree, Term):
            place = self._place(tree)
            if place is not None and among:
                yield tree, self._segment.counts(place, among)
        elif isinstance(tree, All):
            for part in tree.having:
                yield from self._counts(part, among)
        else:
            for part in tree.parts:
                yield from self._counts(part, among & self._fitting(part))

    def _place(self, term: Term) -> Place | None:
        if term not in self._places:
            self._places[term] = self._segment.where(self._sought[term])
        return self._places[term]

    def _may_fit(self, tree: Tree) -> bool:
        """By the words alone."""
        if isinstance(tree, Term):
            return self._place(tree) is not None
        if isinstance(tree, All):
            return all(map(self._may_fit, tree.having))
        return any(map(self._may_fit, tree.parts))

    def _fitting(self, tree: Tree) -> set[int]:
        if isinstance(tree, Term):
            return self.having(tree)
        if isinstance(tree, Either):
            return set().union(*map(self._fitting, tree.parts))
        found = self._fitting(tree.having[0])
        for part in tree.having[1:]:
            found = found & self._fitting(part)
        for part in tree.without:
            found = found - self._fitting(part)
        return found


class _Wanted(Struct, frozen=True):
    """Which of the messages that fit are asked for."""

    role: str | None
    conversations: frozenset[bytes] | None
    since: int | None
    until: int | None

    def may_be_in(self, conversation: bytes, segment: Segment) -> bool:
        return (
            (self.conversations is None or conversation in self.conversations)
            and (self.since is None or segment.newest >= self.since)
            and (self.until is None or segment.oldest < self.until)
            and (self.role is None or self.role in segment.roles)
        )

    def of(self, segment: Segment, fitting: set[int]) -> set[int]:
        times = segment.times
        if self.role is not None:
            role, has_role = segment.roles.index(self.role), segment.has_role
            fitting = {n for n in fitting if has_role[n] == role}
        if self.since is not None and segment.oldest < self.since:
            fitting = {n for n in fitting if times[n] >= self.since}
        if self.until is not None and segment.newest >= self.until:
            fitting = {n for n in fitting if times[n] < self.until}
        return fitting


# -- the index


class _Parts(Struct, frozen=True):
    """All segments at one moment, those with the newest messages first: when, whose, the how-many-eth of these."""

    newest_first: list[tuple[int, bytes, int, Segment]]
    messages: int
    length: int  # in words

    @classmethod
    def of(cls, held: dict[bytes, tuple[Segment, ...]]) -> "_Parts":
        parts = [(s.newest, id, place, s) for id, segments in held.items() for place, s in enumerate(segments)]
        parts.sort(key=lambda part: part[:3], reverse=True)
        return cls(parts, sum(len(part[3]) for part in parts), sum(part[3].length for part in parts))


class WordIndex:
    """A `TextIndex` in memory."""

    def __init__(self) -> None:
        self.was_reset = False
        self._lock = threading.Lock()
        self._forks = forks.count()
        self._closed = False
        self._stamp = int.from_bytes(os.urandom(7), "big")
        self._begin()

    def _begin(self) -> None:
        self._stamp += 1
        self._position: bytes | None = None
        self._known: dict[bytes, Known] = {}
        self._held: dict[bytes, tuple[Segment, ...]] = {}
        self._owners: dict[int, bytes | None] = {}  # run of numbers -> conversation; None if there are several
        self._unsaved: dict[bytes, bool] = {}  # conversation -> do its saved segments have removed words?
        self._parts: _Parts | None = None

    def _open(self) -> threading.Lock:
        if self._forks != forks.count():
            raise Closed("the index was opened before os.fork, in another process")
        if self._closed:
            raise Closed("the index is closed")
        return self._lock

    # -- writing

    def update(
        self,
        stamp: int,
        *,
        put: Sequence[Entry] = (),
        drop: Sequence[int] = (),
        known: Sequence[Known] = (),
        forget: Sequence[bytes] = (),
        position: bytes | None = None,
    ) -> int | None:
        """Apply the whole update, or nothing if the stamp has moved."""
        ready = {entry.number: entry for entry in put}
        words = {number: _words(entry.text) for number, entry in ready.items()}  # before the lock is taken
        with self._open():
            if stamp != self._stamp:
                return None
            after: dict[bytes, tuple[Segment, ...]] = dict.fromkeys(forget, ())
            for id in self._owning(drop):
                after[id] = _without(after.get(id, self._held.get(id, ())), set(drop))
            for id in self._owning(ready):
                segments, there = _replace_segments(id, after.get(id, self._held.get(id, ())), ready, words)
                after[id] = segments
                ready = {number: entry for number, entry in ready.items() if number not in there}
            for id, messages in _group_by_conversation(ready.values(), words).items():
                after[id] = _with(after.get(id, self._held.get(id, ())), messages)
            self._apply(after, known, forget)
            self._position = self._position if position is None else position
            self._stamp += 1
            return self._stamp

    def _owning(self, numbers: Iterable[int]) -> list[bytes]:
        """Return the conversations that may have these messages."""
        found = {self._owners.get(number // RUN, b"") for number in numbers}
        return list(self._held) if None in found else [id for id in found if id in self._held]

    def _apply(self, after: dict[bytes, tuple[Segment, ...]], known: Sequence[Known], forget: Sequence[bytes]) -> None:
        for id in forget:
            self._known.pop(id, None)
        for one in known:
            before = self._known.get(one.conversation)
            if before != one:
                self._known[one.conversation] = one
                self._note_change(one.conversation, urgent=before is not None and before.rewrites != one.rewrites)
        for id, segments in after.items():
            if segments != self._held.get(id, ()):
                self._note_change(id, urgent=False)
                self._take(id, segments)

    def _note_change(self, id: bytes, *, urgent: bool) -> None:
        self._unsaved[id] = urgent or self._unsaved.get(id, False)

    def _take(self, id: bytes, segments: tuple[Segment, ...]) -> None:
        self._parts = None
        self._held.pop(id, None)
        if segments:
            self._held[id] = segments
        for run in {number // RUN for segment in segments for number in segment.numbers}:
            if self._owners.setdefault(run, id) != id:
                self._owners[run] = None

    def clear(self) -> None:
        with self._open():
            self.was_reset = True
            self._begin()

    # -- reading

    def state(self) -> tuple[int, bytes | None]:
        with self._open():
            return self._stamp, self._position

    def known(self, conversation: bytes) -> Known | None:
        with self._open():
            return self._known.get(conversation)

    def conversations(self) -> list[bytes]:
        with self._open():
            return list(self._held.keys() | self._known.keys())

    def holds(self, conversation: bytes) -> dict[int, int]:
        with self._open():
            segments = self._held.get(conversation, ())
        return {n: r for s in segments for n, r in zip(s.numbers, s.revisions, strict=True)}

    def find(
        self,
        query: Query,
        *,
        limit: int,
        ranked: bool = False,
        role: str | None = None,
        conversations: Sequence[bytes] | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> list[Found]:
        """Return the messages that match: newest first, or best first."""
        with self._open():
            if self._parts is None:
                self._parts = _Parts.of(self._held)
            parts = self._parts
        question = _Question(query.tree)
        wanted = _Wanted(role, None if conversations is None else frozenset(conversations), since, until)
        return _best(parts, question, wanted, limit) if ranked else _newest(parts, question, wanted, limit)

    # -- for `sealed_index_store`

    def list_unsaved(self, *, urgent_only: bool = False) -> list[bytes]:
        """Return the conversations that changed since they were saved.

        Those with removed or changed messages come first: their saved segments have words that are gone."""
        with self._open():
            urgent = [id for id, urgent in self._unsaved.items() if urgent]
            return urgent if urgent_only else [*urgent, *(id for id, urgent in self._unsaved.items() if not urgent)]

    def parts(self, conversation: bytes) -> tuple[Known | None, tuple[Segment, ...]]:
        """Return the state of a conversation in the index, and its segments."""
        with self._open():
            return self._known.get(conversation), self._held.get(conversation, ())

    def mark_saved(self, conversation: bytes, known: Known | None, segments: tuple[Segment, ...]) -> None:
        """Mark a conversation as saved, unless it has changed since."""
        with self._open():
            if (self._known.get(conversation), self._held.get(conversation, ())) == (known, segments):
                self._unsaved.pop(conversation, None)

    def adopt(self, known: Known, segments: tuple[Segment, ...], *, saved: bool) -> None:
        """Add a saved conversation that the index does not have. With `saved`, its items need no rewrite."""
        with self._open():
            if known.conversation not in self._held and known.conversation not in self._known:
                self._known[known.conversation] = known
                self._take(known.conversation, segments)
                if not saved:
                    self._note_change(known.conversation, urgent=True)

    # -- care

    def scrub(self, seconds: float | None = None, *, rebuild: bool = True) -> bool:  # noqa: ARG002  # what is dropped is gone
        return True

    def size(self) -> int:
        with self._open():
            return sum(segment.size() for segments in self._held.values() for segment in segments)

    def close(self) -> None:
        self._closed = True
        self._held, self._parts = {}, None


def _words(text: str) -> list[str]:
    words = split(text)
    return [word[:LONGEST] for word in words] if len(text) > LONGEST else words


def _message(entry: Entry, words: dict[int, list[str]]) -> Message:
    return Message(entry.number, entry.revision, entry.role, entry.created_at, words[entry.number])


def _group_by_conversation(entries: Iterable[Entry], words: dict[int, list[str]]) -> dict[bytes, list[Message]]:
    """Return the entries as messages, grouped by conversation."""
    groups: dict[bytes, list[Message]] = {}
    for entry in entries:
        groups.setdefault(entry.conversation, []).append(_message(entry, words))
    return groups


def _without(segments: tuple[Segment, ...], numbers: set[int]) -> tuple[Segment, ...]:
    left: list[Segment] = []
    for segment in segments:
        if numbers.isdisjoint(segment.numbers):
            left.append(segment)
        elif kept := [m for m in segment.messages() if m.number not in numbers]:
            left.append(Segment.of(kept))
    return tuple(left)


def _replace_segments(
    id: bytes, segments: tuple[Segment, ...], ready: dict[int, Entry], words: dict[int, list[str]]
) -> tuple[tuple[Segment, ...], set[int]]:
    """Replace existing messages by their new entries; return the segments and the numbers that were replaced.

    A message that is now in another conversation is removed."""
    moved = {number for number, entry in ready.items() if entry.conversation != id}
    there: set[int] = set()
    left: list[Segment] = []
    for segment in _without(segments, moved):
        again = ready.keys() & set(segment.numbers)
        if again:
            there |= again
            changed = [_message(ready[m.number], words) if m.number in again else m for m in segment.messages()]
            left.append(Segment.of(changed))
        else:
            left.append(segment)
    return tuple(left), there


def _with(segments: tuple[Segment, ...], messages: list[Message]) -> tuple[Segment, ...]:
    """Return the segments with new ones at the end."""
    grown = list(segments)
    start = length = 0
    for n, message in enumerate(messages):
        if n > start and (n - start == MOST_MESSAGES or length + len(message.words) > MOST_WORDS):
            grown.append(Segment.of(messages[start:n]))
            start, length = n, 0
        length += len(message.words)
    grown.append(Segment.of(messages[start:]))
    while len(grown) > 1 and _belong_together(*grown[-2:]):
        last = grown.pop()
        grown[-1] = Segment.of([*grown[-1].messages(), *last.messages()])
    return tuple(grown)


def _belong_together(a: Segment, b: Segment) -> bool:
    """Tell whether two segments should be merged: small enough, and of similar size, so that none is merged often."""
    fit = len(a) + len(b) <= MOST_MESSAGES and a.length + b.length <= MOST_WORDS
    return fit and (len(a) < 2 * len(b) or a.length < 2 * b.length)


def _newest(parts: _Parts, question: _Question, wanted: _Wanted, limit: int) -> list[Found]:
    best: list[tuple[int, bytes, int, int, int]] = []
    for newest, id, place, segment in parts.newest_first:
        if wanted.since is not None and newest < wanted.since:
            break
        if len(best) == limit and (newest, id) < best[-1][:2]:
            break
        if wanted.may_be_in(id, segment):
            fitting = wanted.of(segment, question.look(segment))
            if fitting:
                best += [(segment.times[n], id, place, n, segment.numbers[n]) for n in fitting]
                best.sort(reverse=True)
                del best[limit:]
    return [Found(number, id, 0.0) for _, id, _, _, number in best]


def _best(parts: _Parts, question: _Question, wanted: _Wanted, limit: int) -> list[Found]:
    """Rank by bm25: how often a message has a term, in proportion to its length, and how rare the term is."""
    having: Counter[Term] = Counter()
    fitting: list[tuple[bytes, int, Segment, set[int], list[tuple[Term, dict[int, int]]]]] = []
    for _, id, place, segment in parts.newest_first:
        found = question.look(segment)
        for term in question.wanted:
            having[term] += len(question.having(term))
        if found and wanted.may_be_in(id, segment):
            found = wanted.of(segment, found)
            fitting.append((id, place, segment, found, list(question.counts(found))))
    rare = {term: _idf(parts.messages, count) for term, count in having.items()}
    usual = parts.length / parts.messages if parts.length else 1.0
    best: list[tuple[float, int, bytes, int, int, int]] = []
    for id, place, segment, found, counts in fitting:
        scores = _scores(segment, found, [(rare[term], often) for term, often in counts], usual)
        best += [(score, segment.times[n], id, place, n, segment.numbers[n]) for n, score in scores]
        if len(best) > limit + _SPARE:
            best = nlargest(limit, best)
    return [Found(number, id, score) for score, _, id, _, _, number in nlargest(limit, best)]


def _idf(messages: int, having: int) -> float:
    return max(log((messages - having + 0.5) / (having + 0.5)), _LEAST_IDF)


def _scores(
    segment: Segment, among: set[int], counts: list[tuple[float, dict[int, int]]], usual: float
) -> Iterator[tuple[int, float]]:
    for n in among:
        length = segment.starts[n + 1] - segment.starts[n] - 1
        damping = _K1 * (1 - _B + _B * length / usual)
        score = 0.0
        for rare, often in counts:
            if n in often:
                score += rare * often[n] * (_K1 + 1) / (often[n] + damping)
        yield n, score
