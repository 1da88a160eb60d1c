"""The value: what a conversation was at one moment, and its form in a file.

Version 1 of the form is shared with other programs, so that its names, their order and even its escapes are fixed:
`id`, `provider`, `model`, `system_prompt` (left out when empty), `messages`, `tools` and `metadata` (left out when
empty), `created_at`, `version`. There is no newline at the end. Other fields are not kept.

The messages are held as the text they came as, and read when they are asked for. So a snapshot cannot change under
whoever holds it, and what was read from a file is written to the same bytes.

Reading is strict: the same name twice, a number no float can hold, half a character, and nesting without end are
refused, and so is a version that is not known. Nothing is guessed.
"""

import hashlib
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from msgspec import Struct

from ..errors import InvalidArgument, InvalidMessage, InvalidSnapshotID, NewerFormat
from ..model import check_strings, encodable
from ._json_text import again, compact, indent, object_of, parts, read, written

VERSION = 1

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)", re.ASCII)


def validate_snapshot_id(id: str) -> None:
    """Raise `InvalidSnapshotID` unless the id is a UUID in small letters: ids become names of files."""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        raise InvalidSnapshotID(id)


class _Tool(Struct, frozen=True):
    name: str
    description: str
    parameters: str | None  # compact JSON


class Described(Struct, frozen=True, kw_only=True):
    """The fields that a snapshot and its summary share."""

    created_at: str  # as it was written, up to nanoseconds
    metadata_items: tuple[tuple[str, str], ...] = ()

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata that the creator has set; a copy each time."""
        return dict(self.metadata_items)

    @property
    def created(self) -> datetime:
        """`created_at` as a time in UTC, cut to microseconds."""
        return _datetime(self.created_at)


class Snapshot(Described, frozen=True, kw_only=True):
    """A conversation at one moment. Made by `new`, by `from_json`, and by a client's `save`.

    >>> snapshot = Snapshot.new("claude", "claude-sonnet-4-5", "Be brief.", [{"role": "user", "content": "Hello"}], [])
    >>> Snapshot.from_json(snapshot.to_json()) == snapshot
    True
    """

    id: str
    provider: str
    model: str  # for reference; a client keeps its own
    system_prompt: str
    messages_json: str  # compact, as the provider wrote it; "null" if there is no list at all
    tool_records: tuple[_Tool, ...] = ()
    version: int = VERSION

    @classmethod
    def new(
        cls,
        provider: str,
        model: str,
        system_prompt: str,
        messages: list[dict[str, object]],
        tools: Iterable[Mapping[str, object]] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> "Snapshot":
        """A snapshot with a fresh id, taken now. Of each tool, name, description and parameters are kept; what else
        is there, such as a handler, is not."""
        if type(messages) is not list:
            raise InvalidMessage(f"messages is a {type(messages).__name__}, not a list")
        _check_entries(messages)
        return cls(
            id=str(uuid.uuid4()),
            provider=_require_text(provider, "provider"),
            model=_text(model, "model"),
            system_prompt=_text(system_prompt, "system_prompt"),
            messages_json=written(messages, "messages"),
            created_at=_now(),
            metadata_items=_metadata(metadata),
            tool_records=tuple(_tool(tool) for tool in tools),
        )

    @property
    def messages(self) -> list[dict[str, object]]:
        """The provider's own messages, oldest first; a copy each time."""
        found = again(self.messages_json)
        return _check_entries(found) if found is not None else []

    @property
    def tools(self) -> list[dict[str, object]]:
        """Name and description of each tool, and `parameters`, its JSON schema, where it had one; a copy each time."""
        return [
            {"name": t.name, "description": t.description}
            | ({} if t.parameters is None else {"parameters": read(t.parameters)})
            for t in self.tool_records
        ]

    @property
    def revision(self) -> str:
        """32 hexadecimal digits that change with anything in it: what a store compares when a save expects something.
        They are of the text of the file without its indentation."""
        return hashlib.sha256(self._compact()).hexdigest()[:32]

    def __repr__(self) -> str:
        """Without what was said: it ends up in logs."""
        return f"Snapshot(id={self.id!r}, provider={self.provider!r}, model={self.model!r})"

    # -- the form in a file

    def to_json(self) -> bytes:
        """The bytes of a file in version 1 of the form."""
        return indent(object_of(self._fields())).encode()

    def _compact(self) -> bytes:
        """The same without the space between tokens: what nobody reads but `from_json`."""
        return object_of(self._fields()).encode()

    def _fields(self) -> list[tuple[str, str]]:
        found = [(name, written(getattr(self, name), name)) for name in ("id", "provider", "model")]
        if self.system_prompt:
            found.append(("system_prompt", written(self.system_prompt, "system_prompt")))
        found.append(("messages", self.messages_json))
        if self.tool_records:
            found.append(("tools", "[" + ",".join(_tool_json(t) for t in self.tool_records) + "]"))
        if self.metadata_items:
            found.append(("metadata", written(dict(self.metadata_items), "metadata")))
        return [*found, ("created_at", written(self.created_at, "created_at")), ("version", str(self.version))]

    @classmethod
    def from_json(cls, data: bytes | str) -> "Snapshot":
        """Read a snapshot. `InvalidArgument` says what is wrong with what is none, `NewerFormat` that this hitherto
        is too old for it."""
        text = _decode(data)
        value = read(text)
        if not isinstance(value, dict):
            raise InvalidArgument(f"{_kind(value)} where a snapshot is wanted")
        texts = dict(parts(text))
        if (version := _known_version(value)) < VERSION:
            texts = _migrate(texts, version)
            value = {name: read(own) for name, own in texts.items()}
        if value.get("messages") is not None:
            _check_entries(value["messages"])
        return cls(
            id=_checked_id(value.get("id", "")),
            provider=_require_text(value.get("provider"), "provider"),
            model=_text(value.get("model"), "model"),
            system_prompt=_text(value.get("system_prompt"), "system_prompt"),
            messages_json=compact(texts.get("messages", "null")),
            created_at=_checked_time(value.get("created_at")),
            metadata_items=_metadata(value.get("metadata")),
            tool_records=_tools(value.get("tools"), texts.get("tools", "")),
        )


# -- reading a file, piece by piece


def _decode(data: bytes | str) -> str:
    if isinstance(data, str) and encodable(data):
        return data
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidArgument("a snapshot is read from bytes, or from text that can be written as such")
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        raise InvalidArgument("not a snapshot: it is not UTF-8", hint="it may be sealed, or damaged") from None


def _known_version(value: dict[str, object]) -> int:
    """The version that a snapshot is written in. The first ones had no number, or that of a field nobody had set."""
    version = value.get("version", 0)
    if type(version) is not int or version < 0:
        found = str(version)[:20] if type(version) is int else _kind(version)
        raise InvalidArgument(f"not a snapshot: its version is {found}", hint="a version is a number from 0 on")
    if version > VERSION:
        shown = str(version) if version < 10**9 else "far newer"
        raise NewerFormat(f"the snapshot's version is {shown}, the newest known here is {VERSION}")
    return version


def _migrate(texts: dict[str, str], version: int) -> dict[str, str]:
    """The fields as the newest version has them, each still as the text that it was."""
    for step in range(version, VERSION):
        texts = _MIGRATIONS[step](texts)
    return {**texts, "version": str(VERSION)}


def _from_0(texts: dict[str, str]) -> dict[str, str]:
    """Version 1 only gave the form its number."""
    return texts


# From each version to the next. A snapshot goes through them one after the other, so that each is written once.
_MIGRATIONS: dict[int, Callable[[dict[str, str]], dict[str, str]]] = {0: _from_0}


def _check_entries(value: object) -> list[dict[str, object]]:
    if not isinstance(value, list):
        raise InvalidMessage(f"messages is {_kind(value)}, not a list")
    for number, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise InvalidMessage(f"messages[{number}] is {_kind(entry)}, not an object")
    return value


def _checked_id(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidSnapshotID(value)
    validate_snapshot_id(value)
    return value


def _text(value: object, what: str) -> str:
    """A text; null and nothing are an empty one."""
    if value is None:
        return ""
    if not isinstance(value, str) or not encodable(value):
        raise InvalidArgument(f"the {what} of a snapshot is {_kind(value)}, not text")
    return str(value)


def _require_text(value: object, what: str) -> str:
    if not (text := _text(value, what)):
        raise InvalidArgument(f"the snapshot has no {what}")
    return text


def _metadata(value: object) -> tuple[tuple[str, str], ...]:
    if value is not None and not isinstance(value, Mapping):
        raise InvalidMessage(f"metadata is {_kind(value)}, not an object")
    found = check_strings(value, "metadata")
    written(found, "metadata")
    return tuple(sorted(found.items()))


def _tools(value: object, text: str) -> tuple[_Tool, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidMessage(f"tools is {_kind(value)}, not a list")
    return tuple(
        _tool(tool, dict(parts(own)) if own.startswith("{") else None)
        for tool, (_, own) in zip(value, parts(text), strict=True)
    )


def _tool(tool: object, texts: Mapping[str, str] | None = None) -> _Tool:
    """`texts` are those of the fields, where the tool was read from a file."""
    if not isinstance(tool, Mapping):
        raise InvalidMessage(f"a tool is {_kind(tool)}, not an object")
    parameters = tool.get("parameters")
    if parameters is not None and not isinstance(parameters, (dict, bool)):
        raise InvalidMessage(f"the parameters of a tool are {_kind(parameters)}, not a JSON schema")
    schema = compact(texts["parameters"]) if texts and "parameters" in texts else written(parameters, "parameters")
    name, description = (
        _require_text(tool.get("name"), "name for a tool"),
        _text(tool.get("description"), "description"),
    )
    return _Tool(name, description, None if parameters is None else schema)


def _tool_json(tool: _Tool) -> str:
    fields = [("name", written(tool.name, "name")), ("description", written(tool.description, "description"))]
    return object_of(fields if tool.parameters is None else [*fields, ("parameters", tool.parameters)])


def _kind(value: object) -> str:
    names = {"NoneType": "null", "bool": "true or false", "str": "text", "dict": "an object", "list": "a list"}
    return names.get(
        type(value).__name__, "a number" if isinstance(value, (int, float)) else f"a {type(value).__name__}"
    )


# -- times


def _now() -> str:
    """As Go writes it: UTC, as many digits of the nanoseconds as say something."""
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    fraction = f".{nanoseconds:09}".rstrip("0").rstrip(".")
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}{fraction}Z"


def _checked_time(value: object) -> str:
    text = _require_text(value, "created_at")
    try:
        _datetime(text)
    except (ValueError, OverflowError):
        hint = "a time such as 2026-03-31T12:00:00Z"
        raise InvalidArgument("the created_at of a snapshot is not a time", hint=hint) from None
    return text


def _datetime(text: str) -> datetime:
    found = _TIME.fullmatch(text)
    if not found:
        raise ValueError
    at = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00"))
    return at.astimezone(UTC) + timedelta(microseconds=int((found[2] or "").ljust(9, "0")[:6]))
