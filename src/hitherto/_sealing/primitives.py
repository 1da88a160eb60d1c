"""Every cryptographic primitive that hitherto uses, in one place; what is built from them is in `sealed`.

AES-256-GCM with a random nonce of 96 bits, HKDF-SHA256, HMAC-SHA256, and BLAKE2b with a key where one keyed hash per
write has to be cheap. Loading this module loads `cryptography`, so it is imported where a store is sealed, and nowhere
else.
"""

import hashlib
import hmac
import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

KEY, NONCE, TAG = 32, 12, 16  # bytes
_LARGE = 16_384  # a copy of so much takes longer than a view of it


class Forged(Exception):
    """These bytes were not sealed with this key at this place."""


class Cipher:
    """AES-256-GCM under one key."""

    __slots__ = ("_decrypt", "_encrypt")

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY:
            raise ValueError("a key of AES-256 has 32 bytes")
        cipher = AESGCM(key)
        self._encrypt, self._decrypt = cipher.encrypt, cipher.decrypt

    def seal(self, data: bytes, place: bytes, nonce: bytes | None = None) -> bytes:
        """Nonce, ciphertext, tag. The nonce is random; only vectors choose one."""
        if nonce is None:
            nonce = os.urandom(NONCE)
        elif len(nonce) != NONCE:
            raise ValueError("a nonce has 12 bytes")
        return nonce + self._encrypt(nonce, data, place)

    def open(self, sealed: bytes, place: bytes) -> bytes:
        """Return the data that was sealed at this place. Raises `Forged`."""
        if len(sealed) < NONCE + TAG:
            raise Forged
        try:
            rest = sealed[NONCE:] if len(sealed) < _LARGE else memoryview(sealed)[NONCE:]
            return self._decrypt(sealed[:NONCE], rest, place)
        except InvalidTag:
            raise Forged from None


def derive(secret: bytes, salt: bytes, purpose: bytes, length: int = KEY) -> bytes:
    """HKDF-SHA256: a key for one purpose from another."""
    return HKDF(SHA256(), length, salt, purpose).derive(secret)


def mac(key: bytes, data: bytes) -> bytes:
    """HMAC-SHA256."""
    return hmac.digest(key, data, "sha256")


def running_mac(key: bytes) -> "hmac.HMAC":
    """The same, for data that comes in pieces."""
    return hmac.new(key, digestmod="sha256")


def weight(key: bytes, data: bytes) -> int:
    """A keyed hash as a number of 128 bits: BLAKE2b."""
    return int.from_bytes(hashlib.blake2b(data, key=key, digest_size=16).digest(), "big")


def same(a: bytes, b: bytes) -> bool:
    """Are they equal? In constant time."""
    return hmac.compare_digest(a, b)


def random_key() -> bytes:
    return os.urandom(KEY)
