"""The frame of an importer: a format that is read from the files of another program, and never written.

An importer says which files are of its program, by their content, and turns all of them together into conversations
with stable ids (`PortableConversation.by_id`). It never sees a store. The functions here do the steps that importers
share: lines of JSON of which the last may be half written, times, JSON that a store can keep, marks for text that no
person wrote, ids for messages that have none, and cutting a long conversation into parts.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import ClassVar, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..dialects._json import replaced_surrogates
from ..errors import HithertoError, InvalidMessage
from ..keys import Key
from ..model import Block, Message, check_json
from ..snapshots import Unreadable
from ._files import Files, open_files
from ._history_match import digest
from ._types import Found, Place, PortableConversation, PortableMessage, Source, SourceRecord, Waiting, not_written

Injected = Literal["context", "reminder", "command", "summary", "side-call", "hidden"]

_MAX_LINE_BYTES = 1 << 27
_PART_MESSAGES, _PART_BYTES = 500, 4 << 20  # of one part of a long conversation
_SECONDS = 10**11  # from here on, a number counts milliseconds: as seconds, it would be the year 5138
NO_UTF8 = "it has bytes that are no UTF-8, and \N{REPLACEMENT CHARACTER} came in for them"
_LATEST_US = 253_402_300_799_000_000


class Importer:
    """A format of another program, which is read only."""

    name: ClassVar[str]
    title: ClassVar[str] = ""  # the program's name for people
    suffixes: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[bool] = False

    def recognises(self, source: Source) -> str | None:
        """Return the evidence in the content of one file that it is of this program, in words, or None. Never
        raises."""
        raise NotImplementedError

    def read_files(self, files: Files, names: Sequence[str]) -> Iterator[Found]:
        """Yield what is in the files of these names, which were recognised, and in others that belong to them."""
        raise NotImplementedError

    def places(self, env: Mapping[str, str], home: Path) -> Iterator[Path]:  # noqa: ARG002  # a program without a place
        """Yield the folders and files in which the program keeps conversations on this machine. They need not exist."""
        return iter(())

    def unit_of(self, name: str) -> str:
        """Return the name of the file that a file must be read with: itself, or the one that it belongs to."""
        return name

    def retention_days(self, env: Mapping[str, str], home: Path) -> int | None:  # noqa: ARG002  # as above
        """Return after how many days the program deletes conversations, by the age of their files; None: never."""
        return None

    def read(self, path: Path, key: Key | None) -> Iterator[Found]:  # noqa: ARG002  # the shape of a format
        """Yield what is in a file, a folder or a zip, all of which is taken to be of this program."""
        files = open_files(path)
        try:
            yield from self.read_files(files, list(files.names()))
        finally:
            files.close()

    def write(self, talks: Iterable[PortableConversation], path: Path, key: Key | None) -> int:  # noqa: ARG002  # as above
        """Raise: the program writes its own files."""
        raise not_written(self.name)


# -- lines of JSON


class Line(Struct, frozen=True):
    """One line of a file, as the JSON object that it holds."""

    number: int
    record: dict[str, object]
    size: int  # bytes


def lines(files: Files, name: str) -> Iterator[Line | Unreadable | Waiting]:
    """Yield the JSON objects in the lines of a file. A last line without its end that is no JSON yet is waiting: the
    program is writing it. Other lines that are no objects are unreadable, and the rest is read."""
    label = files.label(name)
    with files.open(name) as file:
        number = 0
        while line := file.readline(_MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > _MAX_LINE_BYTES and not line.endswith(b"\n"):
                size = len(line) + sum(len(piece) for piece in _rest_of_line(file))
                yield Unreadable(f"{label}, line {number}", f"a line of {size:,} bytes is too long")
                continue
            text = line.strip().removeprefix(b"\xef\xbb\xbf").strip(b"\0")  # a crash may leave NULs
            if not text:
                continue
            try:
                record = decode_json(text)
            except InvalidMessage as error:
                if line.endswith(b"\n"):
                    yield Unreadable(f"{label}, line {number}", str(error))
                else:
                    yield Waiting(label, f"line {number} is not complete yet")
                continue
            if isinstance(record, dict):
                yield Line(number, record, len(line))
                if not is_utf8(text):
                    yield Unreadable(f"{label}, line {number}", NO_UTF8)
            else:
                yield Unreadable(f"{label}, line {number}", "it is no JSON object")


def _rest_of_line(file: object) -> Iterator[bytes]:
    while piece := file.readline(1 << 20):  # type: ignore[attr-defined]  # an open file
        yield piece
        if piece.endswith(b"\n"):
            return


def is_utf8(data: bytes | bytearray) -> bool:
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
    return True


def decode_json(data: bytes | bytearray | str) -> object:
    """Return the value of a JSON text. Halves of surrogate pairs become U+FFFD. Raises `InvalidMessage`."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:  # halves of surrogate pairs, NaN, large numbers: Python reads them
        found: object = json.loads(data if isinstance(data, str) else data.decode("utf-8", "replace"))
        return replaced_surrogates(found)
    except (ValueError, RecursionError) as error:
        where = f" at character {error.pos:,}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidMessage(f"it is no JSON{where}") from None


# -- values


def time_us(value: object) -> int:
    """Return a time in microseconds: of a text in ISO 8601, or a number of seconds or milliseconds. 0 if it is none."""
    try:
        if isinstance(value, str):
            time = datetime.fromisoformat(value)
            found = round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1_000_000)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found = round(value * (1000 if abs(value) >= _SECONDS else 1_000_000))
        else:
            return 0
    except (ValueError, OverflowError):
        return 0
    return found if 0 < found < _LATEST_US else 0


def clean_text(value: object) -> str:
    """Return a text that a store can keep: halves of surrogate pairs become U+FFFD. "" for anything but text."""
    if not isinstance(value, str):
        return ""
    return value if value.isascii() else str(replaced_surrogates(value))


def storable(value: object) -> object:
    """Return JSON that a store can keep. A value that cannot be kept as it is (numbers of more than 64 bits, more than
    100 levels) becomes the text of its JSON."""
    try:
        check_json(value, "JSON", 10)  # below what will hold it
    except InvalidMessage:
        if isinstance(value, dict):
            return {name: storable(item) if _is_kept(item) else _as_text(item) for name, item in value.items()}
        return _as_text(value)
    return value


def _is_kept(value: object) -> bool:
    try:
        check_json(value, "JSON", 20)
    except InvalidMessage:
        return False
    return True


def _as_text(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (RecursionError, ValueError):
        return "a value that is nested too deeply"


def chain_id(parent: str | None, message: Message) -> str:
    """Return an id for a message of a format that has none: a hash of its parent's id and its content. So the same
    message below the same one has the same id in every file."""
    said = PortableMessage(id="", message=message)
    return blake2b(f"{parent or ''}/{digest(said)}".encode(), digest_size=16).hexdigest()


# -- what no person wrote


def injected_block(block: Block, why: Injected) -> Block:
    """Mark a block that stands in a person's turn and was not written by a person."""
    return replace(block, extra={**(block.extra or {}), "injected": why})


def injected(message: Message, why: Injected) -> Message:
    """Mark a message that has the role of a person and was not written by one."""
    return replace(message, extra={**(message.extra or {}), "injected": why})


# -- long conversations


def parts(
    talk: PortableConversation, found: Iterable[PortableMessage | SourceRecord | Place]
) -> Iterator[PortableConversation]:
    """Cut a conversation into parts that fit into memory. `talk` describes it; at least one part comes."""
    messages: list[PortableMessage] = []
    records: list[SourceRecord] = []
    places: list[Place] = []
    size, some = 0, False
    for one in found:
        if isinstance(one, SourceRecord):
            records.append(one)
            size += 1000
        elif isinstance(one, Place):
            places.append(one)
        else:
            messages.append(one)
            size += 500 + sum(
                len(block.content) for block in one.message.blocks if isinstance(block.content, (str, bytes))
            )
        if len(messages) >= _PART_MESSAGES or size >= _PART_BYTES:
            yield replace(talk, messages=tuple(messages), records=tuple(records), places=tuple(places))
            messages, records, places, size, some = [], [], [], 0, True
    if messages or records or places or not some:
        yield replace(talk, messages=tuple(messages), records=tuple(records), places=tuple(places))


def reason_of(error: HithertoError | Exception) -> str:
    """Return the reason for an `Unreadable`, without content."""
    return str(error)[:300] or type(error).__name__
