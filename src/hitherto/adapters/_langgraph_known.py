"""What a saver remembers of the lists that it has read and written, so that a longer list costs what is new in it.

LangGraph hands over the whole list with every checkpoint, and its messages may be changed in place. So a message counts
as known only if it is the same object and its fields are what they were; then its bytes and its digest are known, too.
The memory holds bytes and weak references, the oldest conversation leaves first, and nothing depends on it.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final, NamedTuple
from weakref import ref

from ..formats.importers._langgraph_records import Listed, Typed, digests

_MOST_BYTES: Final = 16 * 2**20
_MOST_LISTS: Final = 3  # of one conversation
_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})

_NOTHING: Final[dict[type, Any]] = {dict: {}, list: []}  # shared, because the garbage collector visits each one

Fields = dict[str, Any]


class KnownList(NamedTuple):
    """A list as it was when it was read or written."""

    before: bytes  # the digest of the path before it
    objects: list[ref[Any]]
    fields: list[Fields | None]  # None: they cannot be compared
    typed: list[Typed]
    digests: list[bytes]

    @property
    def is_alive(self) -> bool:
        """Are there still messages that a longer list could begin with?"""
        return bool(self.objects) and self.objects[0]() is not None

    def count_same(self, elements: Sequence[Any]) -> int:
        """Return how many of these messages, from the first one on, are as they were."""
        count = 0
        for element, there, fields in zip(elements, self.objects, self.fields, strict=False):
            if there() is not element or vars(element) != fields or getattr(element, "__pydantic_extra__", None):
                break
            count += 1
        return count


class Serialised(NamedTuple):
    """A list as bytes, and the known list that it begins like, with how much of it."""

    elements: Sequence[Any]
    typed: list[Typed]
    known: KnownList | None = None
    same: int = 0  # how many of its first messages are as they were

    def path(self, before: bytes) -> list[bytes]:
        """Return the digests of the path to each element, from the one before them."""
        if self.known is None or self.known.before != before or not self.same:
            return digests(before, self.typed)
        there = self.known.digests[: self.same]
        return there + digests(there[-1], self.typed[self.same :])


class KnownLists:
    """The lists that a saver has read or written last."""

    def __init__(self) -> None:
        self._lists: OrderedDict[str, list[KnownList]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._lock = Lock()

    def serialise(self, talk: str, elements: Sequence[Any], dump: Callable[[Any], Typed]) -> "Serialised":
        """Return the messages of a list as bytes."""
        best, most = None, 0
        for known in self._of(talk):
            if known.objects and known.objects[0]() is elements[0]:
                count = known.count_same(elements)
                if count > most:
                    best, most = known, count
                if count == min(len(known.objects), len(elements)):
                    break
        typed = [] if best is None else best.typed[:most]
        return Serialised(elements, typed + [dump(element) for element in elements[most:]], best, most)

    def find(self, talk: str, listed: Listed) -> tuple[list[Typed], list[bytes]] | None:
        """Return the messages of a stored list as bytes, and their digests; None if they have to be read."""
        wanted, count = bytes.fromhex(listed.key[1:]), listed.count
        for known in self._of(talk):
            if known.before == listed.before and known.digests[count - 1 : count] == [wanted]:
                return known.typed[:count], known.digests[:count]
        return None

    def remember(self, talk: str, before: bytes, done: "Serialised", path: list[bytes]) -> None:
        """Remember a list that was read or written."""
        had, count = done.known, done.same
        objects = [] if had is None else had.objects[:count]
        fields = [] if had is None else had.fields[:count]
        try:
            objects += [ref(element) for element in done.elements[count:]]
        except TypeError:  # a class of messages without weak references
            return
        fields += [_fields(element) for element in done.elements[count:]]
        known = KnownList(before, objects, fields, done.typed, path)
        with self._lock:
            others = [one for one in self._lists.pop(talk, []) if one is not had and one.is_alive]
            own = self._lists[talk] = [known, *others[: _MOST_LISTS - 1]]
            self._sizes[talk] = sum(len(data) for _, data in known.typed) * len(own)
            while sum(self._sizes.values()) > _MOST_BYTES and len(self._lists) > 1:
                oldest, _ = self._lists.popitem(last=False)
                del self._sizes[oldest]

    def forget(self, talk: str) -> None:
        with self._lock:
            self._lists.pop(talk, None)
            self._sizes.pop(talk, None)

    def _of(self, talk: str) -> list[KnownList]:
        with self._lock:
            return list(self._lists.get(talk, ()))


def _fields(element: Any) -> Fields | None:
    """Return a copy of the fields of a message; None if one of them holds more than plain values."""
    try:
        return {
            name: value if value.__class__ in _PLAIN else _copy(value) if value else _NOTHING[value.__class__]
            for name, value in vars(element).items()
        }
    except (TypeError, KeyError):
        return None


def _copy(value: Any) -> Any:
    kind = value.__class__
    if kind in _PLAIN:
        return value
    if kind is dict:
        return {name: _copy(one) for name, one in value.items()}
    if kind is list:
        return [_copy(one) for one in value]
    raise TypeError(kind)
