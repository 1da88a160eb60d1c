"""The frame of exports that are JSON: a list of conversations, each an object with its whole tree.

What such an importer has to say is how one object becomes a conversation, and how one record becomes messages. Here is
what the others share: going through the objects of all files, and putting the messages of each record below those of
its parent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ...model import Message
from ...snapshots import Unreadable
from .._files import Files
from .._importer import Importer, clean_text
from .._types import Found, PortableMessage
from ._fields import Fields
from ._foreign_tree import Ordered
from ._json_elements import objects_in


class JsonExport(Importer):
    """An importer of files with one array of objects, or with one object."""

    def read_files(self, files: Files, names: Sequence[str]) -> Iterator[Found]:
        for name in names:
            for place, body in objects_in(files, name):
                if isinstance(body, Unreadable):
                    yield body
                else:
                    yield from self.read_object(body, place)

    def read_object(self, body: Fields, place: str) -> Iterator[Found]:
        """Yield what an object holds. `place` is what to call it where it cannot be read."""
        raise NotImplementedError


def place_turns(
    tree: Ordered,
    times: Mapping[str, int],
    turn: Callable[[str], Iterable[tuple[str, Message, int]]],
) -> tuple[list[PortableMessage], dict[str | None, str]]:
    """Return the messages of all records, and the last one of each, below which the conversation goes on. `turn` gives
    those of one record with their ids and the numbers of their setups."""
    ends: dict[str | None, str] = {}
    messages: list[PortableMessage] = []
    for id, parent in tree.parents.items():
        above = None if parent is None else ends.get(parent) or clean_text(parent)
        for own, message, setup in turn(id):
            said = PortableMessage(id=own, parent=above, message=message, created_us=times.get(id, 0), setup=setup)
            messages.append(said)
            above = own
        ends[id] = messages[-1].id
    return messages, ends
