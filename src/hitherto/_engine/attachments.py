"""Attachments on their way into a conversation and out of it.

Large content is named by a fingerprint of what it is, made with the conversation's key if it has one: the same image
twice in one conversation is kept once, and names do not tell that two sealed conversations have the same. It is staged
in chunks before the message that refers to it is committed, a few at a time, so that little memory is needed; each
chunk is compressed where that helps, and sealed like everything else. Reading checks every chunk, the size, and the
fingerprint.

Providers write images into their JSON in base64, and the block beside it has the same image as bytes. So a long string
that is the base64 of something is kept as the bytes that it says, with a note of how it says them: the two share one
attachment, which takes three quarters of the space, and is binary content like any other. A string is kept like that
only if writing its bytes again gives exactly that string.

An attachment that a message refers to, and that is not there, is **missing**. A missing attachment never reads as
deleted: `MissingAttachment` is `Damaged`, `NotFound` means that no message refers to it any more. A reader that looks
at the stored state (`ConversationState.own`) gets the message with a hole in the place of the attachment. A message
with a hole that is written again, here or elsewhere, refers to an attachment that is missing there as well.
"""

import re
from binascii import Error as _NotBase64
from binascii import a2b_base64, b2a_base64
from codecs import getincrementaldecoder
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from .._sealing.codec import Envelope
from ..attachment import CHUNK, Attachment, hole_of
from ..errors import Busy, Damaged, HithertoError, InvalidMessage, MissingAttachment, NotFound, PayloadTooLarge
from .bodies import Attached, Body, chunk_place, decode_body, utf8, with_holes, without_holes
from .compression import compress, decompress
from .packs import Reader
from .signals import KeyChanged

if TYPE_CHECKING:
    from typing import Protocol

    from ..backend import ConversationRow
    from .context import StoreContext

    class AttachmentOwner(Protocol):
        """A conversation whose messages refer to attachments (`state`)."""

        own: bool
        has_holes: bool
        id: bytes
        name: str
        envelope: Envelope

        @property
        def engine(self) -> "StoreContext": ...

        def is_same_conversation(self, row: ConversationRow) -> bool: ...


_AT_ONCE = 16  # chunks staged in one transaction
_AS_IT_IS, _COMPRESSED = b"\x00", b"\x01"  # how a chunk begins

Sources = dict[Attached, Attachment]


def spill(state: "AttachmentOwner", envelope: Envelope, body: Body) -> tuple[Body, Sources]:
    """Return the content with its large values replaced by holes, and the attachments to stage for it."""
    sources: Sources = {}

    def fill(value: str | bytes | Attachment) -> Attached:
        given = value if isinstance(value, Attachment) else _in_memory(value)
        source, way, prefix = given.encodes or (given, 0, "")
        limit = state.engine.max_attachment
        if source.size > limit:
            raise PayloadTooLarge(source.size, limit, what="one attachment")
        if source.is_missing:
            return Attached(_hole_name(envelope, source.stored_name or b""), source.size, source.text, way, prefix)
        attached = Attached(_name(envelope, source), source.size, source.text, way, prefix)
        sources[attached] = given
        return attached

    return with_holes(body, fill), sources


def _hole_name(envelope: Envelope, name: bytes) -> bytes:
    """The name of a missing attachment in this conversation, from the name that it had. It is made with the
    conversation's key, as every name is, and no content has it."""
    fingerprint = envelope.fingerprint()
    fingerprint.update(b"missing attachment\0" + name)
    return fingerprint.digest()


def hole(attached: Attached) -> Attachment:
    """Return the placeholder that a message holds instead of a missing attachment."""
    return _as_given(hole_of(attached.size, text=attached.text, name=attached.name), attached)


def _name(envelope: Envelope, source: Attachment) -> bytes:
    """Return the fingerprint of an attachment. Reads all of it; `InvalidMessage` if its size or encoding is wrong."""
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
    return fingerprint.digest()


def unstage(state: "AttachmentOwner", sources: Sources) -> None:
    """Remove the staged attachments of a message that was not committed, unless another message refers to them."""
    if sources:
        with suppress(HithertoError):  # garbage collection removes the rest later
            state.engine.backend.unstage(state.id, [attached.name for attached in sources])


def _in_memory(value: str | bytes) -> Attachment:
    data = utf8(value) if isinstance(value, str) else value
    said = _from_base64(data) if isinstance(value, str) else None
    if said is not None:
        return in_base64(_in_memory(said[0]), *said[1:])
    return Attachment(len(data), lambda: iter((data,)), text=isinstance(value, str), in_memory=True)


# -- base64

_URL, _UNPADDED = 2, 1  # what is added to 1 for a way of writing base64
_PREFIX = re.compile(rb"data:[ -+\--~]{0,200};base64,")  # of a data URL: no comma, no control characters
_TO_URL, _FROM_URL = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


def _from_base64(text: bytes) -> tuple[bytes, int, str] | None:
    """Decode a text in base64: return its bytes, the variant of base64, and the prefix before it. None if encoding
    these bytes again does not give exactly this text."""
    prefix = _PREFIX.match(text)
    begin = prefix.end() if prefix else 0
    size = len(text) - begin
    way = 1 + (_UNPADDED if size % 4 else 0)
    code = text[begin:]
    if b"-" in code or b"_" in code:
        way, code = way + _URL, code.translate(_FROM_URL)
    try:
        data = a2b_base64(code + b"=" * (-size % 4), strict_mode=True)
    except _NotBase64:
        return None
    said = data, way, text[:begin].decode()
    return said if _is_encoded_as(*said, text) else None


def _is_encoded_as(data: bytes, way: int, prefix: str, text: bytes) -> bool:
    """Return True if encoding these bytes gives exactly this text."""
    pieces = (data[start : start + CHUNK] for start in range(0, len(data), CHUNK))
    place = 0
    for piece in _to_base64(pieces, way, prefix):
        if not text.startswith(piece, place):
            return False
        place += len(piece)
    return place == len(text)


def _to_base64(pieces: Iterable[bytes], way: int, prefix: str) -> Iterator[bytes]:
    yield prefix.encode()
    rest = b""
    for piece in pieces:
        data = rest + piece
        whole = len(data) - len(data) % 3
        rest = data[whole:]
        yield _encode_base64(data[:whole], way)
    yield _encode_base64(rest, way)


def _encode_base64(data: bytes, way: int) -> bytes:
    text = b2a_base64(data, newline=False)
    if (way - 1) & _URL:
        text = text.translate(_TO_URL)
    return text.rstrip(b"=") if (way - 1) & _UNPADDED else text


def in_base64(source: Attachment, way: int, prefix: str) -> Attachment:
    """Return the base64 text of some bytes. It is encoded while it is read, so that little memory is needed."""
    code = -(-source.size * 4 // 3) if (way - 1) & _UNPADDED else -(-source.size // 3) * 4
    size = len(prefix.encode()) + code
    text = Attachment(size, lambda: _to_base64(source, way, prefix), text=True, in_memory=source.in_memory)
    text.encodes = source, way, prefix
    return text


# -- into the store


def stage(state: "AttachmentOwner", sources: Sources, generation: int) -> None:
    """Stage the attachments that are not stored yet. `KeyChanged` if their names were made with the key of another
    generation."""
    if not sources:
        return
    envelope = state.envelope
    if envelope.generation != generation:
        raise KeyChanged
    names = [attached.name for attached in sources]
    there = {row.name for row in state.engine.backend.attachments(state.id, names) if row.chunks}
    for attached, source in sources.items():
        if attached.name not in there:
            _stage(state, envelope, attached.name, source.encodes[0] if source.encodes else source)
            there.add(attached.name)


def _stage(state: "AttachmentOwner", envelope: Envelope, name: bytes, source: Attachment) -> None:
    backend, now = state.engine.backend, state.engine.clock
    fingerprint, size, start = envelope.fingerprint(), 0, 0
    compressible = True  # until a chunk does not get smaller: images and videos are compressed already
    batch: list[bytes] = []
    for piece in _split_evenly(source):
        if len(batch) == _AT_ONCE:
            backend.stage(state.id, name, start, batch, last=False, at=now())
            start, batch = start + len(batch), []
        fingerprint.update(piece)
        size += len(piece)
        if size > source.size:  # it grew: what lies beyond its end would be read along with the real content
            break
        data = _compress_chunk(piece) if compressible else _AS_IT_IS + piece
        compressible = data[:1] == _COMPRESSED
        batch.append(envelope.close(chunk_place(state.id, name, start + len(batch)), data))
    if size != source.size or fingerprint.digest() != name:
        raise InvalidMessage("an attachment changed while it was read", hint="save the message again")
    backend.stage(state.id, name, start, batch, last=True, at=now())


def _split_evenly(pieces: Iterable[bytes]) -> Iterator[bytes]:
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


def _compress_chunk(piece: bytes) -> bytes:
    """Compress a chunk, if that saves at least a tenth."""
    smaller = compress(piece, level=1)
    return _COMPRESSED + smaller if len(smaller) < 0.9 * len(piece) else _AS_IT_IS + piece


# -- and out of it


def open_attachment(state: "AttachmentOwner", attached: Attached) -> Attachment:
    """Return an attachment that reads its content from the store later, in the form in which it was given. If it is
    not there then, the error says why: its message was deleted, or encrypted anew, or the attachment is missing."""

    def pieces() -> Iterator[bytes]:
        try:
            yield from stored_attachment(state, attached)
        except MissingAttachment:
            raise _explain_absence(state, attached) from None

    source = Attachment(attached.size, pieces, text=attached.text)
    source.stored_name = attached.name
    return _as_given(source, attached)


def is_stored(state: "AttachmentOwner", attached: Attached) -> bool:
    """Return True if the store has an attachment of this name, whole or damaged."""
    return any(row.chunks for row in state.engine.backend.attachments(state.id, [attached.name]))


def _explain_absence(state: "AttachmentOwner", attached: Attached) -> HithertoError:
    """Return the error that says why an attachment is not in the store any more. Reads all messages: an
    attachment goes with the last message that refers to it, so if one still does, the attachment is missing."""
    engine, name = state.engine, attached.name
    rows = engine.backend.lookup(ids=[state.id])
    if not rows or not state.is_same_conversation(rows[0]):
        return NotFound("conversation", [state.name])
    envelope, reader = engine.codec.envelope(rows[0]), Reader(engine)
    for row in engine.backend.scan(state.id, limit=1 << 40):
        _, content = reader.content(envelope, row)
        if any(other.name == name for other in decode_body(content).attached) and not is_stored(state, attached):
            return MissingAttachment(attached.size, engine.message_ids.id(row.number))
    if not envelope.is_current_name(name):
        what = f"conversation {state.name} was encrypted anew, and its attachments have other names"
        return Busy(what, hint="read the message again")
    return NotFound("attachment", [name.hex()[:12]], hint="its message was deleted")


def _as_given(source: Attachment, attached: Attached) -> Attachment:
    return in_base64(source, attached.base64, attached.prefix) if attached.base64 else source


def stored_attachment(state: "AttachmentOwner", attached: Attached) -> Attachment:
    """Return an attachment as it is stored. Reading it raises `MissingAttachment` if it is not there, and
    `Damaged` if it is not as it was written."""

    def pieces() -> Iterator[bytes]:
        state.engine.ensure_open()
        fingerprint, size = state.envelope.fingerprint(attached.name), 0
        for index, chunk in enumerate(state.engine.backend.chunks(state.id, attached.name)):
            data = state.envelope.open(chunk_place(state.id, attached.name, index), chunk)
            if data[:1] not in (_AS_IT_IS, _COMPRESSED):
                raise Damaged("a chunk of an attachment begins with a byte that has no meaning")
            piece = decompress(data[1:]) if data[:1] == _COMPRESSED else data[1:]
            fingerprint.update(piece)
            size += len(piece)
            yield piece
        if size != attached.size or fingerprint.digest() != attached.name:
            if not is_stored(state, attached):
                raise MissingAttachment(attached.size)
            raise Damaged(f"an attachment has {size} bytes that are not the {attached.size} that were kept")

    made = Attachment(attached.size, pieces, text=attached.text)
    made.stored_name = attached.name
    return made


def rename_attachments(state: "AttachmentOwner", body: Body) -> tuple[Body, dict[bytes, bytes]]:
    """Stage the attachments again under the current key. Return the content with their new names, and the new name by
    old name of those that are stored. A missing attachment gets a name made with the current key as well, or the
    message would never be up to date. The caller commits only if the conversation has not changed, so a missing
    attachment was not deleted meanwhile."""
    names: dict[bytes, bytes] = {}
    envelope = state.envelope
    holes: dict[bytes, bytes] = {}
    for attached in body.attached:
        if (
            attached.name not in names and attached.name not in holes
        ):  # text and bytes may be the same, and share a name
            source, fingerprint = stored_attachment(state, attached), envelope.fingerprint()
            try:
                for piece in source:
                    fingerprint.update(piece)
            except MissingAttachment:
                holes[attached.name] = _hole_name(envelope, attached.name)
                continue
            names[attached.name] = fingerprint.digest()
            stage(state, {replace(attached, name=names[attached.name]): source}, envelope.generation)
    now = names | holes
    return replace(body, attached=tuple(replace(a, name=now[a.name]) for a in body.attached)), names


def fill_holes(state: "AttachmentOwner", body: Body, *, lazy: bool = False) -> tuple[Body, str | None]:
    """Return the content with its attachments in place, read or to be read, and a text that names the missing ones.

    A missing attachment becomes a hole if the state is the reader's own, and raises `MissingAttachment` otherwise: the
    row of a shared state may be older than the stored one."""
    missing: list[Attached] = []

    def fill(load: Callable[[Attached], str | bytes | Attachment], attached: Attached) -> str | bytes | Attachment:
        try:
            return load(attached)
        except MissingAttachment:
            if not state.own:
                raise
            missing.append(attached)
            return hole(attached)

    whole = without_holes(body, partial(fill, _lazily(state) if lazy else _eagerly(state, body)))
    if not missing:
        return whole, None
    state.has_holes = True
    sizes = ", ".join(f"{attached.size:,}" for attached in dict.fromkeys(attached.bare for attached in missing))
    what = "an attachment is missing" if len(missing) == 1 else "attachments are missing"
    return whole, f"{what} ({sizes} bytes)"


def _lazily(state: "AttachmentOwner") -> Callable[[Attached], Attachment]:
    def load(attached: Attached) -> Attachment:
        if not is_stored(state, attached):
            raise MissingAttachment(attached.size)
        return open_attachment(state, attached)

    return load


def _eagerly(state: "AttachmentOwner", body: Body) -> Callable[[Attached], str | bytes]:
    times = Counter(attached.bare for attached in body.attached)
    shared: dict[Attached, bytes] = {}  # an image and its base64 are the same bytes: read once

    def load(attached: Attached) -> str | bytes:
        source = stored_attachment(state, attached)
        if times[attached.bare] > 1:
            if attached.bare not in shared:
                shared[attached.bare] = source.read()
            source = Attachment(source.size, lambda: iter((shared[attached.bare],)), text=source.text)
        return _as_given(source, attached).load()

    return load
