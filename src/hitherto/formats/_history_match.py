"""Finds the messages of an imported conversation that the store already has.

The two trees are matched from the root. Two messages are the same if they have the same position and the same content,
even under different ids. A message with the same id is preferred, so that equal siblings keep their identity. Labels
and keys are not compared.
"""

import hashlib

from msgspec import msgpack

from ..attachment import Attachment
from ..dialects._missing_attachments import holes_in
from ..model import Message, Setup
from ..snapshots._thread import snapshot_of, thread_of
from ._types import PortableConversation, PortableMessage

_LONG = 256  # characters, or bytes: longer content is compared by its hash


def laid_over(
    there: PortableConversation, coming: PortableConversation, told: dict[str, PortableMessage]
) -> dict[str, PortableMessage] | None:
    """Return the messages that the store has, by their ids in the file, or None if the two begin differently. `told`
    are matches that are already known."""
    digests = {said.id: digest(said) for said in coming.messages}
    free: dict[tuple[str | None, str | None, str], list[PortableMessage]] = {}  # by place and content
    for said in there.messages:
        free.setdefault((said.parent, said.link, digest(said)), []).append(said)
    torn = _Torn(there, coming)
    found = dict(told)
    for by_name in (True, False):
        for said in coming.messages:
            if said.id not in found and (place := _place(said, found)) is not None:
                alike = free.get((*place, digests[said.id]), [])
                fitting = (one for one in alike if (one.id == said.id or not by_name) and _fits(one, said))
                chosen = next(fitting, None)
                if chosen is not None:
                    alike.remove(chosen)
                    found[said.id] = chosen
                elif by_name and (chosen := torn.same(said, place)) is not None:
                    free[*place, digest(chosen)].remove(chosen)
                    found[said.id] = chosen
    both = all(any(s.parent is None and s.main for s in p.messages) for p in (there, coming))
    begun = bool(told) or any(said.parent is None and (said.main or not both) for said in found.values())
    return found if begun or not coming.messages or not there.messages else None


def told_again(there: PortableConversation, at: str, setup: Setup) -> list[Message]:
    """Return the messages of a snapshot, with this setup, of the thread that ends at a message. Their JSON may differ
    from the stored one."""
    by_id = {said.id: said for said in there.messages}
    path: list[PortableMessage] = []
    place: str | None = at
    while place is not None:
        path.append(by_id[place])
        place = by_id[place].parent
    messages = [said.message for said in reversed(path)]
    return thread_of(snapshot_of(messages, setup, conversation="", head=at, metadata={}))[0]


def _place(said: PortableMessage, found: dict[str, PortableMessage]) -> tuple[str | None, str | None] | None:
    """Return the position that a message would have in the existing conversation, or None if its parent or link is not
    there."""
    above = [None if id is None else found.get(id) for id in (said.parent, said.link)]
    if (above[0] is None) != (said.parent is None) or (above[1] is None) != (said.link is None):
        return None
    parent, link = (None if one is None else one.id for one in above)
    return parent, link


class _Torn:
    """Matches messages of which one side has lost an attachment that the other has. They are the same if they have the
    same id and the same position, and differ only in the bytes of attachments."""

    def __init__(self, there: PortableConversation, coming: PortableConversation) -> None:
        self._coming = {said.id for said in coming.messages if holes_in(said.message)}
        torn = {said.id for said in there.messages if holes_in(said.message)} | self._coming
        self._there = {said.id: said for said in there.messages if said.id in torn}

    def same(self, said: PortableMessage, place: tuple[str | None, str | None]) -> PortableMessage | None:
        one = self._there.get(said.id)
        if one is None or (one.parent, one.link) != place:
            return None
        alike = digest(one, by_size=True) == digest(said, by_size=True) and _fits(one, said, by_size=True)
        return one if alike else None


def digest(said: PortableMessage, *, by_size: bool = False) -> str:
    """Return a digest of a message's content. With `by_size`, attachments of the same size are equal."""
    m = said.message
    blocks = [(b.type, b.id, b.modality, b.mime_type, _short(b.content, by_size)) for b in m.blocks]
    return hashlib.sha256(msgpack.encode((m.role, m.tool_result_error, blocks))).hexdigest()


def _fits(one: PortableMessage, other: PortableMessage, *, by_size: bool = False) -> bool:
    """Return True unless both messages have a provider's JSON and the two differ."""
    ours, theirs = (None if raw is None else _short(raw, by_size) for raw in (one.message.raw, other.message.raw))
    return ours is None or theirs is None or msgpack.encode(ours) == msgpack.encode(theirs)


def _short(value: object, by_size: bool = False) -> object:
    """Return a short form to compare, independent of whether the content is in memory or still in the store."""
    if isinstance(value, dict):
        return {name: _short(item, by_size) for name, item in value.items()}
    if isinstance(value, list):
        return [_short(item, by_size) for item in value]
    if isinstance(value, Attachment):
        if by_size:
            return ("text" if value.text else "bytes", value.size)
        if value.is_missing:
            return ("missing text" if value.text else "missing bytes", value.size)
        hashed = hashlib.sha256()
        for piece in value:
            hashed.update(piece)
        return ("text" if value.text else "bytes", value.size, hashed.digest())
    if isinstance(value, (str, bytes)) and len(value) > _LONG:
        data = value.encode() if isinstance(value, str) else value
        return ("text" if isinstance(value, str) else "bytes", len(data), hashlib.sha256(data).digest())
    return value
