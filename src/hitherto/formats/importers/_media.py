"""Finds the files beside an export that its messages refer to: pictures, sounds, documents.

A reference names a file by the beginning of its name, which is an id. The content is read when the message is stored.
"""

import re
from collections.abc import Iterator
from functools import cached_property
from itertools import islice

from ...attachment import CHUNK, Attachment
from ...errors import HithertoError
from ...model import Block
from .._files import Files

_MOST_BESIDE = 20_000  # files in the folder of a single file
_TYPES = {
    "gif": "image/gif", "jpeg": "image/jpeg", "jpg": "image/jpeg", "m4a": "audio/mp4", "mp3": "audio/mpeg",
    "mp4": "video/mp4", "ogg": "audio/ogg", "pdf": "application/pdf", "png": "image/png", "svg": "image/svg+xml",
    "txt": "text/plain", "wav": "audio/wav", "webm": "video/webm", "webp": "image/webp",
}  # fmt: skip
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"OggS", "audio/ogg"),
)


class FileIndex:
    """The files of an export by the ids in their names. One file alone is looked at together with its folder."""

    def __init__(self, files: Files, pattern: re.Pattern[str]) -> None:
        self._files, self._pattern = files, pattern

    @cached_property
    def _names(self) -> dict[str, str]:
        found: dict[str, str] = {}
        names = list(self._files.names())
        if len(names) == 1:
            names += islice(self._files.names("."), _MOST_BESIDE)
        for name in names:
            if id := self._pattern.match(name.rpartition("/")[2]):
                found.setdefault(id[0], name)
        return found

    def block(self, id: str, mime_type: str = "", **extra: object) -> Block | None:
        """Return a block with the content of a file. Returns None if the file is not there, or cannot be read."""
        name = self._names.get(id)
        if name is None:
            return None
        try:
            size, head = self._look(name)
        except HithertoError:
            return None
        attachment = Attachment(size, lambda: self._pieces(name))
        kind = mime_type or mime_type_of(name, head)
        return Block(
            "content", attachment, modality_of(kind), kind, None, {"filename": name.rpartition("/")[2], **extra}
        )

    def _look(self, name: str) -> tuple[int, bytes]:
        """Read a file once: a zip says only at the end whether its content is whole."""
        size, head = 0, b""
        for piece in self._pieces(name):
            head = head or piece[:16]
            size += len(piece)
        return size, head

    def _pieces(self, name: str) -> Iterator[bytes]:
        with self._files.open(name) as file:
            while piece := file.read(CHUNK):
                yield piece


def mime_type_of(name: str, head: bytes) -> str:
    """Return the type of a file, by its first bytes, else by the ending of its name."""
    if head[:4] == b"RIFF" and head[8:12] in (b"WEBP", b"WAVE"):
        return "image/webp" if head[8:12] == b"WEBP" else "audio/wav"
    known = next((kind for beginning, kind in _BEGINNINGS if head.startswith(beginning)), None)
    return known or _TYPES.get(name.rpartition(".")[2].lower(), "application/octet-stream")


def modality_of(mime_type: str) -> str:
    kind = mime_type.partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "text"
