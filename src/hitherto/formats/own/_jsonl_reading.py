"""Reading our own format: conversations from lines of JSON.

A line that cannot be read makes its own conversation unreadable, and no other one. A file that is cut off, or was
changed, is named at its end. Attachments lie in temporary files until their conversation is imported.
"""

import base64
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

import msgspec

from ..._engine.attachments import in_base64
from ..._engine.record_items import About, Details
from ...attachment import CHUNK, Attachment, hole_of
from ...backend import CHAT
from ...errors import Damaged, HithertoError, InvalidArgument, NewerFormat, NotSealed, PayloadTooLarge
from ...keys import Key
from ...model import DEEPEST, Block, Message, Setup, from_datetime, is_nested_deeper
from ...snapshots import Unreadable
from .._atomic_file import of_files
from .._types import PortableConversation, PortableItem, PortableMessage, PortablePartial
from ._jsonl_lines import (
    LONGEST_LINE,
    MARKS,
    VERSION,
    ZSTD,
    AttachmentLine,
    ConversationLine,
    End,
    Header,
    Line,
    MessageLine,
    RecordLine,
    SetupLine,
    as_object,
    decode_line,
)

_MOST = 1 << 30  # bytes of the lines of one conversation, attachments apart
_DEEPEST = 2 * DEEPEST + 8  # levels in one line: each of a message may be wrapped in `$object`, and has some around it
_VALUES = 2_000_000  # in one line: a few bytes of JSON can be a value of a few hundred
_SWELLS = 1000  # times as large a compressed file may become, beside the first megabytes
_TEXT = Block("content", "")


def read(path: Path, key: Key | None) -> Iterator[PortableConversation | Unreadable]:
    if key is not None:
        raise NotSealed("a key was given, and a file of lines is in clear", hint="leave the key out")
    try:
        with open(path, "rb") as file, tempfile.TemporaryDirectory(prefix="hitherto-") as folder:
            yield from _read(_lines(file), Path(folder))
    except OSError as error:
        raise of_files(error, path) from None


def first_of_zstd(path: Path) -> bytes:
    """Return the first decompressed bytes of a file, or none if it is not compressed."""
    try:
        with open(path, "rb") as file:
            return next(iter(_lines(file)), b"")[:100]
    except (OSError, HithertoError):
        return b""


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file, compressed or not, each of bounded length."""
    head = file.read(4)
    file.seek(0)
    if head != ZSTD:
        yield from _cut(file.read)
        return
    import zstandard  # noqa: PLC0415  # most files are not compressed

    try:
        most = _SWELLS * os.fstat(file.fileno()).st_size + LONGEST_LINE
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file, closefd=False) as stream:
            yield from _limit_size(_cut(stream.read), most)
    except zstandard.ZstdError:
        raise Damaged("the compressed file cannot be read to its end", hint=_CUT_OFF) from None


def _limit_size(lines: Iterator[bytes], most: int) -> Iterator[bytes]:
    size = 0
    for line in lines:
        size += len(line)
        if size > most:
            raise PayloadTooLarge(size, most, what="text in so small a file")
        yield line


def _cut(read: Callable[[int], bytes]) -> Iterator[bytes]:
    rest = bytearray()
    while piece := read(CHUNK):
        start = len(rest)
        rest += piece
        while (end := rest.find(b"\n", start)) >= 0:
            yield bytes(rest[: end + 1])
            del rest[: end + 1]
            start = 0
        if len(rest) > LONGEST_LINE:
            raise PayloadTooLarge(len(rest), LONGEST_LINE, what="text in one line")
    if rest:
        yield bytes(rest)


_FIRST = 'its first line says {"hitherto":"jsonl"}'
_CUT_OFF = "it was cut off, or changed: export it again"


def _read(lines: Iterator[bytes], folder: Path) -> Iterator[PortableConversation | Unreadable]:
    """Yield the conversations. An unreadable line makes its own conversation unreadable, and no other one."""
    first = next(lines, b"")
    _check_header(first)
    sha256 = hashlib.sha256(first)
    reading: _Reading | None = None
    count, number = 0, 1
    while (line := _next(lines)) is not None:
        if isinstance(line, HithertoError):
            yield from _finish(reading)
            raise line
        number += 1
        found = _line(line)
        if isinstance(found, Line) and found.end is not None:
            yield from _finish(reading)
            yield from _check_end(found.end, sha256.hexdigest(), count, number, lines)
            return
        sha256.update(line)
        if isinstance(found, Line) and found.conversation is not None:
            yield from _finish(reading)
            count += 1
            reading = _Reading(found.conversation, folder / str(count))
        elif reading is None or (reading.complete and isinstance(found, str)):
            yield from _finish(reading)
            yield Unreadable(f"line {number}", found if isinstance(found, str) else "it is of no conversation")
            reading = _Reading(None, folder / "none")
        else:
            reading.take(found, len(line), number)
    yield from _finish(reading)
    yield Unreadable(f"line {number + 1}", "the file ends early: its last line is missing")


def _next(lines: Iterator[bytes]) -> bytes | HithertoError | None:
    """Return the next line, None at the end, or the error if the file cannot be read further."""
    try:
        return next(lines, None)
    except HithertoError as error:
        return error


def _finish(reading: "_Reading | None") -> Iterator[PortableConversation | Unreadable]:
    found = None if reading is None else reading.finish()
    if found is not None:
        yield found
    if reading is not None:
        reading.forget()


def _check_end(end: End, sha256: str, count: int, number: int, lines: Iterator[bytes]) -> Iterator[Unreadable]:
    if end.sha256 != sha256 or end.conversations != count:
        yield Unreadable(f"line {number}", "the file was changed after it was written: its checksum is another")
    if next(lines, None) is not None:
        yield Unreadable(f"line {number + 1}", "something stands after the end")


def _check_header(line: bytes) -> None:
    try:
        header = msgspec.json.decode(line, type=Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidArgument("not a file of lines of hitherto", hint=_FIRST) from None
    if not 1 <= header.version <= VERSION:
        raise NewerFormat(f"the file's version is {str(header.version)[:20]}, the newest known here is {VERSION}")


def _line(line: bytes) -> "Line | str":
    """Parse a line. Returns the reason as text if it is invalid."""
    if len(line) > _VALUES and sum(map(line.count, (b"[", b"{", b","))) > _VALUES:
        return f"it holds more than {_VALUES:,} values"
    try:
        found = decode_line(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return str(error)[:200] if isinstance(error, msgspec.ValidationError) else "it is not JSON"
    if sum(getattr(found, part) is not None for part in Line.__struct_fields__) != 1:
        return "it is no line of this format"
    if line.count(b"[") + line.count(b"{") > _DEEPEST and is_nested_deeper(_open_values(found), _DEEPEST):
        return f"it is nested more than {_DEEPEST} deep"
    return found


def _open_values(line: Line) -> list[object]:
    """Return the values of a line that may be any JSON."""
    found: list[object] = [] if line.setup is None else [line.setup.tools, line.setup.raw]
    halves = [] if line.partial is None else line.partial.messages
    for message in halves if line.message is None else [line.message, *halves]:
        found += [message.extra, message.raw, message.privacy]
        found += [value for block in message.blocks for value in (block.content, block.extra)]
    return found


class _Reading:
    """Builds a conversation from its lines."""

    def __init__(self, about: ConversationLine | None, folder: Path) -> None:
        """Without `about`, collect lines that belong to no conversation."""
        self._about = about
        self._folder = folder
        self._setups: list[Setup] = []
        self._messages: list[PortableMessage] = []
        self._halves: list[PortablePartial] = []
        self._items: list[PortableItem] = []
        self._attachments: dict[int, Attachment] = {}
        self._size = 0
        self._problem: Unreadable | None = None

    @property
    def _name(self) -> str:
        return "" if self._about is None else f"conversation {self._about.id:.40}"

    @property
    def complete(self) -> bool:
        """True if all announced messages have arrived."""
        about = self._about
        came = len(self._setups), len(self._messages), len(self._halves), len(self._items)
        return about is None or came == (about.setups, about.messages, about.partials, about.items)

    def take(self, line: "Line | str", size: int, number: int) -> None:
        if self._problem is not None or self._about is None:
            return
        try:
            if isinstance(line, str):
                raise Damaged(line)
            self._take(line, size)
        except HithertoError as error:
            self._problem = Unreadable(f"{self._name}, line {number}", str(error))

    def _take(self, line: Line, size: int) -> None:
        self._size += size if line.attachment is None else 0
        if self._size > _MOST:
            raise PayloadTooLarge(self._size, _MOST, what="text in one conversation")
        if line.attachment is not None:
            self._piece(line.attachment)
        elif line.setup is not None:
            self._setups.append(self._setup(line.setup))
        elif line.message is not None:
            self._messages.append(_portable_message(line.message, self._value))
        elif line.partial is not None:
            messages = tuple(_portable_message(message, self._value).message for message in line.partial.messages)
            at = _time(line.partial.at)
            self._halves.append(PortablePartial(parent=line.partial.parent, messages=messages, at_us=at))
        elif line.item is not None:
            self._items.append(PortableItem(line.item.name, _bytes(line.item.data)))

    def _piece(self, piece: AttachmentLine) -> None:
        path = self._folder / str(piece.number)
        if piece.missing:
            self._hole(piece)
            return
        if piece.size is None:
            self._folder.mkdir(exist_ok=True)
            with open(path, "ab") as file:
                file.write(_bytes(piece.data))
            return
        if piece.size == 0 and not path.exists():
            self._folder.mkdir(exist_ok=True)
            path.touch()
        whole = Attachment.from_file(path)
        sha256 = hashlib.sha256()
        for part in whole:
            sha256.update(part)
        if (whole.size, sha256.hexdigest()) != (piece.size, piece.sha256):
            raise Damaged("an attachment is not as it was written")
        self._attachments[piece.number] = Attachment(whole.size, whole.__iter__, text=piece.text)

    def _hole(self, piece: AttachmentLine) -> None:
        if piece.size is None or piece.size < 0 or piece.data or piece.number in self._attachments:
            raise Damaged("a missing attachment has a size, and nothing else")
        name = f"missing {piece.number}".encode()
        self._attachments[piece.number] = hole_of(piece.size, text=piece.text, name=name)

    def _value(self, value: object) -> object:
        """Decode a value that `_Attached` encoded."""
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if not isinstance(value, dict):
            return value
        mark, inner = next(iter(value.items())) if len(value) == 1 else ("", None)
        if mark == "$object" and isinstance(inner, dict):
            return {name: self._value(item) for name, item in inner.items()}
        if mark == "$bytes":
            return _bytes(inner)
        if mark == "$float" and inner in ("nan", "inf", "-inf"):
            return float(str(inner))
        if mark in ("$attachment", "$base64"):
            return self._find_attachment(mark, inner)
        if mark in MARKS:
            raise Damaged(f"{mark} with nothing that it could mean")
        return {name: self._value(item) for name, item in value.items()}

    def _find_attachment(self, mark: str, inner: object) -> Attachment:
        several = inner if mark == "$base64" and isinstance(inner, list) and len(inner) == 3 else [inner, 0, ""]
        number, way, prefix = several
        found = self._attachments.get(number) if type(number) is int else None
        if found is None or type(way) is not int or not isinstance(prefix, str) or not 0 <= way <= 4:
            raise Damaged("a message refers to an attachment that does not stand before it")
        return in_base64(found, way, prefix) if mark == "$base64" else found

    def finish(self) -> PortableConversation | Unreadable | None:
        about = self._about
        if about is None or self._problem is not None:
            return self._problem
        if not self.complete:
            what = f"{len(self._messages)} messages are there, {about.messages} are meant to be"
            return Unreadable(self._name, what)
        try:
            return PortableConversation(
                id=about.id,
                messages=tuple(self._messages),
                title=about.title,
                key=about.key,
                project=about.project,
                metadata=about.metadata,
                setups=tuple(self._setups),
                setup=about.setup,
                setup_at=about.setup_at,
                opening=about.opening,
                head=about.head,
                held=about.held,
                created_us=_time(about.created_at),
                partials=tuple(self._halves),
                record=_portable_record(about.record),
                expires_us=_time(about.expires_at) if about.expires_at else None,
                kind=CHAT if about.kind is None else about.kind,
                items=tuple(self._items),
            )
        except HithertoError as error:
            return Unreadable(self._name, str(error))

    def forget(self) -> None:
        """Remove the temporary files of attachments: the conversation is imported or given up."""
        shutil.rmtree(self._folder, ignore_errors=True)  # the folder around it is removed later

    def _setup(self, setup: SetupLine) -> Setup:
        tools = tuple(tool for tool in map(self._value, setup.tools) if isinstance(tool, dict))
        if len(tools) != len(setup.tools):
            raise Damaged("a tool is no object")
        return Setup(setup.provider, setup.model, setup.system_prompt, tools, self._value(setup.raw))


def _portable_record(found: RecordLine | None) -> About:
    if found is None:
        return About()
    return About(Details(found.participants, found.consent, found.metrics), found.summaries).portable


def _portable_message(m: MessageLine, value: Callable[[object], object]) -> PortableMessage:
    blocks = []
    for b in m.blocks:
        content = value(b.content)
        if not isinstance(content, (str, bytes, Attachment)):
            raise Damaged(f"the content of a block is a {type(content).__name__}")
        modality = _TEXT.modality if b.modality is None else b.modality  # these very ones are left out again
        kind = modality, _TEXT.mime_type if b.mime_type is None else b.mime_type
        blocks.append(Block(b.type, content, *kind, b.id, as_object(value(b.extra))))
    message = Message(
        m.role, tuple(blocks), m.label, m.key, m.tool_result_error, as_object(value(m.extra)), value(m.raw), m.usage,
        as_object(value(m.privacy)),
    )  # fmt: skip
    return PortableMessage(
        id=m.id, message=message, parent=m.parent, link=m.link, main=m.main, created_us=_time(m.at), setup=m.setup,
        origin=m.origin, format=m.format,
    )  # fmt: skip


def _bytes(value: object) -> bytes:
    try:
        return base64.b64decode(value if isinstance(value, str) else "-", validate=True)
    except ValueError:
        raise Damaged("bytes that are not written in base64") from None


def _time(text: str) -> int:
    if not text:
        return 0
    try:
        return from_datetime(datetime.fromisoformat(text), "a time")
    except (ValueError, OverflowError):
        raise Damaged("a time that is none") from None
