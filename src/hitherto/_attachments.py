"""Attachments on their way into a conversation and out of it.

Large content is named by a fingerprint of what it is, made with the conversation's key if it has one: the same image
twice in one conversation is kept once, and names do not tell that two sealed conversations have the same. It is staged
in chunks before the message that refers to it is committed, a few at a time, so that little memory is needed; each
chunk is squeezed where that helps, and closed like everything else. Reading checks every chunk, the size, and the
fingerprint.
"""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ._content import Attached, Body, chunk_place, utf8, with_holes, without_holes
from ._squeeze import squeeze, unsqueeze
from .attachment import CHUNK, Attachment
from .errors import Damaged, HithertoError, InvalidMessage, NotFound, PayloadTooLarge
from .vault import Envelope

if TYPE_CHECKING:
    from ._desk import Desk

_AT_ONCE = 16  # chunks staged in one transaction
_AS_IT_IS, _SQUEEZED = b"\x00", b"\x01"  # how a chunk begins

Sources = dict[Attached, Attachment]


class LetGo(NotFound):
    """The attachment is not kept any more, not under this name."""


class Outdated(Exception):
    """The conversation has another key by now: what was prepared with the old one is prepared again."""


def spilled(desk: "Desk", envelope: Envelope, body: Body) -> tuple[Body, Sources]:
    """The content without what is large, and what has to be staged for it."""
    sources: Sources = {}

    def fill(value: str | bytes | Attachment) -> Attached:
        source = value if isinstance(value, Attachment) else _in_memory(value)
        limit = desk.store._max_attachment
        if source.size > limit:
            raise PayloadTooLarge(source.size, limit, what="one attachment")
        fingerprint, size = envelope.fingerprint(), 0
        decode = getincrementaldecoder("utf-8")().decode
        for piece in source:
            fingerprint.update(piece)
            size += len(piece)
            if source.text and not source.in_memory:
                try:
                    decode(piece, size == source.size)
                except UnicodeDecodeError:
                    raise InvalidMessage("an attachment that is meant to be text is none") from None
        if size != source.size:
            raise InvalidMessage("an attachment changed while it was read", hint="save the message again")
        attached = Attached(fingerprint.digest(), source.size, source.text)
        sources[attached] = source
        return attached

    return with_holes(body, fill), sources


def unstage(desk: "Desk", sources: Sources) -> None:
    """The message was not kept: let go of what was staged for it, unless another one refers to it."""
    if sources:
        with suppress(HithertoError):  # what cannot be removed now is collected later
            desk.store.backend.unstage(desk.id, [attached.name for attached in sources])


def _in_memory(value: str | bytes) -> Attachment:
    data = utf8(value) if isinstance(value, str) else value
    return Attachment(len(data), lambda: iter((data,)), text=isinstance(value, str), in_memory=True)


def stage(desk: "Desk", sources: Sources, generation: int) -> None:
    """Keep what is not kept already. It was named with the key of this generation."""
    if not sources:
        return
    envelope = desk.envelope
    if envelope.generation != generation:
        raise Outdated
    names = [attached.name for attached in sources]
    there = {row.name for row in desk.store.backend.attachments(desk.id, names) if row.chunks}
    for attached, source in sources.items():
        if attached.name not in there:
            _stage(desk, envelope, attached.name, source)


def _stage(desk: "Desk", envelope: Envelope, name: bytes, source: Attachment) -> None:
    backend, now = desk.store.backend, desk.store._clock
    fingerprint, size, start = envelope.fingerprint(), 0, 0
    squeezable = True  # unless a chunk shows that it is not: images and videos are squeezed already
    batch: list[bytes] = []
    for piece in _even(source):
        if len(batch) == _AT_ONCE:
            backend.stage(desk.id, name, start, batch, last=False, at=now())
            start, batch = start + len(batch), []
        fingerprint.update(piece)
        size += len(piece)
        if size > source.size:  # it grew: what lies beyond its end would be read along with the real content
            break
        data = _squeezed(piece) if squeezable else _AS_IT_IS + piece
        squeezable = data[:1] == _SQUEEZED
        batch.append(envelope.close(chunk_place(desk.id, name, start + len(batch)), data))
    if size != source.size or fingerprint.digest() != name:
        raise InvalidMessage("an attachment changed while it was read", hint="save the message again")
    backend.stage(desk.id, name, start, batch, last=True, at=now())


def _even(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of one size, the last of which may be shorter; at least one."""
    rest = b""
    some = False
    for piece in pieces:
        view = memoryview(rest + piece if rest else piece)
        whole = len(view) - len(view) % CHUNK
        for start in range(0, whole, CHUNK):
            some = True
            yield bytes(view[start : start + CHUNK])
        rest = bytes(view[whole:])
    if rest or not some:
        yield rest


def _squeezed(piece: bytes) -> bytes:
    """A chunk in fewer bytes, if they are clearly fewer."""
    smaller = squeeze(piece, level=1)
    return _SQUEEZED + smaller if len(smaller) < 0.9 * len(piece) else _AS_IT_IS + piece


def kept(desk: "Desk", attached: Attached) -> Attachment:
    """An attachment of the conversation, to be read from the store."""

    def pieces() -> Iterator[bytes]:
        desk.store._ensure_open()
        fingerprint, size = desk.envelope.fingerprint(attached.name), 0
        for index, chunk in enumerate(desk.store.backend.chunks(desk.id, attached.name)):
            data = desk.envelope.open(chunk_place(desk.id, attached.name, index), chunk)
            if data[:1] not in (_AS_IT_IS, _SQUEEZED):
                raise Damaged("a chunk of an attachment begins with a byte that has no meaning")
            piece = unsqueeze(data[1:]) if data[:1] == _SQUEEZED else data[1:]
            fingerprint.update(piece)
            size += len(piece)
            yield piece
        if size != attached.size or fingerprint.digest() != attached.name:
            if not desk.store.backend.attachments(desk.id, [attached.name]):
                hint = "its message was deleted, or encrypted anew: read the message again"
                raise LetGo("attachment", [attached.name.hex()[:12]], hint=hint)
            raise Damaged(f"an attachment has {size} bytes that are not the {attached.size} that were kept")

    return Attachment(attached.size, pieces, text=attached.text)


def renamed(desk: "Desk", body: Body) -> tuple[Body, dict[bytes, bytes]]:
    """The content with its attachments kept anew, under the key that closes now; old names and new ones."""
    names: dict[bytes, bytes] = {}
    envelope = desk.envelope
    for attached in body.attached:
        if attached.name not in names:  # text and bytes may be the same, and share a name
            source, fingerprint = kept(desk, attached), envelope.fingerprint()
            for piece in source:
                fingerprint.update(piece)
            names[attached.name] = fingerprint.digest()
            stage(desk, {replace(attached, name=names[attached.name]): source}, envelope.generation)
    return replace(body, attached=tuple(replace(a, name=names[a.name]) for a in body.attached)), names


def filled(desk: "Desk", body: Body, *, lazy: bool = False) -> Body:
    """The content with its attachments in place: read, or to be read."""
    if lazy:
        return without_holes(body, lambda attached: kept(desk, attached))
    return without_holes(body, lambda attached: kept(desk, attached).load())
