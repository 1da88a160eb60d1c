"""How words are written for PostgreSQL: texts as `tsvector`, questions as `tsquery`.

Each word begins with eight characters: seven for its workspace, and one that says whether its message is stored whole
(`w`) or in parts (`p`). A text that exceeds the limits of one tsvector, which an essay does, is stored in parts that
overlap. A phrase of one word more than the overlap is whole in one of them.

A question is then asked twice: of whole messages as it is; and of parts, which of its stretches (the terms, longer ones
cut up) occur in any of them. The stretches that a message has are put together by the same tree, over their names.

Nothing needs to be escaped: a word of `query` consists of letters, digits and marks, and the rest is written here.
"""

import struct
from base64 import b32encode
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from uuid import UUID

from psycopg.adapt import Dumper
from psycopg.postgres import types
from psycopg.pq import Format

from ..._search.query import Either, Query, Term, Tree

_POSITIONS = 16_382  # of a tsvector; the last that it can tell apart
_REPEATS = 255  # positions of one word
_BYTES = 1_000_000  # of a tsvector, by our count; its limit is 2^20
_BESIDE = 12  # bytes that a word takes beside its own: the workspace, and how many positions follow
_OVERLAP = 31  # words that a part has in common with the next
_LONGEST = 2_000  # bytes of a word; the limit is 2,046, with its workspace and the hash

_HASH = 33  # characters that stand for the rest of a longer one

_WHOLE, _PART = "w", "p"


class Spelling:
    """Writes the words of one workspace."""

    def __init__(self, workspace_id: UUID) -> None:
        self._start = b32encode(workspace_id.bytes).decode().lower()[:7]

    def vectors(self, words: Sequence[str]) -> list["Vector"]:
        """Return a text as one tsvector, or as several if it is too large."""
        parts = list(_parts(words))
        start = (self._start + (_WHOLE if len(parts) == 1 else _PART)).encode()
        return [_vector(start, part) for part in parts]

    def whole(self, tree: Tree) -> str:
        """Return the tsquery for messages that are stored whole."""
        return _write_query(tree, lambda term: self._phrase(term.words, _WHOLE, prefix=term.prefix))

    def stretches(self, tree: Tree) -> dict[str, str]:
        """Return the tsqueries for parts of messages, each with its name in `combine`."""
        found: dict[str, str] = {}

        def note(term: Term) -> str:
            for stretch in self._short(term):
                found.setdefault(stretch, f"t{len(found) + 1}")
            return ""

        _write_query(tree, note)
        return found

    def combine(self, tree: Tree, names: dict[str, str]) -> str:
        """Return the tsquery over the names of all stretches that occur in any part of a message."""
        return _write_query(tree, lambda term: "(" + " & ".join(names[stretch] for stretch in self._short(term)) + ")")

    def rank(self, query: Query) -> str:
        """Return the tsquery that ranks messages: any of the terms, in whole messages and in parts."""
        found = [*map(self.whole, query.terms), *self.stretches(Either(query.terms))]
        return " | ".join(found)

    def _short(self, term: Term) -> list[str]:
        """Return a phrase, cut into overlapping stretches if it may not be whole in any part."""
        most, count = _OVERLAP + 1, len(term.words)
        starts = [0] if count <= most else [*range(0, count - most, _OVERLAP), count - most]
        return [
            self._phrase(term.words[at : at + most], _PART, prefix=term.prefix and at + most >= count) for at in starts
        ]

    def _phrase(self, words: Sequence[str], kind: str, *, prefix: bool) -> str:
        start = self._start + kind
        written = [f"'{start}{_cut(word)}'" for word in words]
        if prefix:
            written[-1] = f"'{start}{_cut(words[-1], prefix=True)}':*"
        return "(" + " <-> ".join(written) + ")"


def _parts(words: Sequence[str]) -> Iterator[dict[str, list[int]]]:
    """Yield the words with their positions, in as many parts as needed."""
    start = 0
    while True:
        part, end = _part(words, start)
        yield part
        if end == len(words):
            return
        start = end - _OVERLAP


def _part(words: Sequence[str], start: int) -> tuple[dict[str, list[int]], int]:
    """Return as many words from here on as fit into one part, and the start of the rest."""
    places: dict[str, list[int]] = {}
    size = 0
    end = min(len(words), start + _POSITIONS)
    for n in range(start, end):
        word = words[n]
        at = places.get(word)
        if at is None:
            size += min(len(word) * 4, _LONGEST + _HASH) + _BESIDE
            if size > _BYTES:
                return places, n
            at = places[word] = []
        elif len(at) == _REPEATS:
            return places, n
        size += 2
        at.append(n - start + 1)
    return places, end


class Vector(bytes):
    """A tsvector in wire format, which PostgreSQL parses faster than text."""


class VectorDumper(Dumper):
    format = Format.BINARY
    oid = types["tsvector"].oid

    def dump(self, obj: Vector) -> Vector:
        return obj


_ONE = struct.Struct(">hh").pack  # most words occur once


def _vector(start: bytes, places: dict[str, list[int]]) -> Vector:
    written = [struct.pack(">i", len(places))]
    for word, at in places.items():
        where = _ONE(1, at[0]) if len(at) == 1 else struct.pack(f">{len(at) + 1}h", len(at), *at)
        written.append(b"%b%b\0%b" % (start, _cut(word).encode(), where))
    return Vector(b"".join(written))


def _cut(word: str, *, prefix: bool = False) -> str:
    if len(word) <= _LONGEST // 4 or len(data := word.encode()) <= _LONGEST:
        return word
    kept = data[:_LONGEST].decode(errors="ignore") + "~"  # which no word has in it
    return kept if prefix else kept + blake2b(data, digest_size=16).hexdigest()


def _write_query(tree: Tree, term: Callable[[Term], str]) -> str:
    """A query in the language of tsquery. Words have letters, digits and marks in them, and nothing to be escaped."""
    if isinstance(tree, Term):
        return term(tree)
    if isinstance(tree, Either):
        return "(" + " | ".join(_write_query(part, term) for part in tree.parts) + ")"
    having = [_write_query(part, term) for part in tree.having]
    return "(" + " & ".join([*having, *(f"!{_write_query(part, term)}" for part in tree.without)]) + ")"
