"""Reads compressed files (zstandard) as streams.

How much may come out is bounded by the size of the file, and a file that was cut off is damaged, not short.
"""

import io
from typing import IO

from ...errors import Damaged

MAGIC = b"\x28\xb5\x2f\xfd"
_SWELLS = 1000  # times as large a file may become, beside the first megabytes
_ALWAYS = 1 << 27
_BEGINNING = 1 << 16  # bytes that a format may look at
_FED = 1024  # bytes
_CUT_OFF = "the compressed file cannot be read to its end"


def beginning(head: bytes) -> bytes:
    """Return the beginning of a file, decompressed if it is compressed. A damaged one has none."""
    if not head.startswith(MAGIC):
        return head
    found = b""
    try:
        stream = decompressed(io.BytesIO(head), len(head))
        while len(found) < _BEGINNING and (piece := stream.read1(_BEGINNING)):
            found += piece
    except Damaged:  # the head of a file ends anywhere
        pass
    return found


def decompressed(file: IO[bytes], size: int) -> io.BufferedReader:
    """Return a stream of the content of a file that has `size` bytes. Raises `Damaged` where it cannot be read."""
    return io.BufferedReader(_Decompressed(file, _SWELLS * size + _ALWAYS), 1 << 18)


class _Decompressed(io.RawIOBase):
    """Decompresses frame after frame. Input is fed in small pieces: a few bytes of it may become very many."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        import zstandard  # noqa: PLC0415  # as above

        self._file, self._left, self._error = file, most, zstandard.ZstdError
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        self._frame = self._decompressor.decompressobj()
        self._is_fed = False
        self._found = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]  # a buffer is one of these
        while not self._found and (piece := self._file.read(_FED)):
            self._found = self._decompress(piece)
        if not self._found and self._is_fed:
            raise Damaged(_CUT_OFF, hint="fetch it again")
        data, self._found = self._found[: len(buffer)], self._found[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def _decompress(self, piece: bytes) -> bytes:
        found = b""
        try:
            while piece:
                found += self._frame.decompress(piece)
                piece, self._is_fed = self._frame.unused_data, not self._frame.eof
                if self._frame.eof:
                    self._frame = self._decompressor.decompressobj()
        except self._error:
            raise Damaged(_CUT_OFF, hint="fetch it again") from None
        self._left -= len(found)
        if self._left < 0:
            raise Damaged("the compressed file holds far more than its size allows for", hint="decompress it yourself")
        return found

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
