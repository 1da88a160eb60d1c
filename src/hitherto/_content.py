"""What lies inside the opaque bytes: the content of a message, of a conversation's description, of the workspace's.

Content is msgpack: maps whose fields are named, with defaults left out. Fields are only ever added, so older content
reads with newer code.
"""

from msgspec import DecodeError as _DecodeError
from msgspec import Struct, msgpack
from msgspec import ValidationError as _ValidationError

from .backend import ConversationRow, MessageRow
from .errors import Damaged, InvalidMessage
from .ids import Names
from .model import Block, Message, Saved, Setup, Usage
from .vault import Envelope


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


class Meta(Struct, frozen=True, omit_defaults=True):
    """The description of a conversation."""

    title: str = ""
    key: str | None = None
    project: str | None = None
    metadata: dict[str, str] = {}
    setups: int = 0  # how many setups there are
    setup: int = 0  # the one that the main flow was configured with last; 0: none
    setup_seq: int = 0  # before the message with this sequence


class WorkspaceMeta(Struct, frozen=True, omit_defaults=True):
    """The description of a workspace."""

    seed: bytes  # of the message ids


_encode = msgpack.Encoder().encode
_body = msgpack.Decoder(Body).decode
_meta = msgpack.Decoder(Meta).decode
_workspace = msgpack.Decoder(WorkspaceMeta).decode
_setup = msgpack.Decoder(Setup).decode

_UNREADABLE = (_DecodeError, _ValidationError)


def encode(content: "Body | Meta | WorkspaceMeta | Setup") -> bytes:
    """The bytes of some content, or `InvalidMessage` for what cannot be kept."""
    try:
        return _encode(content)
    except UnicodeEncodeError:
        raise InvalidMessage(
            "the text holds half of a surrogate pair, which is not a character",
            hint="text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace') joins split pairs",
        ) from None
    except (TypeError, OverflowError, ValueError, RecursionError) as error:
        raise InvalidMessage(
            f"this cannot be kept as it is: {error}", hint="pass plain JSON: dict, list, str, int, float, bool, None"
        ) from None


def encode_message(m: Message, setup: int, origin: str | None = None) -> bytes:
    return encode(
        Body(tuple(m.blocks), m.label, m.key, m.tool_result_error, m.extra, m.raw, m.usage, m.privacy, setup, origin)
    )


def open_body(envelope: Envelope, row: MessageRow) -> Body:
    """The content of a stored message, or `Damaged`."""
    try:
        return _body(envelope.open_messages((row,))[0])
    except _UNREADABLE as error:
        raise Damaged(f"the content of a message cannot be read: {error}") from None


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


def open_setup(envelope: Envelope, conversation: bytes, key: bytes, body: bytes) -> Setup:
    try:
        return _setup(envelope.open(item_place(conversation, key), body))
    except _UNREADABLE as error:
        raise Damaged(f"a setup cannot be read: {error}") from None


def meta_place(conversation: bytes) -> tuple[object, ...]:
    return ("description", conversation)


def item_place(conversation: bytes, key: bytes) -> tuple[object, ...]:
    return ("item", conversation, key)


def saved(row: MessageRow, body: Body, names: Names, conversation: str) -> Saved:
    """A stored message as people see it."""
    above = None if row.parent is None else names.id(row.parent)
    link = None if row.link is None else names.id(row.link)
    return Saved(
        row.role, body.blocks, body.label, body.key, body.tool_result_error, body.extra, body.raw, body.usage,
        body.privacy, above, names.id(row.number),
        conversation, row.seq, row.created_at, link, row.main == 1, row.revision,
        body.origin,
    )  # fmt: skip


def saved_stretch(rows: list[MessageRow], envelope: Envelope, names: Names, conversation: str) -> list[Saved]:
    """The same as `saved` for rows of which each is the parent of the next: the loop that resume waits for."""
    first, last = rows[0].number, rows[-1].number
    above = None if rows[0].parent is None else names.id(rows[0].parent)
    in_one_run = last - first == len(rows) - 1
    ids = names.ids(first, len(rows)) if in_one_run else [names.id(row.number) for row in rows]
    messages = []
    for row, id, content in zip(rows, ids, envelope.open_messages(rows), strict=True):
        try:
            body = _body(content)
        except _UNREADABLE as error:
            raise Damaged(f"the content of message {id} cannot be read: {error}") from None
        link = None if row.link is None else names.id(row.link)
        message = Saved(
            row.role, body.blocks, body.label, body.key, body.tool_result_error, body.extra, body.raw, body.usage,
            body.privacy, above, id, conversation, row.seq, row.created_at, link, row.main == 1, row.revision,
            body.origin,
        )  # fmt: skip
        messages.append(message)
        above = id
    return messages
