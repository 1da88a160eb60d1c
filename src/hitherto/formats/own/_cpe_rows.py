"""Converts one message between CPE's rows and our value.

Two rules make the conversion lossless. **Columns without a field of ours** go into `extra["cpe"]`, each under its own
name: names of models, an invalid time, a missing parent, future columns. **Fields without a column of CPE** are written
as a note, under the name `hitherto`, into the JSON that CPE keeps with a message and a block and does not read. A note
holds only values that differ from their defaults, and an empty note is not written.

In the first generation messages have no JSON of their own, so the note of a message lies with its first block.
"""

import logging
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...attachment import Attachment
from ...dialects._missing_attachments import tell_holes
from ...errors import Damaged, InvalidMessage
from ...model import Block, Message, Usage, check_json, check_name, from_datetime, to_datetime
from ...snapshots._json_text import read as read_json

_log = logging.getLogger("hitherto")

_OURS, _THEIRS = "hitherto", "cpe"
_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_NAMES = {"model_ref", "model_display_name"}  # of a model; we keep its provider and its id
_MODALITIES: dict[object, str] = {0: "text", 1: "image", 2: "audio", 3: "video"}
_NUMBERS = {"image": 1, "audio": 2, "video": 3}

Row = dict[str, object]  # the cells in which there is something, by column


class Note(Struct, frozen=True, omit_defaults=True):
    """The fields of a message or of a block that have no column. Messages are named by their ids in the file."""

    more: dict[str, object] | None = None  # of the extra
    id: str | None = None
    label: str | None = None
    key: str | None = None
    raw: object = None
    usage: Usage | None = None
    privacy: dict[str, object] | None = None
    main: bool = True
    link: str | None = None
    within: str | None = None  # the first root of its conversation, if nothing else leads there
    setup: int | None = None
    origin: str | None = None
    format: str | None = None
    about: dict[str, object] = {}  # with the first root: fields of the conversation without a column
    modality: str | None = None  # of a block
    binary: bool | None = None  # is the content of a block base64, other than its modality says?
    message: "Note | None" = None  # with the first block, where messages have no JSON


class RowMessage(NamedTuple):
    """A message read from its rows, without its position in the tree."""

    message: Message
    created_us: int | None = None  # None: no time that can be understood
    model: tuple[str, str] = ("", "")  # provider and model
    note: Note = Note()


# -- reading


def read_message(row: Row, blocks: Sequence[Row]) -> RowMessage:
    """Build the message from its rows. Cells with a field of ours are removed from the row; the rest goes into the
    extra."""
    role, title = text(row.pop("role", None)), text(row.pop("title", None))
    check_name(role, "the role")
    failed = text(row.pop("tool_result_error", None)).lower() not in ("", "0", "0.0", "false")
    parts = [_block(block) for block in blocks]
    fields, note = _fields(row, "message_extra_fields")
    note = next((carried for _, carried in parts if carried is not None), note)
    created = when(row.get("created_at"))
    if created is not None:
        del row["created_at"]
    model = text(row.pop("model_type", None)), text(row.pop("model_id", None))
    if row.get("model_ref") == model[1]:
        del row["model_ref"]
    counts = {column: row.pop(column) for column in _TOKENS if type(row.get(column)) is int}
    usage = note.usage or (msgspec.convert(counts, Usage) if counts else None)
    label, extra = title or None if note.label is None else note.label, _extra(fields, row, note.more)
    said = tuple(block for block, _ in parts)
    message = Message(role, said, label, note.key, failed, extra, note.raw, usage, note.privacy)
    return RowMessage(message, created, model, note)


def _block(row: Row) -> tuple[Block, Note | None]:
    """Build a block, and return the note of its message if the block carries it."""
    fields, note = _fields(row, "extra_fields")
    left = {column: cell for column, cell in row.items() if column == "extra_fields"}
    number, content = row.get("modality_type", 0), row.get("content")
    said = content if isinstance(content, bytes) else text(content)
    if isinstance(said, str) and (number != 0 if note.binary is None else note.binary):
        try:
            said = b64decode(said, validate=True)
        except ValueError:
            left["base64"] = False
    modality = _MODALITIES.get(number, text(number)) if note.modality is None else note.modality
    mime_type, id = text(row.get("mime_type", "text/plain")), text(row["id"]) if "id" in row else None
    extra = _extra(fields, left, note.more)
    return Block(text(row.get("block_type")), said, modality, mime_type, id, extra), note.message


def _fields(row: Row, column: str) -> tuple[dict[str, object], Note]:
    """Return the JSON object in a column, and the note in it. Any other value is left in the row."""
    note = Note()
    if row.get(column) in (None, "", "null", "{}"):
        row.pop(column, None)
        return {}, note
    with suppress(InvalidMessage):  # not JSON, or more than we could keep
        fields = read_json(text(row[column]))
        if isinstance(fields, dict) and _THEIRS not in fields:
            with suppress(msgspec.ValidationError):  # not a note of ours: it stays in the extra
                note = msgspec.convert(fields.get(_OURS, {}), Note)
                fields.pop(_OURS, None)
            check_json(fields, column)
            del row[column]
            return fields, note
    return {}, Note()


def _extra(fields: dict[str, object], left: Row, more: dict[str, object] | None) -> dict[str, object] | None:
    extra = dict(fields)
    if left:
        extra[_THEIRS] = {column: cell if isinstance(cell, int) else text(cell) for column, cell in left.items()}
    for name, part in (more or {}).items():
        before = extra.get(name)
        extra[name] = {**before, **part} if isinstance(before, dict) and isinstance(part, dict) else part
    return extra or (None if more is None else {})


def text(cell: object) -> str:
    """Return a cell as text: SQLite allows any type of value in any column."""
    if isinstance(cell, bytes):
        return b64encode(cell).decode()
    return "" if cell is None else str(cell)


# -- writing


def message_rows(m: Message, note: Note, model: tuple[str, str], columns: Collection[str]) -> tuple[Row, list[Row]]:
    """Return the row of a message and those of its blocks, without their positions. `note` describes the position."""
    m = tell_holes(m)
    own = "message_extra_fields" in columns
    row: Row = {"role": m.role, "tool_result_error": m.tool_result_error, "title": m.label}
    row |= {"model_type": model[0] or None, "model_id": model[1] or None, "model_ref": model[1] or None}
    row |= {} if m.usage is None else {column: getattr(m.usage, column) for column in _TOKENS}
    fields, more = _split(m.extra) if own else ({}, m.extra)
    left = (more or {}).get(_THEIRS)
    if more and own and isinstance(left, dict) and left.keys() and left.keys() <= _NAMES:
        row |= {column: text(name) for column, name in left.items()}
        more = {_OURS: more[_OURS]} if _OURS in more else None
    label = None if "title" in columns else m.label
    usage = None if own and m.usage and not m.usage.reasoning_tokens else m.usage
    note = replace(note, label=label, key=m.key, raw=m.raw, usage=usage, privacy=m.privacy, more=more)
    carried = None if own or note == Note() else note
    if carried and not m.blocks:
        _log.debug("what the first generation has no column for was left out of a message without blocks")
    row["message_extra_fields"] = _join_fields(fields, note)
    return row, [_block_row(block, None if place else carried) for place, block in enumerate(m.blocks)]


def _split(extra: dict[str, object] | None) -> tuple[dict[str, object], dict[str, object] | None]:
    """Split an extra into the object for the column, and the fields for the note, whose names are reserved in the
    column."""
    fields = dict(extra or {})
    more = {name: fields.pop(name) for name in (_OURS, _THEIRS) if name in fields}
    return fields, more if more or extra == {} else None


def _block_row(block: Block, carried: Note | None) -> Row:
    content = block.content.load() if isinstance(block.content, Attachment) else block.content
    number, binary = _NUMBERS.get(block.modality, 0), isinstance(content, bytes)
    fields, more = _split(block.extra)
    modality = block.modality if block.modality != _MODALITIES[number] else None
    note = Note(more, modality=modality, binary=None if binary == (number > 0) else binary, message=carried)
    return {
        "id": block.id, "block_type": block.type, "modality_type": number, "mime_type": block.mime_type,
        "content": b64encode(content).decode() if isinstance(content, bytes) else content,
        "extra_fields": _join_fields(fields, note),
    }  # fmt: skip


def _join_fields(fields: dict[str, object], note: Note) -> str | None:
    """Return both as compact JSON, or None if both are empty. Bytes become base64."""
    whole = fields if note == Note() else {**fields, _OURS: note}
    return msgspec.json.encode(whole, enc_hook=Attachment.load).decode() if whole else None


# -- times

_WHEN = re.compile(
    r"(\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,12})?)?)?) ?(Z|[+-]\d\d:?\d\d)?"
    r"(?: [A-Z0-9+-]{1,6})?(?: m=[+-][\d.]{1,30})?",  # as Go's time.String ends
    re.ASCII,
)
_MILLISECONDS = 10**12  # from here on, a number counts these: as seconds, it would be the year 33,658


def when(cell: object) -> int | None:
    """Parse a time as SQLite, Go or Unix write it. Returns microseconds since 1970 UTC, or None if it is invalid."""
    try:
        if isinstance(cell, str):
            found = _WHEN.fullmatch(cell)
            time = datetime.fromisoformat(found[1] + (found[2] or "")) if found else None
            return from_datetime(time if time.tzinfo else time.replace(tzinfo=UTC), "created_at") if time else None
        if not isinstance(cell, int | float) or not math.isfinite(cell):
            return None
        microseconds = round(cell * (1000 if abs(cell) >= _MILLISECONDS else 1_000_000))
        to_datetime(microseconds)
    except (ValueError, OverflowError, Damaged):  # it has the form of a time, but is invalid
        return None
    return microseconds


def format_time(microseconds: int) -> str:
    """Format a time as CPE does: fractions of a second only if there are any."""
    return to_datetime(microseconds).replace(tzinfo=None).isoformat(" ")
