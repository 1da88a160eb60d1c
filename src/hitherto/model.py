"""The values of a conversation: messages and their blocks.

A **message** has a role and a list of blocks. A **block** is a piece of it: text, an image, a tool call, a thought.
Both are frozen. Saving a message returns a new value, `Saved`, with its id, its parent and its place in the tree. The
provider's own JSON is kept beside the blocks, in `raw`, unchanged: the blocks are for reading and for other providers,
`raw` is sent back to the same provider.

Nothing here touches a disk. Every message either comes back equal or is refused by `check`. It may hold text of any
kind (NUL, emoji, right-to-left, a megabyte on one line), bytes, and JSON in `extra`, `raw` and `privacy`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from .attachment import LARGE, Attachment
from .errors import Damaged, InvalidArgument, InvalidID, InvalidMessage

__all__ = ["Block", "BlockType", "Message", "Modality", "Role", "Saved", "Setup", "Usage"]

if TYPE_CHECKING:
    Content = str | bytes | Attachment
else:
    Content = Any  # msgspec decodes no union of str and bytes; msgpack itself tells the two apart

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def to_datetime(microseconds: int) -> datetime:
    """Stored times are microseconds since 1970 UTC; people get aware datetimes."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise Damaged("a stored time cannot be one") from None


def from_datetime(time: datetime, what: str) -> int:
    """The microseconds of an aware datetime."""
    if not isinstance(time, datetime) or time.utcoffset() is None:
        raise InvalidArgument(f"{what} is a datetime with a time zone", hint="datetime.now(UTC)")
    if not _FIRST <= time <= _LAST:  # it could not be given back
        raise InvalidArgument(f"{what} lies outside the years 1 to 9999 in UTC", hint="leave it out, for never")
    return (time - _EPOCH) // timedelta(microseconds=1)


if TYPE_CHECKING:
    RoleName: TypeAlias = "Role | Literal['user', 'assistant', 'tool_result', 'event'] | str"
else:
    RoleName = str  # msgspec decodes no union of two kinds of text


class Role(StrEnum):
    """The speaker of a message. Roles are open strings: only these have a meaning here."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL_RESULT = "tool_result"
    EVENT = "event"  # kept and exported, but not sent to the model


class BlockType(StrEnum):
    """The kind of a block. Kinds are open strings, like roles."""

    CONTENT = "content"
    TOOL_CALL = "tool_call"
    THINKING = "thinking"
    METADATA = "metadata"


_SHOWN = 60  # bytes of binary content that a repr shows


class Modality(StrEnum):
    """The medium of a block's content."""

    TEXT = "text"
    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"


class Block(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, gc=False):
    """A piece of a message.

    >>> Block.text("hello").content
    'hello'
    >>> Block.tool_call("call_1", "read", {"path": "a.py"}).tool_name
    'read'
    """

    type: str
    content: Content
    modality: str = "text"
    mime_type: str = "text/plain"
    id: str | None = None
    extra: dict[str, object] | None = None

    def __repr__(self) -> str:
        """Show what is not a default, and of long binary content its size."""
        fields = [
            f"{name}=<{len(value):,} bytes>"
            if isinstance(value, bytes) and len(value) > _SHOWN
            else f"{name}={value!r}"
            for name, value in self.__rich_repr__()
        ]
        return f"Block({', '.join(fields)})"

    @classmethod
    def text(cls, text: str, **extra: object) -> "Block":
        return cls("content", text, extra=extra or None)

    @classmethod
    def image(cls, data: bytes | Attachment, mime_type: str, **extra: object) -> "Block":
        return cls("content", data, "image", mime_type, None, extra or None)

    @classmethod
    def audio(cls, data: bytes | Attachment, mime_type: str, **extra: object) -> "Block":
        return cls("content", data, "audio", mime_type, None, extra or None)

    @classmethod
    def video(cls, data: bytes | Attachment, mime_type: str, **extra: object) -> "Block":
        return cls("content", data, "video", mime_type, None, extra or None)

    @classmethod
    def thinking(cls, text: str, **extra: object) -> "Block":
        return cls("thinking", text, extra=extra or None)

    @classmethod
    def tool_call(cls, id: str, name: str, arguments: object, **extra: object) -> "Block":
        """A call of a tool by the model. `arguments` has the form that the provider sent: an object, or JSON text."""
        call = {"name": name, "parameters": arguments}
        try:
            content = msgspec.json.encode(call).decode()
        except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can express
            from json import dumps  # noqa: PLC0415  # rare

            content = dumps(call, separators=(",", ":"))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidMessage(f"the arguments of a tool call are not JSON: {error}") from None
        return cls("tool_call", content, "text", "application/json", id, extra or None)

    @property
    def tool_name(self) -> str | None:
        """The name of the tool, if this is a tool call."""
        name = self._call().get("name")
        return name if isinstance(name, str) else None

    @property
    def arguments(self) -> object:
        """The arguments of a tool call, as they were given."""
        return self._call().get("parameters")

    def _call(self) -> dict[str, object]:
        """The call as an object. Empty if this block is no call, or was not made by `tool_call`."""
        if self.type != "tool_call" or isinstance(self.content, Attachment):
            return {}
        try:
            return msgspec.json.decode(self.content, type=dict[str, object])
        except msgspec.MsgspecError:
            return _with_half_pairs(self.content)


def _with_half_pairs(content: str | bytes) -> dict[str, object]:
    """Decode a JSON object with escapes for halves of surrogate pairs. Empty if the text is none."""
    from json import loads  # noqa: PLC0415  # rare

    try:
        found = loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class Usage(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True, gc=False):
    """Tokens, as the provider counted them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class SDKObject(Protocol):
    """An object of a provider's SDK, such as `response.choices[0].message`."""

    def model_dump(
        self, *, mode: str = ..., by_alias: bool | None = ..., exclude_unset: bool = ...
    ) -> Mapping[str, object]: ...


Given: TypeAlias = Mapping[str, object] | SDKObject


class Message(Struct, frozen=True, repr_omit_defaults=True, gc=False):
    """A message: a role and its blocks.

    >>> Message.user("Why is the build failing?").text
    'Why is the build failing?'

    `key` is the caller's own name for the message, for callers that may repeat themselves: the same key in one
    conversation is the same message. `parent` is honoured by `store.save`; a conversation's `append` knows the
    parent by itself.
    """

    role: RoleName
    blocks: Sequence[Block] = ()
    label: str | None = None  # a name that the caller chooses; every message of a sub-agent's trace has its name
    key: str | None = None
    tool_result_error: bool = False
    extra: dict[str, object] | None = None
    raw: object = None
    usage: Usage | None = None
    privacy: dict[str, object] | None = None  # what the caller notes about consent and the like; not sent to the model
    parent: str | None = None

    @classmethod
    def user(
        cls,
        content: "str | Block | Iterable[Block]",
        *,
        label: str | None = None,
        key: str | None = None,
        extra: dict[str, object] | None = None,
        raw: object = None,
    ) -> "Message":
        return cls("user", _blocks(content), label, key, extra=extra, raw=raw)

    @classmethod
    def assistant(
        cls,
        content: "str | Block | Iterable[Block] | None",
        *,
        label: str | None = None,
        key: str | None = None,
        extra: dict[str, object] | None = None,
        raw: object = None,
        usage: Usage | None = None,
    ) -> "Message":
        """An answer of the model. None stands for no content: OpenAI sends null beside tool calls."""
        blocks = () if content is None else _blocks(content)
        return cls("assistant", blocks, label, key, extra=extra, raw=raw, usage=usage)

    @classmethod
    def tool_result(
        cls,
        call_id: str,
        content: "str | Block | Iterable[Block]",
        *,
        error: bool = False,
        label: str | None = None,
        key: str | None = None,
    ) -> "Message":
        """The result of a tool. Each block has the id of its call."""
        blocks = tuple(msgspec.structs.replace(block, id=call_id) for block in _blocks(content))
        return cls("tool_result", blocks, label, key, error)

    @classmethod
    def from_openai(cls, message: Given) -> "Message":
        """A message of chat completions: an entry of `messages`, `response.choices[0].message`, or a response with one
        choice. The given JSON is sent to the provider again, unchanged.

        >>> Message.from_openai({"role": "user", "content": "Why?"}).text
        'Why?'
        """
        return _read_given("openai-chat", message)

    @classmethod
    def from_openai_responses(cls, item: Given) -> "Message":
        """An item of the Responses API: an entry of `input`, or one of `response.output`."""
        return _read_given("openai-responses", item)

    @classmethod
    def from_anthropic(cls, message: Given) -> "Message":
        """A message of Anthropic's API: an entry of `messages`, or a response."""
        return _read_given("anthropic", message)

    @classmethod
    def from_gemini(cls, content: Given) -> "Message":
        """A content of Gemini's API: an entry of `contents`, or a response with one candidate."""
        return _read_given("gemini", content)

    @property
    def text(self) -> str:
        """The text blocks, joined. Thoughts and tool calls are not text."""
        return "".join([b.content for b in self.blocks if b.type == "content" and isinstance(b.content, str)])


class Saved(Message, frozen=True, gc=False):
    """A message with its place in the tree, as `append` and every read return it."""

    id: str = ""
    conversation: str = ""
    seq: int = -1
    created_us: int = 0
    link: str | None = None  # on a root: the message it continues (compaction) or serves (sub-agent)
    main: bool = True  # on the main flow, as opposed to a sub-agent's trace or a side branch
    revision: int = 0  # how often the stored message was changed
    origin: str | None = None  # conversation/message it was copied from, by detach
    # The problem with the content, if there is one. A missing attachment leaves a hole; the rest is there. Listings
    # also return messages whose content cannot be read at all, with the reason here; every other read raises then.
    problem: str | None = None

    @property
    def created_at(self) -> datetime:
        return to_datetime(self.created_us)


def without_place(message: Message, extra: dict[str, object] | None) -> Message:
    """Return a message as a value without a place in a tree, with another `extra`."""
    fields = {name: getattr(message, name) for name in Message.__struct_fields__}
    return Message(**{**fields, "extra": extra, "parent": None})


class Setup(Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """The setup of a conversation: provider, model, system prompt and tools (name, description, parameters)."""

    provider: str = ""
    model: str = ""
    system_prompt: str = ""
    tools: tuple[dict[str, object], ...] = ()
    raw: object = None  # the provider's own form of the system prompt, where it is more than a text


def _given() -> Any:
    """The module that reads the messages of SDKs. It stands above this one, so it is loaded when it is used."""
    return import_module(".dialects._sdk_entries", __package__)


def _read_given(dialect: str, given: object) -> Message:
    message: Message = _given().read_given(dialect, given)
    return message


def _blocks(content: "str | Block | Iterable[Block]") -> tuple[Block, ...]:
    if type(content) is str:
        return (Block("content", content),)
    if isinstance(content, Block):
        return (content,)
    if isinstance(content, str):
        return (Block("content", str(content)),)
    if isinstance(content, (bytes, bytearray, Mapping)) or not isinstance(content, Iterable):
        hint = "text, a Block, or several blocks"
        raise InvalidMessage(f"a {type(content).__name__} where the content of a message is wanted", hint=hint)
    return tuple(content)


def approximate_tokens(size: int) -> int:
    """A rough token count from a number of bytes, for listings; the provider's own count is in `usage`."""
    return math.ceil(size / 4)


DEEPEST = 100  # levels of JSON in a message: every reader can walk through them by recursion
_FINE = frozenset({str, float, bool, bytes, type(None), Attachment})  # whatever their value is
_LEAVES = _FINE | {int}


def check_json(value: object, where: str, depth: int = 0) -> None:
    """Refuse a value that would not come back equal: tuples, sets, dates, objects, keys that are not text, integers
    over 64 bits, and nesting that is too deep."""
    kind = type(value)
    if kind is int and not -(2**63) <= value < 2**64:  # type: ignore[operator]  # kind is int
        raise InvalidMessage(f"{where} holds an integer of more than 64 bits", hint="pass it as text")
    if kind not in (list, dict):
        if kind not in _LEAVES:
            what = f"{where} holds a {kind.__name__}, which would not come back as it is"
            raise InvalidMessage(what, hint="pass plain JSON: dict, list, str, int, float, bool, None")
        return
    if depth == DEEPEST:
        raise InvalidMessage(f"{where} is nested more than {DEEPEST} deep", hint="flatten it, or pass it as JSON text")
    if kind is dict:
        for name in value:  # type: ignore[attr-defined]  # kind is dict
            if type(name) is not str:
                raise InvalidMessage(f"{where} has a key that is a {type(name).__name__}", hint="keys are strings")
    items: Iterable[object] = value if kind is list else value.values()  # type: ignore[assignment,attr-defined]  # as above
    for item in items:
        if type(item) not in _FINE:  # here too: most items are fine, and a call takes longer than this
            check_json(item, where, depth + 1)


def is_nested_deeper(value: object, most: int) -> bool:
    """Return True if foreign JSON has more than so many levels. Callers check this before they walk through the value
    by recursion, so this function uses none."""
    level, depth = _items_of([value]), 0
    while level:
        depth += 1
        if depth > most:
            return True
        level = [item for outer in level for item in _items_of(outer)]
    return False


def _items_of(value: object) -> list[object]:
    """The lists and objects inside a list or an object."""
    inside: Iterable[object] = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [item for item in inside if isinstance(item, (dict, list))]


def require_message(value: object) -> Message:
    """Return the value if it is a message. The error for another one says what to write in its place."""
    if isinstance(value, Message):
        return value
    raise InvalidMessage(f"a {type(value).__name__} where a Message is wanted", hint=_how_to_write(value))


def _how_to_write(value: object) -> str:
    """How to write what was probably meant. The value itself is content, and stands in no error."""
    if isinstance(value, Block):
        return "Message.user([block])"
    if isinstance(value, (list, tuple)):
        return "extend([…]) takes several messages, append(…) takes one"
    method = None if isinstance(value, str) else _given().method_for(value)
    if method is not None:
        return f"Message.{method}({'{…}' if isinstance(value, Mapping) else '…'})"
    return 'Message.user("…") or Message.assistant("…")'


def as_messages(values: object) -> list[object]:
    """Turn an iterable of messages into a list. The messages in it are not checked yet."""
    if isinstance(values, (str, Mapping, Block)):
        raise InvalidMessage(
            f"a {type(values).__name__} where a list of messages is wanted", hint=f"[{_how_to_write(values)}]"
        )
    return as_list(values, "messages")


def check(message: Message) -> None:
    """Refuse a message that would not come back equal."""
    m = require_message(message)
    if type(m.role) is not str or m.role not in _ROLES:
        check_name(m.role, "the role")
    if type(m.blocks) is not tuple and type(m.blocks) is not list:
        raise InvalidMessage(f"blocks is a {type(m.blocks).__name__}, not a list of blocks")
    for b in m.blocks:
        is_plain = type(b) is Block and b.extra is None and b.id is None and b.mime_type == "text/plain"
        if not is_plain or type(b.content) is not str or type(b.type) is not str or b.modality != "text":
            _check_block(b)
    if (
        m.label is not None
        or m.key is not None
        or m.extra is not None
        or m.raw is not None
        or m.usage is not None
        or m.privacy is not None
        or m.tool_result_error is not False
    ):
        _check_rest(m)


def _check_rest(m: Message) -> None:
    """Check the fields that most messages do not use."""
    if type(m.tool_result_error) is not bool:
        raise InvalidMessage("tool_result_error is true or false")
    if not isinstance(m.label or "", str) or not isinstance(m.key or "", str):
        raise InvalidMessage("label and key are text")
    if m.usage is not None and (
        type(m.usage) is not Usage or any(type(n) is not int for n in msgspec.structs.astuple(m.usage))
    ):
        raise InvalidMessage("usage is a Usage, and counts tokens in whole numbers")
    for name, value in (("extra", m.extra), ("privacy", m.privacy)):
        if value is not None and type(value) is not dict:
            raise InvalidMessage(f"{name} is a {type(value).__name__}, not a dict")
        check_json(value, name)
    check_json(m.raw, "raw")


_ROLES = frozenset(Role)


def check_name(value: str, what: str) -> None:
    """Refuse a name that is no short text. Databases store it as text, and some of them do not allow NUL in text."""
    if not isinstance(value, str) or not 0 < len(value) <= 64 or not encodable(value):
        raise InvalidMessage(f"{what} must be a text of 1 to 64 characters")
    if any(c < " " or c == "\x7f" for c in value):
        raise InvalidMessage(f"{what} holds a control character")


def encodable(text: str) -> bool:
    """Is the text free of halves of surrogate pairs?"""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True


def _check_block(b: Block) -> None:
    if type(b) is not Block:
        raise InvalidMessage(f"a {type(b).__name__} among the blocks", hint="wrap text as Block.text(…)")
    if type(b.content) not in (str, bytes, Attachment):
        hint = "text, bytes, or Attachment.from_file(path)"
        raise InvalidMessage(f"a block's content is a {type(b.content).__name__}", hint=hint)
    if not (isinstance(b.type, str) and isinstance(b.modality, str) and isinstance(b.mime_type, str)):
        raise InvalidMessage("a block's type, modality and mime_type are text")
    if b.id is not None and not isinstance(b.id, str):
        raise InvalidMessage("a block's id is text")
    if b.extra is not None:
        if type(b.extra) is not dict:
            raise InvalidMessage("a block's extra is a dict")
        check_json(b.extra, "a block's extra")


def text_size(message: Message, encoded: int) -> int:
    """The bytes of text and JSON in an encoded message: everything but small binary blocks. Large ones are not part of
    the encoded message."""
    return encoded - sum(len(b.content) for b in message.blocks if type(b.content) is bytes and len(b.content) < LARGE)


def as_list(values: object, what: str) -> list[object]:
    """Turn an iterable of values into a list. A single value, or a value that is no iterable, is refused."""
    if isinstance(values, (str, bytes, Message)) or not isinstance(values, Iterable):
        raise InvalidArgument(
            f"a list of {what} is wanted, not a {type(values).__name__}", hint="pass a list, even of one"
        )
    return list(values)


def id_of(what: object) -> str:
    """The id of a thing, which is given as a string, as a UUID, or as the message or conversation that has it."""
    if isinstance(what, str):
        return what
    if type(what).__name__ == "UUID":
        return str(what)
    id = getattr(what, "id", None)
    if not isinstance(id, str):
        raise InvalidID(what)
    return id


def trace_of(label: str | None) -> str | None:
    """The trace of a sub-agent that a message with this label belongs to, by its label; None for the main flow."""
    return label if isinstance(label, str) and label.startswith("subagent:") else None


def check_strings(values: Mapping[str, str] | None, where: str) -> dict[str, str]:
    """A dict of strings, copied, or `InvalidMessage`."""
    if values is not None and not isinstance(values, Mapping):
        raise InvalidMessage(f"{where} is a {type(values).__name__}, not a dict of strings")
    found = dict(values or {})
    if not all(type(k) is str and type(v) is str for k, v in found.items()):
        raise InvalidMessage(f"{where} takes a dict of strings")
    return found
