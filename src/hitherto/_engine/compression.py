"""Compression: packs and chunks on their way to the codec, and back.

zstd with a dictionary that ships in this package, because a few short messages are too little to learn from. The
dictionary is made from synthetic text by `scripts/train_dictionary.py`, and never from what a user keeps: that would
survive a purge. A released dictionary never changes. Each frame names the one it was made with. From 16 KiB on there
is enough to learn from: a dictionary then makes nothing smaller, and compressing takes twice as long with it.

Messages are not compressed one by one when they are appended: that would make appending slower, and the pack that they
soon become is smaller than they would be together.

Compressed content begins with zstd's magic number. A pack is a msgpack list and never does, so no other mark is needed.
"""

import os
import threading
from functools import cache
from typing import TYPE_CHECKING

from ..errors import Damaged

if TYPE_CHECKING:
    import zstandard

_MIN_BYTES = 512  # bytes; less is not worth the time
_ALONE = 16 << 10  # bytes, from which on no dictionary helps
_MAX_CONTENT_BYTES = 1 << 28  # of one piece of content; a frame that claims more is damaged

_MAGIC = b"\x28\xb5\x2f\xfd"
_NAMED = 3  # bits of the byte behind it that are set if a frame names its dictionary
_DICTIONARY = "dictionary-1.zstd"


@cache
def _dictionary() -> bytes:
    with open(os.path.join(os.path.dirname(__file__), _DICTIONARY), "rb") as file:
        return file.read()


class _Tools(threading.local):
    """One set for each thread: compressors may not be shared, and a dictionary object serves one level."""

    def __init__(self) -> None:
        self._compressors: dict[tuple[int, bool], zstandard.ZstdCompressor] = {}
        self._decompressors: dict[bool, zstandard.ZstdDecompressor] = {}

    def compressor(self, level: int, *, alone: bool = False) -> "zstandard.ZstdCompressor":
        """`alone`: without the dictionary."""
        found = self._compressors.get((level, alone))
        if found is None:
            import zstandard  # noqa: PLC0415  # short messages do without it

            dictionary = None if alone else zstandard.ZstdCompressionDict(_dictionary())
            found = self._compressors[level, alone] = zstandard.ZstdCompressor(level=level, dict_data=dictionary)
        return found

    def decompressor(self, *, alone: bool) -> "zstandard.ZstdDecompressor":
        found = self._decompressors.get(alone)
        if found is None:
            import zstandard  # noqa: PLC0415  # see above

            dictionary = None if alone else zstandard.ZstdCompressionDict(_dictionary())
            found = self._decompressors[alone] = zstandard.ZstdDecompressor(dict_data=dictionary)
        return found


_tools = _Tools()


def compress(data: bytes, *, level: int) -> bytes:
    """Return the content compressed, or as it is if that would not save anything."""
    if len(data) <= _MIN_BYTES:
        return data
    smaller = _tools.compressor(level, alone=len(data) >= _ALONE).compress(data)
    return smaller if len(smaller) < len(data) else data


def decompress(data: bytes) -> bytes:
    """Return the content as it was; `Damaged` if that is impossible."""
    if data[:4] != _MAGIC:
        return data
    import zstandard  # noqa: PLC0415  # see above

    try:
        if not 0 <= zstandard.frame_content_size(data) <= _MAX_CONTENT_BYTES:
            raise Damaged("squeezed content has no size that could be")
        return _tools.decompressor(alone=not data[4] & _NAMED).decompress(data)
    except zstandard.ZstdError as error:
        raise Damaged(f"squeezed content cannot be read: {error}") from None
