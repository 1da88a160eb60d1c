"""State beside the messages: named values, and writes of messages and values in one transaction.

`talk.items` has the items of a conversation, `store.items` those of the workspace. A value is bytes. Each item has a
revision; a writer that names the revision it has seen is told by `Conflict` if another one was faster. Names are stored
in clear, even in a sealed store, because a scan by prefix needs their order: put nothing secret into them. Values are
sealed like messages.

    talk.items["checkpoint/0007"] = b"…"
    talk.items.put("state", b"…", expect=3)
    with talk.batch() as batch:
        batch.append(Message.user("hi"))
        batch.items["state"] = b"…"
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final

from ._engine import items
from ._engine.items import ANY, Item, ItemWrite
from .errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from ._engine.engine import Engine
    from ._engine.state import ConversationState
    from .model import Message, Saved

__all__ = ["ANY", "Batch", "BatchItems", "Item", "Items"]

_HINT: Final = "list the items with items.scan()"


class Items:
    """The items of a conversation, or of the workspace."""

    def __init__(self, engine: "Engine", find: "Callable[[bool], ConversationState | None]") -> None:
        self._engine = engine
        self._find = find  # returns what the items belong to; with True it is made if it is not there

    def __repr__(self) -> str:
        return f"<Items of {self._engine.backend.info.location}>"

    def __getitem__(self, name: str) -> bytes:
        found = self.get(name)
        if found is None:
            raise NotFound("item", [name], hint=_HINT)
        return found.value

    def __setitem__(self, name: str, value: bytes) -> None:
        self.put(name, value)

    def __delitem__(self, name: str) -> None:
        self.delete(name)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> Item | None:
        """Return an item; None if there is none."""
        self._engine.ensure_open()
        items.key_of(name)
        state = self._find(False)
        return None if state is None else items.read(state, name)

    def put(self, name: str, value: bytes, *, expect: int | None = ANY, text: bool = False) -> Item:
        """Put an item, and return it with its revision.

        `expect` is the revision that must be there, or None if there must be no item of this name; otherwise
        `Conflict`. `text=True` says that the value is text in UTF-8: then the sanitiser of the store cleans it."""
        self._engine.ensure_open()
        (found,) = self._write(items.prepare_put(self._engine, name, value, expect, text=text))
        if found is None:
            raise AssertionError("an item that was put is not there")
        return found

    def delete(self, name: str, *, expect: int | None = ANY, missing_ok: bool = False) -> None:
        """Remove an item; `NotFound` if there is none, unless `missing_ok`."""
        self._engine.ensure_open()
        self._write(items.prepare_removal(name, expect, missing_ok=missing_ok))

    def scan(
        self, prefix: str = "", *, after: str | None = None, reverse: bool = False, limit: int | None = None
    ) -> Iterator[Item]:
        """Yield the items whose names begin so, by name, as they are read. `after` is the name of the last one seen."""
        self._engine.ensure_open()
        state = self._find(False)
        return iter(()) if state is None else items.scan(state, prefix, after=after, reverse=reverse, limit=limit)

    def _write(self, write: ItemWrite) -> list[Item | None]:
        state = self._find(write.data is not None)
        if state is not None:
            return items.write(state, [write])
        if not write.missing_ok:
            raise NotFound("item", [write.name], hint=_HINT)
        return [None]


class BatchItems:
    """The items of a batch: what is put or removed here is written with the batch."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.writes: dict[str, ItemWrite] = {}  # the last write of each name counts

    def __repr__(self) -> str:
        return f"<BatchItems {', '.join(self.writes)}>"

    def __setitem__(self, name: str, value: bytes) -> None:
        self.put(name, value)

    def __delitem__(self, name: str) -> None:
        self.delete(name)

    def put(self, name: str, value: bytes, *, expect: int | None = ANY, text: bool = False) -> None:
        """Put an item when the batch is written. The arguments are those of `Items.put`."""
        self.writes[name] = items.prepare_put(self._engine, name, value, expect, text=text)

    def delete(self, name: str, *, expect: int | None = ANY, missing_ok: bool = False) -> None:
        """Remove an item when the batch is written."""
        self.writes[name] = items.prepare_removal(name, expect, missing_ok=missing_ok)


class Batch:
    """Messages and items that are written together, when the `with` block ends without an error."""

    def __init__(
        self, engine: "Engine", write: "Callable[[Sequence[Message], Sequence[ItemWrite]], list[Saved]]"
    ) -> None:
        self._engine = engine
        self._write = write
        self._messages: list[Message] = []
        self._done = False
        self.items = BatchItems(engine)
        self.saved: list[Saved] = []  # the messages, when the batch is written

    def __repr__(self) -> str:
        return f"<Batch of {len(self._messages)} messages and {len(self.items.writes)} items>"

    def append(self, message: "Message") -> None:
        """Add a message to the batch."""
        self._check_open()
        self._messages.append(message)

    def extend(self, messages: "Iterable[Message]") -> None:
        """Add messages to the batch, each below the one before."""
        self._check_open()
        self._messages.extend(messages)

    def write(self) -> "list[Saved]":
        """Write the batch now; `with` does it at its end. Returns the messages as they were saved."""
        self._check_open()
        self._done = True
        writes = list(self.items.writes.values())
        if self._messages or writes:
            self.saved = self._write(self._messages, writes)
        return self.saved

    def _check_open(self) -> None:
        if self._done:
            raise InvalidArgument("the batch is written already", hint="begin another one: talk.batch()")

    def __enter__(self) -> "Batch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._done:
            self.write()
