"""The layouts of snapshots in a bucket: names, formats and sealing.

There are three layouts. **Plain** is the shared form, `<id>.json`. **gtb** is the same, encrypted as other programs do
it: nonce, ciphertext, tag, and nothing that would say so. **hitherto** is our own, `<key>-<hash>.sealed`:

- its name has a keyed hash of the id, so that names tell nothing;
- it says with which key it was sealed, so that a wrong key is told from damage;
- every file has a key of its own, derived from a random salt and committed to: a file opens under one key, as one text;
- its two parts are bound to its name, to their lengths and to each other, so that none can be moved, cut or swapped;
- the first part is the summary, so that a listing reads the beginning of a file only.

`docs/snapshot-envelope.md` has it to the byte. Each layout reads and writes through a bucket; `_stores` chooses the
layout.
"""

import os
import re
import struct
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec.structs import replace

from ..errors import (
    Damaged,
    InvalidArgument,
    InvalidKey,
    KeyUnavailable,
    NewerFormat,
    NotSealed,
    PayloadTooLarge,
)
from ..keys import Key
from ._bucket import WHATEVER, Bucket, Content, Whatever
from ._media import FOLDER, protect, resolve
from ._prompts import with_prompt, without_prompt
from ._snapshot import _ID, Snapshot
from ._summaries import Summary, skim, summarise

if TYPE_CHECKING:
    from .._sealing.primitives import Cipher

_PURPOSE = b"hitherto/1 "
_TOO_LITTLE = 12 + 16  # bytes: nonce and tag around nothing
_ZEROS = bytes(32)

_BAD_HINT = "restore it from a backup, or delete the snapshot"
_KEY_HINT = "open the store with the key that it was sealed with"
_PLAIN_HINT = "read it with a store without a key, and save it here, if it is yours: somebody may have put it there"
_LARGE_HINT = "a larger max_bytes, given when the store is opened, allows it"


class Lock:
    """The key of a snapshot store, and the keys derived from it."""

    __slots__ = ("_key", "_names", "id")

    def __init__(self, key: bytes | Key) -> None:
        # Other programs seal with any 32 bytes. What was sealed with zeros can be read, and nothing more is.
        zeros = isinstance(key, bytes) and key == _ZEROS
        self._key: Key | None = None if zeros else key if isinstance(key, Key) else Key(key)
        self.id: bytes = self.derive(b"", _PURPOSE + b"key id", 8)
        self._names = self.derive(b"", _PURPOSE + b"snapshot names", 32)

    def __repr__(self) -> str:
        return "<Lock>"

    def derive(self, salt: bytes, purpose: bytes, length: int) -> bytes:
        if self._key is not None:
            return self._key._derive(salt, purpose, length)
        from .._sealing.primitives import derive  # noqa: PLC0415  # cryptography is loaded when something is sealed

        return derive(_ZEROS, salt, purpose, length)

    def check_known(self) -> None:
        """Raise an error if the key has been wiped."""
        if self._key is not None:
            self._key._reveal()

    def check(self) -> None:
        """Raise an error if the key must not be used for sealing."""
        if self._key is None:
            raise InvalidKey("32 zeros are not a key to seal with")

    def name(self, id: str) -> bytes:
        """Return a keyed hash of an id, 16 bytes."""
        from .._sealing.primitives import mac  # noqa: PLC0415  # see above

        return mac(self._names, id.encode())[:16]

    def bare(self) -> "Cipher":
        """Return a cipher of the key itself, as other programs use it."""
        from .._sealing.primitives import Cipher  # noqa: PLC0415  # see above

        return Cipher(_ZEROS if self._key is None else self._key._reveal())


class Layout(Protocol):
    """One way to store snapshots in a bucket."""

    def name_of(self, id: str) -> str: ...

    def has(self, name: str) -> bool:
        """Return True if the name is one of this layout."""
        ...

    def read(self, name: str) -> Snapshot | None:
        """Return the snapshot under this name, or None."""
        ...

    def skim(self, name: str) -> tuple[Summary, str] | None:
        """Return the summary and the tag of a snapshot, or None, without reading more than needed."""
        ...

    def write(self, snapshot: Snapshot, expect: str | Whatever | None = WHATEVER) -> None: ...


def too_large(size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(size, limit, what="snapshot", hint=_LARGE_HINT)


def _damage(name: str, why: str) -> Damaged:
    return Damaged(f"{name}: {why}", hint=_BAD_HINT)


def _fetch(bucket: Bucket, name: str, most: int, limit: int) -> Content | None:
    """Read an object. `limit` is the largest allowed snapshot, and `most` its largest stored size."""
    try:
        return bucket.get(name, most)
    except PayloadTooLarge as error:
        raise too_large(error.size, limit) from None


def _limit(data: bytes, most: int) -> bytes:
    if len(data) > most:
        raise too_large(len(data), most)
    return data


# -- files of the shared form


class PlainFiles:
    """`<id>.json`, the shared form as it is."""

    sealed = False

    def __init__(self, bucket: Bucket, most: int) -> None:
        self._bucket = bucket
        self._most = most

    def name_of(self, id: str) -> str:
        return f"{id}.json"

    def has(self, name: str) -> bool:
        return name.endswith(".json") and _ID.fullmatch(name, 0, len(name) - 5) is not None

    def read(self, name: str) -> Snapshot | None:
        content = self._fetch(name)
        if content is None:
            return None
        return self._whole(_read_snapshot(name, self._unseal(content.data, name), strict=True))

    def skim(self, name: str) -> tuple[Summary, str] | None:
        content = self._fetch(name)
        if content is None:
            return None
        found = self._whole(_read_snapshot(name, self._unseal(content.data, name), strict=False))
        return summarise(found, content.size), content.tag

    def _fetch(self, name: str) -> Content | None:
        return _fetch(self._bucket, name, self._most + _TOO_LITTLE, self._most)

    def _whole(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the media that it refers to, and without the system prompt among its messages."""
        text = resolve(snapshot.messages_json, self._media, self._most)
        return without_prompt(snapshot if text is snapshot.messages_json else replace(snapshot, messages_json=text))

    def _media(self, digits: str) -> bytes:
        name = FOLDER + digits
        content = self._fetch(name)
        if content is None:
            raise _damage(name[:18] + "…", "it is referred to, and not there")
        return self._unseal(content.data, name, anything=True)

    def write(self, snapshot: Snapshot, expect: str | Whatever | None = WHATEVER) -> None:
        snapshot = with_prompt(snapshot)
        text, media = protect(snapshot.messages_json)
        data = self._seal(_limit((replace(snapshot, messages_json=text) if media else snapshot).to_json(), self._most))
        for digits, said in media.items():
            self._bucket.put(FOLDER + digits, self._seal(said))
        self._bucket.put(self.name_of(snapshot.id), data, expect)

    def _unseal(self, data: bytes, name: str, *, anything: bool = False) -> bytes:
        if not anything and _looks_sealed(data):
            raise KeyUnavailable(f"{name} is sealed, and there is no key; or it is damaged", hint=_KEY_HINT)
        return data

    def _seal(self, data: bytes) -> bytes:
        return data


class GtbFiles(PlainFiles):
    """`<id>.json`, encrypted as a whole: nonce, ciphertext, tag. Whether the key is another one or the file is damaged
    cannot be told."""

    sealed = True

    def __init__(self, bucket: Bucket, most: int, lock: Lock) -> None:
        super().__init__(bucket, most)
        self._lock = lock

    def _unseal(self, data: bytes, name: str, *, anything: bool = False) -> bytes:
        from .._sealing.primitives import Forged  # noqa: PLC0415  # see above

        if not anything and _looks_plain(data):
            raise NotSealed(f"{name} is plain, and a key was given", hint=_PLAIN_HINT)
        if len(data) < _TOO_LITTLE:
            raise _damage(name, f"too short: {len(data)} bytes")
        try:
            return self._lock.bare().open(data, b"")
        except Forged:
            raise KeyUnavailable(f"{name}: the key is another one, or the file is damaged", hint=_KEY_HINT) from None

    def _seal(self, data: bytes) -> bytes:
        self._lock.check()
        return self._lock.bare().seal(data, b"")


def _read_snapshot(name: str, text: bytes, *, strict: bool) -> Snapshot:
    try:
        found = Snapshot.from_json(text) if strict else skim(text)
    except InvalidArgument as error:
        raise _damage(name, str(error)) from None
    if f"{found.id}.json" != name:
        raise _damage(name, "the snapshot in it has another id")
    return found


def _is_text(data: bytes) -> bool:
    """Return True if the bytes begin like text. Sealed bytes practically never do."""
    start = data[:64]
    for cut in range(4):  # the last character may not be whole
        try:
            return not re.search(r"[\x00-\x08\x0e-\x1f]", start[: len(start) - cut].decode())
        except UnicodeDecodeError:
            if len(data) <= 64:
                return False
    return False


def _looks_plain(data: bytes) -> bool:
    return data.lstrip(b" \t\r\n")[:1] == b"{" and _is_text(data)


def _looks_sealed(data: bytes) -> bool:
    # A file of zeros is what a crash leaves on some file systems.
    return len(data) >= _TOO_LITTLE and any(data[:12]) and not _is_text(data)


# -- our own envelope

SUFFIX: Final = ".sealed"
_MAGIC = b"\x93hth\r\n\x1a\n"
_VERSION = _SUITE = 1
_HEADER = struct.Struct(">8sBBBB8s32s32sIQ")  # magic, version, suite, kind, flags, key, salt, commitment, two lengths
_AT_ONCE = 4096  # bytes that are read for a summary; most need no more
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{32})\.sealed")
_BODY = struct.Struct(">BQ")  # squeezed, and the size before that
_PLAIN, _ZSTD = 0, 1
_LEAST = 512  # bytes; less is not worth squeezing
SNAPSHOT, CATALOG = 1, 2
_LABELS = {SNAPSHOT: (b"snapshot summary", b"snapshot body"), CATALOG: (b"catalog head", b"catalog")}


def key_in_name(name: str) -> str | None:
    """The id of the key in the name of a sealed file; None if it is no such name."""
    found = _NAME.fullmatch(name)
    return found[1] if found else None


def seal(lock: Lock, kind: int, place: bytes, first: bytes, second: bytes) -> bytes:
    """Seal two parts into an envelope."""
    from .._sealing.primitives import NONCE, TAG, Cipher  # noqa: PLC0415  # see above

    lock.check()
    salt = os.urandom(32)
    derived = lock.derive(salt, _PURPOSE + b"snapshot file", 64)
    cipher, commitment = Cipher(derived[:32]), derived[32:]
    lengths = (len(first) + NONCE + TAG, len(second) + NONCE + TAG)
    header = _HEADER.pack(_MAGIC, _VERSION, _SUITE, kind, 0, lock.id, salt, commitment, *lengths)
    labels = _LABELS[kind]
    return b"".join(
        (
            header,
            cipher.seal(first, _place(labels[0], header, place)),
            cipher.seal(second, _place(labels[1], header, place)),
        )
    )


def _place(label: bytes, header: bytes, place: bytes) -> bytes:
    return _PURPOSE + label + b"\x00" + header + place


class Envelope:
    """Reads an envelope or its beginning. The parts are decrypted on demand."""

    def __init__(self, lock: Lock, kind: int, place: bytes, content: Content, name: str) -> None:
        self._data, self._kind, self._at, self._name = content.data, kind, place, name
        self._header = content.data[: _HEADER.size]
        salt, commitment, self.first, self.second = self._parse_header(lock, content.size)
        derived = lock.derive(salt, _PURPOSE + b"snapshot file", 64)
        from .._sealing.primitives import Cipher, same  # noqa: PLC0415  # see above

        if not same(derived[32:], commitment):
            raise self._wrong("the header was changed")
        self._cipher = Cipher(derived[:32])

    def _parse_header(self, lock: Lock, size: int) -> tuple[bytes, bytes, int, int]:
        if len(self._header) < _HEADER.size:
            raise self._wrong("too short")
        magic, version, suite, kind, flags, key, salt, commitment, first, second = _HEADER.unpack(self._header)
        if magic != _MAGIC:
            raise self._wrong("it does not begin as what is sealed here does")
        if (version, suite, flags) != (_VERSION, _SUITE, 0):
            raise NewerFormat(f"{self._name} is sealed in version {version}, suite {suite}; {_VERSION} is known here")
        if key != lock.id:
            raise self._wrong("it is sealed with another key than its name says")
        if kind != self._kind or size != _HEADER.size + first + second:
            raise self._wrong("it was cut, or something was added")
        return salt, commitment, first, second

    @property
    def head(self) -> int:
        """The number of bytes that are needed to open the first part."""
        return _HEADER.size + self.first

    def open_first(self) -> bytes:
        return self._unseal(0, self._data[_HEADER.size : self.head])

    def open_second(self) -> bytes:
        return self._unseal(1, self._data[self.head :])

    def _unseal(self, part: int, data: bytes) -> bytes:
        from .._sealing.primitives import Forged  # noqa: PLC0415  # see above

        try:
            return self._cipher.open(data, _place(_LABELS[self._kind][part], self._header, self._at))
        except Forged:
            raise self._wrong("it was changed, or moved here from elsewhere") from None

    def _wrong(self, why: str) -> Damaged:
        return _damage(self._name, why)


class SealedFiles:
    """`<key>-<hash>.sealed`, our own envelope."""

    sealed = True

    def __init__(self, bucket: Bucket, most: int, lock: Lock) -> None:
        self._bucket = bucket
        self._lock = lock
        self._most = most
        self._most_stored = 2 * most + _AT_ONCE  # what is in the summary is in the body, too
        self._start = f"{lock.id.hex()}-"

    def name_of(self, id: str) -> str:
        return f"{self._start}{self._lock.name(id).hex()}{SUFFIX}"

    def has(self, name: str) -> bool:
        return name.startswith(self._start) and _NAME.fullmatch(name) is not None

    def write(self, snapshot: Snapshot, expect: str | Whatever | None = WHATEVER) -> None:
        text = _limit(snapshot._compact(), self._most)
        summary = msgspec.msgpack.encode(summarise(snapshot))
        data = seal(self._lock, SNAPSHOT, self._lock.name(snapshot.id), summary, compress_body(text))
        self._bucket.put(self.name_of(snapshot.id), data, expect)

    def read(self, name: str) -> Snapshot | None:
        content = _fetch(self._bucket, name, self._most_stored, self._most)
        if content is None:
            return None
        envelope = self._envelope(name, content)
        summary = self._summary(name, envelope, content.size)
        try:
            found = Snapshot.from_json(decompress_body(envelope.open_second(), self._most, name))
        except PayloadTooLarge:
            raise
        except InvalidArgument as error:
            raise _damage(name, str(error)) from None
        if found.id != summary.id:
            raise _damage(name, "the snapshot in it has another id")
        return found

    def skim(self, name: str) -> tuple[Summary, str] | None:
        content = self._bucket.get(name, _AT_ONCE, whole=False)
        if content is None:
            return None
        envelope = self._envelope(name, content)
        if envelope.head > len(content.data):
            content = self._bucket.get(name, min(envelope.head, self._most_stored), whole=False)
            if content is None:
                return None
            envelope = self._envelope(name, content)
        return self._summary(name, envelope, content.size), content.tag

    def _envelope(self, name: str, content: Content) -> Envelope:
        found = _NAME.fullmatch(name)
        return Envelope(self._lock, SNAPSHOT, bytes.fromhex(found[2]) if found else b"", content, name)

    def _summary(self, name: str, envelope: Envelope, size: int) -> Summary:
        opened = envelope.open_first()
        try:
            summary = msgspec.msgpack.decode(opened, type=Summary)
        except msgspec.MsgspecError:
            raise _damage(name, "its summary cannot be read") from None
        if self.name_of(summary.id) != name:
            raise _damage(name, "the snapshot in it has another id")
        return replace(summary, size=size)


def compress_body(data: bytes) -> bytes:
    """Compress a body if that makes it smaller. Returns it with a header that holds its original size."""
    if len(data) > _LEAST:
        import zstandard  # noqa: PLC0415  # loaded when something is sealed

        smaller = zstandard.ZstdCompressor(level=3).compress(data)
        if len(smaller) < len(data):
            return _BODY.pack(_ZSTD, len(data)) + smaller
    return _BODY.pack(_PLAIN, len(data)) + data


def decompress_body(data: bytes, most: int, name: str) -> bytes:
    """Decompress a body. Never returns more than `most` bytes: the size in its header is untrusted."""
    if len(data) < _BODY.size:
        raise _damage(name, "too short")
    how, size = _BODY.unpack_from(data)
    if size > most:
        raise too_large(size, most)
    rest = memoryview(data)[_BODY.size :]
    found = _unpack_zstd(rest, size) if how == _ZSTD else bytes(rest) if how == _PLAIN else None
    if found is None or len(found) != size:
        raise _damage(name, "its content is not as long as it says")
    return found


def _unpack_zstd(data: memoryview, size: int) -> bytes | None:
    import zstandard  # noqa: PLC0415  # see above

    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data) as reader:
            return bytes(reader.read(size + 1))
    except zstandard.ZstdError:
        return None
