"""Our own format: everything about conversations as lines of JSON, for other tools and for other stores.

    {"hitherto": "jsonl", "version": 1}
    {"conversation": {"id": "…", "title": "…", "messages": 2, …}}
    {"message": {"id": "…", "role": "user", "at": "2026-01-02T03:04:05.000006Z", "blocks": […]}}
    {"message": {"id": "…", "parent": "…", "role": "assistant", …}}
    {"end": {"conversations": 1, "sha256": "…"}}

The lines hold all that a reader of the store could see: every branch, setup, label, key and attachment, the provider's
own JSON. Parents stand before their children. Large content comes before the message that needs it, in lines of its
own, once for each conversation; a line with `missing` is all there is of an attachment that the store has lost. A value
that JSON cannot express is an object with one name that begins with a dollar: `$bytes`, `$attachment`, `$base64`,
`$float`; an object that looks like one is wrapped in `$object`.

The last line proves that the file is complete. Writing is deterministic: saving an imported file gives the same bytes.
A name that ends in `.zst` is compressed.
"""

import base64
import hashlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Literal

import msgspec
from msgspec import Meta as Limits
from msgspec import Struct

from .._engine.attachments import in_base64
from .._engine.record_items import About, ConversationSummary, Details, Measure, Participant
from ..attachment import CHUNK, Attachment
from ..backend import CHAT
from ..errors import Damaged, HithertoError, InvalidArgument, InvalidMessage, NewerFormat, NotSealed, PayloadTooLarge
from ..keys import Key
from ..model import DEEPEST, Block, Message, Setup, Usage, from_datetime, is_nested_deeper, to_datetime
from ..snapshots import Unreadable
from ._atomic_file import new_file, of_files
from ._types import PortableConversation, PortableItem, PortableMessage, PortablePartial, Source

name = "jsonl"
suffixes = (".jsonl", ".jsonl.zst")
writes = True

VERSION = 1
_LINE = 1 << 27  # bytes of the longest line: more than any message of 10 MB may have, however it is escaped
_MOST = 1 << 30  # bytes of the lines of one conversation, attachments apart
_DEEPEST = 2 * DEEPEST + 8  # levels in one line: each of a message may be wrapped in `$object`, and has some around it
_VALUES = 2_000_000  # in one line: a few bytes of JSON can be a value of a few hundred
_SWELLS = 1000  # times as large a compressed file may become, beside the first megabytes
_ZSTD = b"\x28\xb5\x2f\xfd"
_START = b'{"hitherto":"jsonl"'
_MARKS = ("$bytes", "$attachment", "$base64", "$float", "$object")


# -- the lines


class _Header(Struct, omit_defaults=True):
    hitherto: Literal["jsonl"]
    version: int


class _Setup(Struct, omit_defaults=True, forbid_unknown_fields=True):
    provider: str = ""
    model: str = ""
    system_prompt: str = ""
    tools: list[object] = []
    raw: object = None


class _Record(Struct, omit_defaults=True, forbid_unknown_fields=True):
    participants: tuple[Participant, ...] = ()
    consent: str | None = None
    metrics: dict[Measure, int] = {}
    summaries: tuple[ConversationSummary, ...] = ()


class _Conversation(Struct, omit_defaults=True, forbid_unknown_fields=True):
    id: str
    messages: Annotated[int, Limits(ge=0)]
    title: str = ""
    key: str | None = None
    project: str | None = None
    metadata: dict[str, str] = {}
    setups: Annotated[int, Limits(ge=0)] = 0
    setup: int = 0
    setup_at: int = 0
    opening: str | None = None
    head: str | None = None
    held: bool = False
    created_at: str = ""
    partials: Annotated[int, Limits(ge=0)] = 0
    expires_at: str = ""
    record: _Record | None = None
    kind: str | None = None  # chat
    items: Annotated[int, Limits(ge=0)] = 0


class _Block(Struct, omit_defaults=True, forbid_unknown_fields=True):
    type: str
    content: object
    modality: str | None = None  # text
    mime_type: str | None = None  # text/plain; defaults are left out by identity, and no text is sure to have one
    id: str | None = None
    extra: dict[str, object] | None = None


class _Message(Struct, omit_defaults=True, forbid_unknown_fields=True):
    id: str
    role: str
    at: str
    blocks: list[_Block]
    parent: str | None = None
    link: str | None = None
    main: bool = True
    setup: int = 0
    label: str | None = None
    key: str | None = None
    tool_result_error: bool = False
    extra: dict[str, object] | None = None
    raw: object = None
    usage: Usage | None = None
    privacy: dict[str, object] | None = None
    origin: str | None = None
    format: str | None = None


class _Piece(Struct, omit_defaults=True, forbid_unknown_fields=True):
    number: Annotated[int, Limits(ge=0)]
    data: str = ""
    size: int | None = None  # in the last line of an attachment, with its hash
    sha256: str = ""
    text: bool = False
    missing: bool = False  # the store that was saved has lost the content: this line is all there is of it


class _Half(Struct, omit_defaults=True, forbid_unknown_fields=True):
    parent: str
    at: str
    messages: list[_Message]


class _Item(Struct, forbid_unknown_fields=True):
    name: str
    data: str


class _End(Struct, forbid_unknown_fields=True):
    conversations: int
    sha256: str


class _Line(Struct, omit_defaults=True, forbid_unknown_fields=True):
    conversation: _Conversation | None = None
    setup: _Setup | None = None
    message: _Message | None = None
    attachment: _Piece | None = None
    partial: _Half | None = None
    item: _Item | None = None
    end: _End | None = None


_TEXT = Block("content", "")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Line).decode


def recognises(source: Source) -> str | None:
    head = source.head
    if head.startswith(_ZSTD):
        head = _first_of_zstd(source.path)
    if head.replace(b" ", b"").startswith(_START):
        return 'its first line says "hitherto": "jsonl"' + (", compressed" if source.head.startswith(_ZSTD) else "")
    return None


# -- writing


def write(talks: Iterable[PortableConversation], path: Path, key: Key | None) -> int:
    if key is not None:
        raise InvalidArgument("a file of lines is written in clear", hint="leave the key out; seal the file yourself")
    with new_file(path) as file:
        return _write(talks, _Hashed(_compressing(file) if path.suffix == ".zst" else file.write))


def write_to(talks: Iterable[PortableConversation], file: IO[bytes]) -> int:
    return _write(talks, _Hashed(file.write))


def _compressing(file: IO[bytes]) -> Callable[[bytes], object]:
    import zstandard  # noqa: PLC0415  # most files are not compressed

    compressor = zstandard.ZstdCompressor(level=9, write_checksum=True).compressobj()

    def out(data: bytes) -> None:
        file.write(compressor.compress(data) if data else compressor.flush())

    return out


class _Hashed:
    """Writes lines, and hashes them."""

    def __init__(self, out: Callable[[bytes], object]) -> None:
        self._out = out
        self._hash = hashlib.sha256()

    def line(self, value: object) -> None:
        data = _encode(value) + b"\n"
        if len(data) > _LINE:
            raise PayloadTooLarge(len(data), _LINE, what="text in one line")
        self._hash.update(data)
        self._out(data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def finish(self) -> None:
        self._out(b"")


def _write(talks: Iterable[PortableConversation], out: _Hashed) -> int:
    out.line(_Header("jsonl", VERSION))
    count = 0
    for talk in talks:
        count += 1
        newest = next((said.id for said in reversed(talk.messages) if said.main), None)
        head = None if talk.head == newest else talk.head
        about = _Conversation(
            talk.id, len(talk.messages), talk.title, talk.key, talk.project, talk.metadata,
            len(talk.setups), talk.setup, talk.setup_at, talk.opening, head, talk.held,
            _format_time(talk.created_us), len(talk.partials), _expiry(talk.expires_us), _record_line(talk.record),
            None if talk.kind == CHAT else talk.kind, len(talk.items),
        )  # fmt: skip
        out.line(_Line(conversation=about))
        for setup in talk.setups:
            out.line(_Line(setup=_setup_line(setup)))
        attached = _Attached(out)
        for said in talk.messages:
            out.line(_Line(message=_message_line(said, attached)))
        for half in talk.partials:
            messages = [_message_line(PortableMessage(id="", message=message), attached) for message in half.messages]
            out.line(_Line(partial=_Half(half.parent, _format_time(half.at_us), messages)))
        for item in talk.items:
            out.line(_Line(item=_Item(item.name, base64.b64encode(item.value).decode())))
    out.line(_Line(end=_End(count, out.sha256)))
    out.finish()
    return count


def _record_line(record: About) -> _Record | None:
    details = record.details
    found = _Record(details.participants, details.consent, details.metrics, record.summaries)
    return None if found == _Record() else found


def _setup_line(setup: Setup) -> _Setup:
    plain = _Attached(None).plain
    tools = [plain(tool) for tool in setup.tools]
    return _Setup(setup.provider, setup.model, setup.system_prompt, tools, plain(setup.raw))


def _message_line(said: PortableMessage, attached: "_Attached") -> _Message:
    m, plain = said.message, attached.plain
    blocks = [
        _Block(
            b.type,
            plain(b.content),
            None if b.modality == "text" else b.modality,
            None if b.mime_type == "text/plain" else b.mime_type,
            b.id,
            _object(plain(b.extra)),
        )
        for b in m.blocks
    ]
    return _Message(
        said.id, m.role, _format_time(said.created_us), blocks, said.parent, said.link, said.main, said.setup, m.label,
        m.key, m.tool_result_error, _object(plain(m.extra)), plain(m.raw), m.usage, _object(plain(m.privacy)),
        said.origin, said.format,
    )  # fmt: skip


def _object(value: object) -> dict[str, object] | None:
    if value is not None and not isinstance(value, dict):
        raise Damaged(f"a {type(value).__name__} where an object is wanted")
    return value


def _format_time(microseconds: int) -> str:
    return _expiry(microseconds) if microseconds else ""


def _expiry(microseconds: int | None) -> str:
    """Format a time that may be 1970 itself, or None."""
    if microseconds is None:
        return ""
    return to_datetime(microseconds).isoformat(timespec="microseconds").replace("+00:00", "Z")


class _Attached:
    """Encodes values that JSON cannot express. Large content is written before, each only once."""

    def __init__(self, out: _Hashed | None) -> None:
        self._out = out
        self._numbers: dict[tuple[str, bool], int] = {}

    def plain(self, value: object) -> object:
        if isinstance(value, dict):
            found = {name: self.plain(item) for name, item in value.items()}
            return {"$object": found} if len(found) == 1 and next(iter(found)) in _MARKS else found
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        if isinstance(value, Attachment):
            return self._attachment(value)
        if isinstance(value, bytes):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, float) and not math.isfinite(value):
            return {"$float": str(value)}
        return value

    def _attachment(self, value: Attachment) -> object:
        if value._base64 is not None:
            source, way, prefix = value._base64
            return {"$base64": [self._number(source), way, prefix]}
        return {"$attachment": self._number(value)}

    def _number(self, value: Attachment) -> int:
        if self._out is None:
            raise InvalidMessage("an attachment where there can be none")
        if value.is_missing:
            return self._missing(value)
        sha256 = hashlib.sha256()
        for piece in value:
            sha256.update(piece)
        name = (sha256.hexdigest(), value.text)
        if name not in self._numbers:
            self._numbers[name] = number = len(self._numbers)
            for piece in _even(value):
                self._out.line(_Line(attachment=_Piece(number, base64.b64encode(piece).decode())))
            self._out.line(_Line(attachment=_Piece(number, "", value.size, name[0], value.text)))
        return self._numbers[name]

    def _missing(self, hole: Attachment) -> int:
        name = (f"missing {(hole._name or b'').hex()}", hole.text)
        if name not in self._numbers and self._out is not None:
            self._numbers[name] = number = len(self._numbers)
            self._out.line(_Line(attachment=_Piece(number, "", hole.size, "", hole.text, missing=True)))
        return self._numbers[name]


def _even(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield pieces of one size, independent of the sizes in the store."""
    rest = bytearray()
    for piece in pieces:
        rest += piece
        while len(rest) >= CHUNK:
            yield bytes(rest[:CHUNK])
            del rest[:CHUNK]
    if rest:
        yield bytes(rest)


# -- reading


def read(path: Path, key: Key | None) -> Iterator[PortableConversation | Unreadable]:
    if key is not None:
        raise NotSealed("a key was given, and a file of lines is in clear", hint="leave the key out")
    try:
        with open(path, "rb") as file, tempfile.TemporaryDirectory(prefix="hitherto-") as folder:
            yield from _read(_lines(file), Path(folder))
    except OSError as error:
        raise of_files(error, path) from None


def _first_of_zstd(path: Path) -> bytes:
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
    if head != _ZSTD:
        yield from _cut(file.read)
        return
    import zstandard  # noqa: PLC0415  # most files are not compressed

    try:
        most = _SWELLS * os.fstat(file.fileno()).st_size + _LINE
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
        if len(rest) > _LINE:
            raise PayloadTooLarge(len(rest), _LINE, what="text in one line")
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
        if isinstance(found, _Line) and found.end is not None:
            yield from _finish(reading)
            yield from _check_end(found.end, sha256.hexdigest(), count, number, lines)
            return
        sha256.update(line)
        if isinstance(found, _Line) and found.conversation is not None:
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


def _check_end(end: _End, sha256: str, count: int, number: int, lines: Iterator[bytes]) -> Iterator[Unreadable]:
    if end.sha256 != sha256 or end.conversations != count:
        yield Unreadable(f"line {number}", "the file was changed after it was written: its checksum is another")
    if next(lines, None) is not None:
        yield Unreadable(f"line {number + 1}", "something stands after the end")


def _check_header(line: bytes) -> None:
    try:
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InvalidArgument("not a file of lines of hitherto", hint=_FIRST) from None
    if not 1 <= header.version <= VERSION:
        raise NewerFormat(f"the file's version is {str(header.version)[:20]}, the newest known here is {VERSION}")


def _line(line: bytes) -> "_Line | str":
    """Parse a line. Returns the reason as text if it is invalid."""
    if len(line) > _VALUES and sum(map(line.count, (b"[", b"{", b","))) > _VALUES:
        return f"it holds more than {_VALUES:,} values"
    try:
        found = _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return str(error)[:200] if isinstance(error, msgspec.ValidationError) else "it is not JSON"
    if sum(getattr(found, part) is not None for part in _Line.__struct_fields__) != 1:
        return "it is no line of this format"
    if line.count(b"[") + line.count(b"{") > _DEEPEST and is_nested_deeper(_open_values(found), _DEEPEST):
        return f"it is nested more than {_DEEPEST} deep"
    return found


def _open_values(line: _Line) -> list[object]:
    """Return the values of a line that may be any JSON."""
    found: list[object] = [] if line.setup is None else [line.setup.tools, line.setup.raw]
    halves = [] if line.partial is None else line.partial.messages
    for message in halves if line.message is None else [line.message, *halves]:
        found += [message.extra, message.raw, message.privacy]
        found += [value for block in message.blocks for value in (block.content, block.extra)]
    return found


class _Reading:
    """Builds a conversation from its lines."""

    def __init__(self, about: _Conversation | None, folder: Path) -> None:
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

    def take(self, line: "_Line | str", size: int, number: int) -> None:
        if self._problem is not None or self._about is None:
            return
        try:
            if isinstance(line, str):
                raise Damaged(line)
            self._take(line, size)
        except HithertoError as error:
            self._problem = Unreadable(f"{self._name}, line {number}", str(error))

    def _take(self, line: _Line, size: int) -> None:
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

    def _piece(self, piece: _Piece) -> None:
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

    def _hole(self, piece: _Piece) -> None:
        if piece.size is None or piece.size < 0 or piece.data or piece.number in self._attachments:
            raise Damaged("a missing attachment has a size, and nothing else")
        name = f"missing {piece.number}".encode()
        self._attachments[piece.number] = Attachment._hole(piece.size, text=piece.text, name=name)

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
        if mark in _MARKS:
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

    def _setup(self, setup: _Setup) -> Setup:
        tools = tuple(tool for tool in map(self._value, setup.tools) if isinstance(tool, dict))
        if len(tools) != len(setup.tools):
            raise Damaged("a tool is no object")
        return Setup(setup.provider, setup.model, setup.system_prompt, tools, self._value(setup.raw))


def _portable_record(found: _Record | None) -> About:
    if found is None:
        return About()
    return About(Details(found.participants, found.consent, found.metrics), found.summaries).portable


def _portable_message(m: _Message, value: Callable[[object], object]) -> PortableMessage:
    blocks = []
    for b in m.blocks:
        content = value(b.content)
        if not isinstance(content, (str, bytes, Attachment)):
            raise Damaged(f"the content of a block is a {type(content).__name__}")
        modality = _TEXT.modality if b.modality is None else b.modality  # these very ones are left out again
        kind = modality, _TEXT.mime_type if b.mime_type is None else b.mime_type
        blocks.append(Block(b.type, content, *kind, b.id, _object(value(b.extra))))
    message = Message(
        m.role, tuple(blocks), m.label, m.key, m.tool_result_error, _object(value(m.extra)), value(m.raw), m.usage,
        _object(value(m.privacy)),
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
