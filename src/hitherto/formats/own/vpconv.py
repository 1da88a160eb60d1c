"""`.vpconv`: a conversation of Agent Voice, sealed with AES-256-GCM. It is read, not written.

A file is JSON in two layers. The outer one is in clear: the conversation's id, a version, and the sealed text with its
nonce, its tag and the SHA-256 of what was sealed. The inner one is the program's record: the messages ("frames") and
what it knows about them, their participants, a summary, counts, how long to keep it.

Frames are a list, not a tree: each is the child of the one before it. The program redacts the text of a frame before it
stores it; its report of that becomes the message's `privacy`. Attachments and sound are in other files and only
referred to, so the references are kept in `extra["vpconv"]`. All other parts of the record go into the conversation's
metadata, as JSON.

The layout has no header, so a wrong key looks like a changed file: both raise one error, which says so. The checksum is
compared only after the tag is verified: it detects accidents, not attacks.
"""

import hashlib
import json
import os
import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ...errors import CannotOpen, Damaged, InvalidArgument, InvalidMessage, KeyUnavailable, NewerFormat
from ...keys import Key
from ...model import Block, Message, check_json, check_name, from_datetime
from ...snapshots import Unreadable
from ...snapshots._json_text import read as read_json
from .._atomic_file import of_files
from .._types import PortableConversation, PortableMessage, Source, not_written

name = "vpconv"
suffixes = (".vpconv",)
writes = False

_NEWEST = 1  # the version that we know, of both layers
_LARGEST = 64 * 1024 * 1024  # bytes; the program itself refuses more than 10 MB of plain text
_NONCE, _TAG = 12, 16

_BEGINNING = re.compile(rb'\s*\{\s*"(?:conversationId|schemaVersion|cipherText|iv|authTag|createdAt|checksum)"\s*:')
_NO_FILE = "give a .vpconv file of Agent Voice"
_BROKEN = "take the file from a backup"


class _Envelope(Struct, frozen=True):
    """The outer layer."""

    conversation: str
    sealed: bytes  # nonce, ciphertext, tag
    checksum: str
    sealed_at: str


def recognises(source: Source) -> str | None:
    """Recognise JSON that begins with a name of the outer layer and holds the sealed text."""
    if source.is_directory or not _BEGINNING.match(source.head) or b'"cipherText"' not in source.head:
        return None
    id = re.search(rb'"conversationId"\s*:\s*"([^"\\]{1,200})"', source.head)
    named = id is not None and source.path.name.startswith(hashlib.sha256(id[1]).hexdigest()[:32])
    return "a sealed conversation of Agent Voice" + (", under the name of its id" if named else "")


def write(talks: Iterable[PortableConversation], path: Path, key: Key | None) -> int:  # noqa: ARG001  # the shape of a format
    raise not_written(name)


def read(path: Path, key: Key | None) -> Iterator[PortableConversation | Unreadable]:
    """Yield the one conversation in a file. The key is that of the workspace, 32 bytes."""
    envelope = _envelope(_content(path), path)
    if key is None:
        hint = "give the key of the workspace that it was kept in: load(path, store, key=…)"
        raise KeyUnavailable(f"{_escape_name(path)} is sealed, and no key was given", hint=hint)
    yield from _conversation(_record(envelope, key, path), envelope, path)


# -- the outer layer


def _content(path: Path) -> str:
    try:
        if not path.is_file():
            what = "is not a file" if path.exists() else "is not there"
            raise CannotOpen(f"{_escape_name(path)} {what}", hint=_NO_FILE)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read(_LARGEST + 1) if size <= _LARGEST else b""
    except OSError as error:
        raise of_files(error, path) from None
    except ValueError:
        raise CannotOpen("not a path that can be opened", hint=_NO_FILE) from None  # a NUL in it
    if max(size, len(data)) > _LARGEST:
        raise InvalidArgument(
            f"{_escape_name(path)} is larger than {_LARGEST:,} bytes: no .vpconv file is", hint=_NO_FILE
        )
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{_escape_name(path)} is not JSON", hint=_NO_FILE) from None


def _envelope(text: str, path: Path) -> _Envelope:
    """Parse the outer layer. Raises `InvalidArgument` if the text is something else."""
    try:
        found = read_json(text)
    except InvalidMessage as error:
        raise InvalidArgument(f"{_escape_name(path)} is not a .vpconv file: {error}", hint=_NO_FILE) from None
    if not isinstance(found, dict) or not {"conversationId", "schemaVersion", "cipherText"} <= found.keys():
        raise InvalidArgument(f"{_escape_name(path)} is not a .vpconv file", hint=_NO_FILE)
    _check_version(found["schemaVersion"], path)
    id, checksum = found["conversationId"], found.get("checksum")
    parts = [_bytes(found.get(field)) for field in ("iv", "cipherText", "authTag")]
    if not isinstance(id, str) or not id or not isinstance(checksum, str):
        raise Damaged(f"{_escape_name(path)} lacks its id or its checksum", hint=_BROKEN)
    if None in parts or len(parts[0] or b"") != _NONCE or len(parts[2] or b"") != _TAG:
        raise Damaged(f"{_escape_name(path)} has a nonce, a text or a tag that cannot be one", hint=_BROKEN)
    at = found.get("createdAt")
    return _Envelope(id, b"".join(part or b"" for part in parts), checksum, at if isinstance(at, str) else "")


def _check_version(version: object, path: Path) -> None:
    if type(version) is not int or version < 1:
        raise Damaged(f"{_escape_name(path)} has no version that could be one", hint=_BROKEN)
    if version > _NEWEST:
        raise NewerFormat(f"{_escape_name(path)} has version {version:,} of its format; {_NEWEST} is known")


def _bytes(text: object) -> bytes | None:
    if not isinstance(text, str):
        return None
    try:
        return b64decode(text, validate=True)
    except (NotBase64, ValueError):  # ValueError: letters that are not ASCII
        return None


# -- the inner layer


def _record(envelope: _Envelope, key: Key, path: Path) -> dict[str, object]:
    """Decrypt the program's record and verify it."""
    from ..._sealing.primitives import Cipher, Forged  # noqa: PLC0415  # cryptography is loaded when something is sealed

    try:
        plain = Cipher(key._reveal()).open(envelope.sealed, b"")
    except Forged:
        hint = "give the key that it was sealed with; if that is this one, take the file from a backup"
        raise KeyUnavailable(
            f"{_escape_name(path)}: the key is another one, or the file is damaged", hint=hint
        ) from None
    if hashlib.sha256(plain).hexdigest() != envelope.checksum.lower():
        raise Damaged(f"{_escape_name(path)} holds something else than its checksum says", hint=_BROKEN)
    try:
        record = read_json(plain.decode())
    except (UnicodeDecodeError, InvalidMessage):
        raise Damaged(f"{_escape_name(path)} opens, but what it holds is not JSON", hint=_BROKEN) from None
    if not isinstance(record, dict) or not isinstance(record.get("messages", []), list):
        raise Damaged(f"{_escape_name(path)} opens, but what it holds is no conversation", hint=_BROKEN)
    if record.get("conversationId") != envelope.conversation:
        raise Damaged(f"{_escape_name(path)} holds another conversation than it says", hint=_BROKEN)
    _check_version(record.get("version", _NEWEST), path)
    return record


def _conversation(
    record: dict[str, object], envelope: _Envelope, path: Path
) -> Iterator[PortableConversation | Unreadable]:
    """Yield an `Unreadable` for each part that cannot be read, and then the conversation."""
    said: list[PortableMessage] = []
    taken: set[str] = set()
    for number, frame in enumerate(_in_order(record.get("messages", [])), 1):
        try:
            said.append(_frame_message(frame, said[-1] if said else None, taken))
        except InvalidMessage as error:
            yield Unreadable(f"frame {number:,} of {_escape_name(path)}", str(error))
    title = record.get("title")
    retention = record.get("retention")
    yield PortableConversation(
        id=envelope.conversation,
        messages=tuple(said),
        title=title if isinstance(title, str) else "",
        metadata=_metadata(record, envelope),
        held=isinstance(retention, dict) and retention.get("manualHold") is True,
        created_us=_time(record.get("createdAt")) or 0,
    )


def _metadata(record: dict[str, object], envelope: _Envelope) -> dict[str, str]:
    """Return the parts of the record without a field of ours, as JSON."""
    placed = {"conversationId", "messages"}
    if isinstance(record.get("title"), str):
        placed.add("title")
    if _time(record.get("createdAt")) is not None:
        placed.add("createdAt")
    rest = {f"vpconv.{field}": _json(value) for field, value in record.items() if field not in placed}
    return {**rest, "vpconv.sealedAt": _json(envelope.sealed_at)} if envelope.sealed_at else rest


def _in_order(frames: object) -> list[object]:
    """Sort the frames by their sequence numbers, if all have one."""
    listed = list(frames) if isinstance(frames, list) else []
    numbers = [frame.get("sequence") if isinstance(frame, dict) else None for frame in listed]
    if not all(type(number) is int for number in numbers):
        return listed
    return [listed[place] for place in sorted(range(len(listed)), key=lambda place: (numbers[place], place))]


def _frame_message(frame: object, before: PortableMessage | None, taken: set[str]) -> PortableMessage:
    """Convert a frame to a message below the one before. Raises `InvalidMessage` if it is not a frame; then the next
    frame takes its position."""
    if not isinstance(frame, dict) or not isinstance(frame.get("role"), str):
        raise InvalidMessage("it is no message")
    if not isinstance(frame.get("content"), str):
        raise InvalidMessage("its content is not text")
    role = "event" if frame["role"] == "system" else frame["role"]
    check_name(role, "the role")
    made = _time(frame.get("createdAt"))
    privacy = frame.get("privacy")
    known = isinstance(privacy, dict) and _fits(privacy)
    id = _id(frame.get("frameId"), taken)
    left = {field: value for field, value in frame.items() if field not in ("role", "content", "frameId")}
    for field, placed in (("createdAt", made is not None), ("privacy", known)):
        if placed:
            del left[field]
    if role != frame["role"]:
        left["role"] = frame["role"]
    if id != frame.get("frameId") and "frameId" in frame:
        left["frameId"] = frame["frameId"]
    message = Message(role, (Block.text(frame["content"]),), extra={name: _keepable_fields(left)} if left else None)
    if known:
        message = replace(message, privacy=privacy)
    above = before.created_us if before else 0
    return PortableMessage(
        id=id, message=message, parent=before.id if before else None, created_us=above if made is None else made
    )


def _id(given: object, taken: set[str]) -> str:
    """Return the frame's own id, or one made from its position if it has none or a duplicate."""
    id = given if isinstance(given, str) and given and given not in taken else f"frame-{len(taken) + 1}"
    while id in taken:
        id += "~"
    taken.add(id)
    return id


def _fits(value: object) -> bool:
    """Return True if a value can be stored as it is. Our JSON is bounded: integers of 64 bits, a hundred levels."""
    try:
        check_json(value, "a frame", 2)  # it lies two levels deep in the extra
    except InvalidMessage:
        return False
    return True


def _keepable_fields(fields: dict[str, object]) -> dict[str, object]:
    return {field: value if _fits(value) else _json(value) for field, value in fields.items()}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _time(value: object) -> int | None:
    """Parse a time in ISO 8601, by default UTC. Returns microseconds since 1970, or None."""
    if not isinstance(value, str) or not 10 <= len(value) <= 40:
        return None
    try:
        when = datetime.fromisoformat(value)
        return from_datetime(when if when.tzinfo else when.replace(tzinfo=UTC), "createdAt")
    except (ValueError, OverflowError):
        return None


def _escape_name(path: Path) -> str:
    return ascii(path.name)[1:-1][:100]
