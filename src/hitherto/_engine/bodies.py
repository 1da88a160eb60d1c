"""The content inside the opaque bytes: of a message, of a conversation's description, of the workspace's.

Content is msgpack: maps whose fields are named, with defaults left out. Fields are only ever added, so older content
reads with newer code.

Large content (binary, and long strings in the provider's own JSON) is not in the message: where it was there is a
**hole**, a msgpack extension that says which of the message's attachments fills it, and how: as bytes, as text, or as
text that says the bytes in base64.

A **pack** has the content of the first messages of a run, each with its header, compressed together: a reader of a
pack needs no rows.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from msgspec import DecodeError as _DecodeError
from msgspec import Meta as _Limits
from msgspec import Raw, Struct, msgpack
from msgspec import ValidationError as _ValidationError
from msgspec.structs import replace

from .._sealing.codec import Envelope
from ..accountability import Actor
from ..attachment import LARGE, Attachment
from ..backend import ConversationRow, MessageRow, PackRow
from ..errors import Damaged, Hint, InvalidMessage
from ..ids import RUN, Names
from ..model import Block, Message, Saved, Setup, Usage
from .compression import compress, decompress

T = TypeVar("T")

_HOLE = 1  # the code of our msgpack extension
LARGEST_PACK = 1 << 20  # bytes of content in a pack: reading one message of it takes a few milliseconds at most


class Attached(Struct, frozen=True, array_like=True, gc=False):
    """The attachment that fills a hole: bytes, the text that they are, or a text that says them in base64."""

    name: bytes
    size: int  # of the bytes that are kept
    text: bool = False
    base64: Annotated[int, _Limits(ge=0, le=4)] = 0  # 1, 2: padded, unpadded; 3, 4: the same with the URL's alphabet
    prefix: str = ""  # what the text in base64 begins with, such as "data:image/png;base64,"

    @property
    def bare(self) -> "Attached":
        """The bytes alone, in whichever form they are read."""
        return Attached(self.name, self.size)


class Hole:
    """The place of an attachment: its index among those of the message. Not a Struct, because msgspec writes a Struct
    as a map."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Body(Struct, frozen=True, omit_defaults=True, gc=False):
    """The content of a message."""

    blocks: tuple[Block, ...]
    label: str | None = None
    key: str | None = None
    tool_result_error: bool = False
    extra: dict[str, object] | None = None
    raw: object = None
    usage: Usage | None = None
    privacy: dict[str, object] | None = None
    setup: int = 0  # which of the conversation's setups was in force, from 1; 0: none
    origin: str | None = None  # conversation/message that it was copied from
    attached: tuple[Attached, ...] = ()


class Erasure(Struct, frozen=True, omit_defaults=True):
    """The content of an entry of the erasure ledger: `_erasure.ledger`."""

    marks: tuple[bytes, ...]  # one for each time that a conversation of this id was purged
    at: int  # when it was purged last, microseconds
    reason: str
    actor: Actor | None = None


class Meta(Struct, frozen=True, omit_defaults=True):
    """The description of a conversation."""

    title: str = ""
    key: str | None = None
    project: str | None = None
    metadata: dict[str, str] = {}
    setups: int = 0  # how many setups there are
    setup: int = 0  # the one that the main flow was configured with last; 0: none
    setup_seq: int = 0  # before the message with this sequence
    opening: str | None = None  # what the first message of a recorded conversation is like, to find it again
    created: int = 0  # when it was begun, if that was elsewhere; 0: when the row says
    kept_in: bool = False  # it must not leave its store
    checkpoints: tuple[str, ...] = ()  # where checkpoints of it are kept
    record: int = 0  # which state of what lies beside a record is the one that counts; 0: there is none
    imported: int = 0  # when something of it was last brought in from a file of another program, microseconds; 0: never
    imported_title: str = ""  # the title that it came with; it is replaced by a newer one as long as it stands
    erased: Erasure | None = None  # of an entry of the erasure ledger


class WorkspaceMeta(Struct, frozen=True, omit_defaults=True):
    """The description of a workspace."""

    seed: bytes  # of the message ids
    name: str = ""  # of the workspace, if it is sealed
    retired: dict[bytes, bytes] = {}  # while keys are rotated: wrapping keys of before, by the ids of their keys
    retention_days: int = 0  # after so many days without a word a conversation is due; 0: never
    floor_days: int = 0  # for so many days nothing is destroyed; 0: there is no floor
    rotated_by: Actor | None = None  # who began the last rotation of keys, sealing or unsealing
    replaying: bool = False  # the erasure ledger is being replayed: what is in it and came back is being purged
    quota_bytes: int = 0  # of content; 0: as much as the disk holds
    expiring: bool = False  # a conversation has, or had, an expiry of its own
    checkpoints: tuple[str, ...] = ()  # where checkpoints lie, or lay, of any conversation
    sweeper: tuple[bytes, int] | None = None  # the process that sweeps now, and when its lease ends: `lease`
    clocks: tuple[str, int, int] | None = None  # which boot, its clock, and what the time was then, as far as we know
    has_metadata_tags: bool = False  # every conversation has the tags that find it by its metadata
    undated: dict[bytes, int] = {}  # conversations whose time cannot be right: when a sweep saw them first
    rotator: tuple[bytes, int] | None = (
        None  # the same as `sweeper`, for the process that brings conversations under a new key
    )
    verified_at: int = 0  # when everything was read and found sound, in microseconds; 0: never, as far as is known


class Packed(Struct, frozen=True, array_like=True, gc=False):
    """A message in a pack. Its number and parent follow from its place there."""

    seq: int
    link: int | None
    main: bool
    role: str
    revision: int
    created_at: int
    body: Body


class PackedRaw(Struct, frozen=True, array_like=True):
    """The same with the content as it is, for moving it about."""

    seq: int
    link: int | None
    main: bool
    role: str
    revision: int
    created_at: int
    body: Raw


class HasAttachment(InvalidMessage):
    """The content holds an attachment, which has to be kept beside it first; only messages can."""


def _hook(value: object) -> object:
    if type(value) is Hole:
        return msgpack.Ext(_HOLE, value.index.to_bytes(4, "big"))
    if type(value) is Attachment:
        raise HasAttachment("an attachment where there can be none", hint="attachments belong into messages")
    raise TypeError(f"a {type(value).__name__}")


def _unhook(code: int, data: memoryview) -> object:
    if code != _HOLE:
        raise ValueError("an unknown extension")
    return Hole(int.from_bytes(data, "big"))


_encode = msgpack.Encoder(enc_hook=_hook).encode
_body = msgpack.Decoder(Body, ext_hook=_unhook).decode
_pack = msgpack.Decoder(tuple[Packed, ...], ext_hook=_unhook).decode
_pack_raw = msgpack.Decoder(tuple[PackedRaw, ...]).decode
_meta = msgpack.Decoder(Meta).decode
_workspace = msgpack.Decoder(WorkspaceMeta).decode

_UNREADABLE = (_DecodeError, _ValidationError, ValueError)


def encode(content: "Body | Meta | WorkspaceMeta | Setup") -> bytes:
    """Return the bytes of some content; `InvalidMessage` if it cannot be encoded."""
    try:
        return _encode(content)
    except HasAttachment:
        raise
    except UnicodeEncodeError:
        raise _half_a_pair() from None
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise InvalidMessage(
            f"this cannot be kept as it is: {error}", hint="pass plain JSON: dict, list, str, int, float, bool, None"
        ) from None


def utf8(text: str) -> bytes:
    """The bytes of a text, or `InvalidMessage`."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _half_a_pair() from None


def _half_a_pair() -> InvalidMessage:
    text = "text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace') joins split pairs"
    hint = Hint("half-a-surrogate", text)
    return InvalidMessage("the text holds half of a surrogate pair, which is not a character", hint=hint)


def body_of(m: Message, setup: int, origin: str | None = None) -> Body:
    """The content of a message as it is to be kept."""
    return Body(tuple(m.blocks), m.label, m.key, m.tool_result_error, m.extra, m.raw, m.usage, m.privacy, setup, origin)


def decode_body(data: bytes) -> Body:
    """The content of a message from its bytes, or `Damaged`."""
    try:
        return _body(data)
    except _UNREADABLE as error:
        raise Damaged(f"the content of a message cannot be read: {error}") from None


class Counted(Struct, frozen=True, gc=False):
    """The part of a message's content that a count of tokens needs. The rest is skipped and not built."""

    class Extra(Struct, frozen=True, gc=False):
        """The extras that a count looks at."""

        model: object = None
        imported: object = None

    usage: Usage | None = None
    extra: Extra | None = None
    setup: int = 0
    origin: str | None = None


_counted = msgpack.Decoder(Counted, ext_hook=_unhook).decode


def decode_counted(data: bytes) -> Counted:
    """Return what a count of tokens needs of a message's content, or `Damaged`."""
    try:
        return _counted(data)
    except _UNREADABLE as error:
        raise Damaged(f"the content of a message cannot be read: {error}") from None


# -- large content


def with_holes(body: Body, fill: Callable[[str | bytes | Attachment], Attached]) -> Body:
    """Return the content with holes for its large values: `fill` stores these elsewhere."""
    attached: list[Attached] = []

    def hole(value: str | bytes | Attachment) -> Hole:
        filled = fill(value)
        if filled not in attached:
            attached.append(filled)
        return Hole(attached.index(filled))

    def punch(value: object, *, text: bool) -> object:
        if type(value) is Attachment or (type(value) is bytes and len(value) >= LARGE):
            return hole(value)
        if text and type(value) is str and len(value) * 4 > LARGE and len(utf8(value)) > LARGE:
            return hole(value)
        return value

    return _replace_leaves(body, punch, tuple, attached)


def without_holes(body: Body, fill: Callable[[Attached], str | bytes | Attachment]) -> Body:
    """Return the content with its holes filled: `fill` returns the large values."""
    filled: dict[int, object] = {}

    def mend(value: object, *, text: bool) -> object:  # noqa: ARG001  # holes are filled wherever they are
        if type(value) is not Hole:
            return value
        if value.index >= len(body.attached):
            raise Damaged("a message refers to an attachment that it does not name")
        if value.index not in filled:
            filled[value.index] = fill(body.attached[value.index])
        return filled[value.index]

    return _replace_leaves(body, mend, lambda _: (), [])


def _replace_leaves(
    body: Body,
    change: Callable[..., object],
    attached_of: Callable[[list[Attached]], tuple[Attached, ...]],
    attached: list[Attached],
) -> Body:
    """The content with every leaf changed. The texts of blocks are no candidates; strings in JSON are."""

    def deep(value: object) -> object:
        if type(value) is dict:
            return {name: deep(item) for name, item in value.items()}
        if type(value) is list:
            return [deep(item) for item in value]
        return change(value, text=True)

    blocks = tuple(
        replace(block, content=change(block.content, text=False), extra=deep(block.extra)) for block in body.blocks
    )
    fields = {"extra": deep(body.extra), "raw": deep(body.raw), "privacy": deep(body.privacy)}
    return replace(body, blocks=blocks, **fields, attached=attached_of(attached))


# -- packs


def pack_message(row: MessageRow, data: bytes) -> PackedRaw:
    """Return a message as it is stored in a pack."""
    return PackedRaw(row.seq, row.link, bool(row.main), row.role, row.revision, row.created_at, Raw(data))


def close_pack(envelope: Envelope, like: PackRow, messages: Sequence[PackedRaw]) -> PackRow:
    """A pack of these messages, in the place of another or of an empty one."""
    bare = replace(like, count=len(messages), body=b"")
    return replace(bare, body=envelope.close(pack_place(bare), compress(_encode(messages), level=3)))


def close_bodies(
    envelope: Envelope, rows: Sequence[MessageRow], contents: Sequence[bytes]
) -> tuple[tuple[MessageRow, ...], tuple[PackRow, ...]]:
    """Close the contents of many new messages: those of full runs as packs, the others in their rows."""
    runs: dict[int, list[int]] = {}
    for n, row in enumerate(rows):
        runs.setdefault(row.number - row.number % RUN, []).append(n)
    closed, packs = list(rows), []
    for first, places in runs.items():
        if len(places) == RUN and sum(rows[n].size for n in places) <= LARGEST_PACK:
            like = PackRow(first, rows[places[0]].conversation, rows[places[0]].parent, 0, b"")
            packs.append(close_pack(envelope, like, [pack_message(rows[n], contents[n]) for n in places]))
            continue
        for n in places:
            closed[n] = replace(rows[n], body=envelope.close_message(rows[n], contents[n]))
    return tuple(closed), tuple(packs)


def open_pack(envelope: Envelope, pack: PackRow) -> tuple[Packed, ...]:
    """The messages in a pack, or `Damaged`."""
    try:
        messages = _pack(decompress(envelope.open(pack_place(pack), pack.body)))
    except _UNREADABLE as error:
        raise Damaged(f"a pack cannot be read: {error}") from None
    return _check_count(pack, messages)


def open_pack_raw(envelope: Envelope, pack: PackRow) -> tuple[PackedRaw, ...]:
    """The same with contents as bytes, for moving them about."""
    try:
        messages = _pack_raw(decompress(envelope.open(pack_place(pack), pack.body)))
    except _UNREADABLE as error:
        raise Damaged(f"a pack cannot be read: {error}") from None
    return _check_count(pack, messages)


def _check_count(pack: PackRow, messages: "tuple[T, ...]") -> "tuple[T, ...]":
    if len(messages) != pack.count:
        raise Damaged(f"a pack has {len(messages)} messages, {pack.count} are meant to be")
    return messages


def pack_place(pack: PackRow) -> tuple[object, ...]:
    return ("pack", pack.conversation, pack.first, pack.parent, pack.count)


def chunk_place(conversation: bytes, attachment: bytes, index: int) -> tuple[object, ...]:
    return ("chunk", conversation, attachment, index)


def open_meta(envelope: Envelope, row: ConversationRow) -> Meta:
    try:
        return _meta(envelope.open(meta_place(row.id), row.meta))
    except _UNREADABLE as error:
        raise Damaged(f"the description of a conversation cannot be read: {error}") from None


def open_workspace(envelope: Envelope, row: ConversationRow) -> WorkspaceMeta:
    try:
        return _workspace(envelope.open(meta_place(row.id), row.meta))
    except _UNREADABLE as error:
        raise Damaged(f"the description of the workspace cannot be read: {error}") from None


def meta_place(conversation: bytes) -> tuple[object, ...]:
    return ("description", conversation)


def build_message(row: MessageRow, body: Body, names: Names, conversation: str, problem: str | None = None) -> Saved:
    """Return a stored message as callers see it. `problem` says what is wrong with its content."""
    above = None if row.parent is None else names.id(row.parent)
    link = None if row.link is None else names.id(row.link)
    return Saved(
        row.role, body.blocks, body.label, body.key, body.tool_result_error, body.extra, body.raw, body.usage,
        body.privacy, above, names.id(row.number),
        conversation, row.seq, row.created_at, link, row.main == 1, row.revision,
        body.origin, problem,
    )  # fmt: skip


# Puts large content back where it was. The text names the attachments that are missing; None: all are there.
Filler = Callable[[Body], tuple[Body, str | None]]


def build_stretch(
    rows: Sequence[MessageRow], envelope: Envelope, names: Names, conversation: str, filled: Filler
) -> list[Saved]:
    """The same as `build_message` for rows of which each is the parent of the next."""
    ids = names.ids(rows[0].number, len(rows))
    above = None if rows[0].parent is None else names.id(rows[0].parent)
    messages = []
    for row, id, content in zip(rows, ids, envelope.open_messages(rows), strict=True):
        try:
            body = _body(content)
        except _UNREADABLE as error:
            raise Damaged(f"the content of message {id} cannot be read: {error}") from None
        problem = None
        if body.attached:
            body, problem = filled(body)
        link = None if row.link is None else names.id(row.link)
        message = Saved(
            row.role, body.blocks, body.label, body.key, body.tool_result_error, body.extra, body.raw, body.usage,
            body.privacy, above, id, conversation, row.seq, row.created_at, link, row.main == 1, row.revision,
            body.origin, problem,
        )  # fmt: skip
        messages.append(message)
        above = id
    return messages


def build_pack_messages(
    pack: PackRow, last: int, envelope: Envelope, names: Names, conversation: str, filled: Filler
) -> list[Saved]:
    """The same for the messages of a pack up to the number `last`: the loop that resume waits for."""
    ids = names.ids(pack.first, last - pack.first + 1)
    above = None if pack.parent is None else names.id(pack.parent)
    messages = []
    for m, id in zip(open_pack(envelope, pack), ids, strict=False):
        body, problem = m.body, None
        if body.attached:
            body, problem = filled(body)
        link = None if m.link is None else names.id(m.link)
        message = Saved(
            m.role, body.blocks, body.label, body.key, body.tool_result_error, body.extra, body.raw, body.usage,
            body.privacy, above, id, conversation, m.seq, m.created_at, link, m.main, m.revision, body.origin, problem,
        )  # fmt: skip
        messages.append(message)
        above = id
    return messages


class VerifiedRow:
    """The row of a conversation that has passed its integrity proof, and its description, opened once."""

    __slots__ = ("_envelope", "_meta", "row")

    def __init__(self, row: ConversationRow, envelope: Envelope) -> None:
        self.row = row
        self._envelope = envelope
        self._meta: Meta | None = None

    @property
    def meta(self) -> Meta:
        if self._meta is None:
            self._meta = open_meta(self._envelope, self.row)
        return self._meta
