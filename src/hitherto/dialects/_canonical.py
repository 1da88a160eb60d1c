"""Decides whether two entries of a history are the same message.

Clients send an answer back in words of their own. They add ids and names, leave out thoughts, annotations and nulls,
split a text or join its pieces, and write base64 in the other alphabet. So entries are not compared as JSON. A dialect
makes a `Likeness` of each entry, which has two parts:

- **said**: who speaks, and what is said: texts (neighbours joined), calls with their arguments, results, media. It must
  be equal. Blanks around a text of the model do not count: clients trim them, and some APIs refuse blank text.
- **marks**: opaque values that stand beside it, and that clients copy or leave out: ids of calls, signatures, names.
  Where both messages have marks of one kind at one place, they must share one.

All other content is ignored: thoughts, annotations, states. A search or code that the provider ran itself is a mark:
clients shorten it, or leave it out. An entry of the model that says nothing, a thought for example, is *silent*: a
client may leave it out, or put one in.
"""

import re
from collections.abc import Mapping
from hashlib import blake2b

import msgspec
from msgspec import Struct

from ._json import replaced_surrogates, written

_encode = msgspec.json.Encoder(order="deterministic").encode

Mark = tuple[str, int, str]  # its kind, how many calls, results and media stand before it, and its value
Marks = Mapping[tuple[str, int], frozenset[bytes]]  # digests of their values, by kind and place
_TAGGED_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)


class Likeness(Struct, frozen=True):
    role: str
    said: tuple[object, ...]
    marks: frozenset[Mark] = frozenset()

    @property
    def is_silent(self) -> bool:
        """True if this is an entry of the model without any content."""
        return self.role == "assistant" and not self.said

    def digest(self) -> bytes:
        """Return a digest of the role and the content."""
        value = [self.role, *self.said]
        try:
            data = _encode(value)
        except UnicodeEncodeError:
            data = _encode(replaced_surrogates(value))
        except (ValueError, OverflowError, RecursionError):
            data = written(value, sort=True)
        return blake2b(data, digest_size=16).digest()

    def mark_digests(self) -> Marks:
        found: dict[tuple[str, int], set[bytes]] = {}
        for kind, place, value in self.marks:
            data = value.encode("utf-8", "surrogatepass")
            found.setdefault((kind, place), set()).add(blake2b(data, digest_size=8).digest())
        return {at: frozenset(digests) for at, digests in found.items()}

    def fits(self, other: "Likeness") -> bool:
        """Return True if both are the same message."""
        return self.digest() == other.digest() and agree(self.mark_digests(), other.mark_digests())


def agree(one: Marks, other: Marks) -> bool:
    """Return True if the marks of two messages do not contradict each other."""
    return not any(one[at].isdisjoint(other[at]) for at in one.keys() & other.keys())


class Saying:
    """Collects the content of an entry, in order."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._said: list[object] = []
        self._marks: set[Mark] = set()
        self._things = 0

    def text(self, words: str) -> None:
        if not words:
            return
        if self._said and isinstance(self._said[-1], str):
            self._said[-1] += words
        else:
            self._said.append(words)

    def thing(self, value: Mapping[str, object]) -> None:
        """Add a call, a result, an image: any content but text."""
        self._said.append(_canonical(value))
        self._things += 1

    def mark(self, kind: str, value: object) -> None:
        """Add a mark of the content that comes next."""
        if isinstance(value, str) and value:
            self._marks.add((kind, self._things, value))

    def doing(self, kind: str, id: object, content: object) -> None:
        """Add an action that the provider ran itself. It is identified by its id, or by its content if it has none."""
        if isinstance(id, str) and id:
            self.mark("doing", id)
        else:
            self.mark(kind, written(_canonical(content), sort=True).decode())

    def likeness(self) -> Likeness:
        said = self._said
        if self._role == "assistant":
            trimmed = (_trim(item) if isinstance(item, str) else item for item in said)
            said = [item for item in trimmed if item != ""]
        return Likeness(self._role, tuple(said), frozenset(self._marks))


def _trim(words: str) -> str:
    """Return the model's text without blanks around it, and without thoughts that a client has written into it."""
    words = words.strip()
    found = _TAGGED_THOUGHT.match(words)
    return words[found.end() :].lstrip() if found else words


def _canonical(value: object) -> object:
    """Return JSON in one form: 1.0 is the same number as 1, and not every client keeps the point."""
    if isinstance(value, Mapping):
        return {name: _canonical(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
