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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from ..._engine.record_items import About
from ...attachment import CHUNK, Attachment
from ...backend import CHAT
from ...errors import InvalidArgument, InvalidMessage, PayloadTooLarge
from ...keys import Key
from ...model import Setup, to_datetime
from .._atomic_file import new_file
from .._types import PortableConversation, PortableMessage, Source
from ._jsonl_lines import (
    LONGEST_LINE,
    MARKS,
    VERSION,
    ZSTD,
    AttachmentLine,
    BlockLine,
    ConversationLine,
    End,
    Header,
    ItemLine,
    Line,
    MessageLine,
    PartialLine,
    RecordLine,
    SetupLine,
    as_object,
    encode_line,
)
from ._jsonl_reading import first_of_zstd, read

__all__ = ["name", "read", "recognises", "suffixes", "write", "write_to", "writes"]

name = "jsonl"
suffixes = (".jsonl", ".jsonl.zst")
writes = True

_START = b'{"hitherto":"jsonl"'


def recognises(source: Source) -> str | None:
    head = source.head
    if head.startswith(ZSTD):
        head = first_of_zstd(source.path)
    if head.replace(b" ", b"").startswith(_START):
        return 'its first line says "hitherto": "jsonl"' + (", compressed" if source.head.startswith(ZSTD) else "")
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
        data = encode_line(value) + b"\n"
        if len(data) > LONGEST_LINE:
            raise PayloadTooLarge(len(data), LONGEST_LINE, what="text in one line")
        self._hash.update(data)
        self._out(data)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def finish(self) -> None:
        self._out(b"")


def _write(talks: Iterable[PortableConversation], out: _Hashed) -> int:
    out.line(Header("jsonl", VERSION))
    count = 0
    for talk in talks:
        count += 1
        newest = next((said.id for said in reversed(talk.messages) if said.main), None)
        head = None if talk.head == newest else talk.head
        about = ConversationLine(
            talk.id, len(talk.messages), talk.title, talk.key, talk.project, talk.metadata,
            len(talk.setups), talk.setup, talk.setup_at, talk.opening, head, talk.held,
            _format_time(talk.created_us), len(talk.partials), _expiry(talk.expires_us), _record_line(talk.record),
            None if talk.kind == CHAT else talk.kind, len(talk.items),
        )  # fmt: skip
        out.line(Line(conversation=about))
        for setup in talk.setups:
            out.line(Line(setup=_setup_line(setup)))
        attached = _Attached(out)
        for said in talk.messages:
            out.line(Line(message=_message_line(said, attached)))
        for half in talk.partials:
            messages = [_message_line(PortableMessage(id="", message=message), attached) for message in half.messages]
            out.line(Line(partial=PartialLine(half.parent, _format_time(half.at_us), messages)))
        for item in talk.items:
            out.line(Line(item=ItemLine(item.name, base64.b64encode(item.value).decode())))
    out.line(Line(end=End(count, out.sha256)))
    out.finish()
    return count


def _record_line(record: About) -> RecordLine | None:
    details = record.details
    found = RecordLine(details.participants, details.consent, details.metrics, record.summaries)
    return None if found == RecordLine() else found


def _setup_line(setup: Setup) -> SetupLine:
    plain = _Attached(None).plain
    tools = [plain(tool) for tool in setup.tools]
    return SetupLine(setup.provider, setup.model, setup.system_prompt, tools, plain(setup.raw))


def _message_line(said: PortableMessage, attached: "_Attached") -> MessageLine:
    m, plain = said.message, attached.plain
    blocks = [
        BlockLine(
            b.type,
            plain(b.content),
            None if b.modality == "text" else b.modality,
            None if b.mime_type == "text/plain" else b.mime_type,
            b.id,
            as_object(plain(b.extra)),
        )
        for b in m.blocks
    ]
    return MessageLine(
        said.id, m.role, _format_time(said.created_us), blocks, said.parent, said.link, said.main, said.setup, m.label,
        m.key, m.tool_result_error, as_object(plain(m.extra)), plain(m.raw), m.usage, as_object(plain(m.privacy)),
        said.origin, said.format,
    )  # fmt: skip


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
            return {"$object": found} if len(found) == 1 and next(iter(found)) in MARKS else found
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
        if value.encodes is not None:
            source, way, prefix = value.encodes
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
                self._out.line(Line(attachment=AttachmentLine(number, base64.b64encode(piece).decode())))
            self._out.line(Line(attachment=AttachmentLine(number, "", value.size, name[0], value.text)))
        return self._numbers[name]

    def _missing(self, hole: Attachment) -> int:
        name = (f"missing {(hole.stored_name or b'').hex()}", hole.text)
        if name not in self._numbers and self._out is not None:
            self._numbers[name] = number = len(self._numbers)
            self._out.line(Line(attachment=AttachmentLine(number, "", hole.size, "", hole.text, missing=True)))
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
