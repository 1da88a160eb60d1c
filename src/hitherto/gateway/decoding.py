"""Decompress the copy of a body, piece by piece.

Programs and providers agree on an encoding between them, and the bytes that pass through stay as they are. Only what is
kept is decoded.
"""

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

import zstandard

__all__ = ["CannotDecode", "Decoder", "decode", "open_decoder"]

MAX_DECODED_BYTES = 512 << 20  # of one body: a small body may decompress to any size


class CannotDecode(Exception):
    """The body is in an encoding that is not known here, or is damaged."""


class _Decompressor(Protocol):
    def decompress(self, data: bytes, /) -> bytes: ...


class Decoder:
    """Decodes a body that was encoded in one or several ways."""

    def __init__(self, steps: list[_Decompressor]) -> None:
        self._steps = steps
        self._size = 0

    def feed(self, data: bytes) -> bytes:
        for step in self._steps:
            try:
                data = step.decompress(data)
            except Exception as error:  # noqa: BLE001  # each library has an error of its own
                raise CannotDecode(f"the body is damaged: {type(error).__name__}") from None
        self._size += len(data)
        if self._steps and self._size > MAX_DECODED_BYTES:
            raise CannotDecode(f"the body decompresses to more than {MAX_DECODED_BYTES >> 20} MiB")
        return data


class _Deflate:
    """`deflate` is zlib's format, and with some servers the bare one."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj()
        self._is_first = True

    def decompress(self, data: bytes, /) -> bytes:
        try:
            return self._inner.decompress(data)
        except zlib.error:
            if not self._is_first:
                raise
            self._inner = zlib.decompressobj(-zlib.MAX_WBITS)
            return self._inner.decompress(data)
        finally:
            self._is_first = False


class _Brotli:
    def __init__(self) -> None:
        self._inner = _brotli().Decompressor()

    def decompress(self, data: bytes, /) -> bytes:
        made: bytes = self._inner.process(data)
        return made


def _brotli() -> Any:
    """Return one of the two libraries that read brotli. They have no types."""
    for name in ("brotli", "brotlicffi"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise CannotDecode("brotli is not installed: pip install brotli")


def _gzip() -> _Decompressor:
    return zlib.decompressobj(16 + zlib.MAX_WBITS)


def _zstd() -> _Decompressor:
    return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj(read_across_frames=True)


_ENCODINGS: dict[str, Callable[[], _Decompressor]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": _zstd,
}


def open_decoder(content_encoding: str) -> Decoder:
    """Return a decoder for the value of a Content-Encoding header. Raises `CannotDecode` if there is none."""
    names = [name.strip().lower() for name in content_encoding.split(",")]
    steps = [name for name in names if name not in ("", "identity")]
    unknown = [name for name in steps if name not in _ENCODINGS]
    if unknown:
        raise CannotDecode(f"the content encoding {unknown[0]!r:.30} is not known")
    return Decoder([_ENCODINGS[name]() for name in reversed(steps)])


def decode(data: bytes, content_encoding: str) -> bytes:
    """Decode a whole body."""
    return open_decoder(content_encoding).feed(data) if content_encoding else data
