"""The cryptographic primitives, held against published vectors, and against somebody who changes what was sealed.

The vectors of Project Wycheproof are in `tests/data/vectors`; those of NIST's GCM
submission, RFC 5869 and RFC 4231 stand here.

Requirements: A7, D6, D7, D21.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher as RawCipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from hitherto._sealing import primitives
from hitherto._sealing.primitives import Cipher, Forged

WYCHEPROOF = Path(__file__).parents[1] / "data" / "vectors" / "wycheproof"


class Trusting(Cipher):
    """What opens without looking at the tag: the control of every test about tampering."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self._key = key

    def open(self, sealed: bytes, place: bytes) -> bytes:
        nonce, text = sealed[: primitives.NONCE], sealed[primitives.NONCE : -primitives.TAG]
        return RawCipher(AES(self._key), CTR(nonce + b"\0\0\0\2")).decryptor().update(text)


class Placeless(Cipher):
    """What forgets where something was sealed."""

    __slots__ = ()

    def seal(self, data: bytes, place: bytes, nonce: bytes | None = None) -> bytes:
        return super().seal(data, b"", nonce)

    def open(self, sealed: bytes, place: bytes) -> bytes:
        return super().open(sealed, b"")


# -- AES-256-GCM

PLAIN = (
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
    "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255"
)
CIPHERED = (
    "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
    "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad"
)
# Test cases 13 to 16 of "The Galois/Counter Mode of Operation", McGrew and Viega: key, nonce, text, place, sealed, tag.
NIST = [
    ("00" * 32, "00" * 12, "", "", "", "530f8afbc74536b9a963b4f1c4cb738b"),
    ("00" * 32, "00" * 12, "00" * 16, "", "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"),
    ("feffe9928665731c6d6a8f9467308308" * 2, "cafebabefacedbaddecaf888", PLAIN, "", CIPHERED,
     "b094dac5d93471bdec1a502270e3cc6c"),
    ("feffe9928665731c6d6a8f9467308308" * 2, "cafebabefacedbaddecaf888", PLAIN[:120],
     "feedfacedeadbeeffeedfacedeadbeefabaddad2", CIPHERED[:120], "76fc6ece0f4e1768cddf8853bb2d551b"),
]  # fmt: skip


@pytest.mark.parametrize("vector", NIST)
def test_sealing_makes_what_nist_published_and_opening_brings_it_back(vector: tuple[str, ...]) -> None:
    key, nonce, text, place, ciphered, tag = map(bytes.fromhex, vector)
    cipher = Cipher(key)
    assert cipher.seal(text, place, nonce) == nonce + ciphered + tag
    assert cipher.open(nonce + ciphered + tag, place) == text


def holds_against_wycheproof(kind: Callable[[bytes], Cipher]) -> dict[str, int]:
    """Every vector does what it says with this cipher; how many of each sort there were."""
    groups: list[dict[str, Any]] = json.loads((WYCHEPROOF / "aes_gcm_test.json").read_text())["testGroups"]
    seen = {"valid": 0, "invalid": 0, "key size": 0, "nonce size": 0}
    for group in groups:
        for test in group["tests"]:
            key, nonce, place, text, ciphered, tag = (
                bytes.fromhex(test[name]) for name in ("key", "iv", "aad", "msg", "ct", "tag")
            )
            sealed = nonce + ciphered + tag
            if len(key) != 32:
                seen["key size"] += 1
                with pytest.raises(ValueError, match="32 bytes"):
                    kind(key)
                continue
            cipher = kind(key)
            if len(nonce) != 12:
                seen["nonce size"] += 1
                with pytest.raises(ValueError, match="12 bytes"):
                    cipher.seal(text, place, nonce)
                assert not opens(cipher, sealed, place), test["tcId"]
                continue
            seen[test["result"]] += 1
            if test["result"] == "valid":
                assert cipher.seal(text, place, nonce) == sealed, test["tcId"]
                assert cipher.open(sealed, place) == text, test["tcId"]
            else:
                assert not opens(cipher, sealed, place), test["tcId"]
    return seen


def opens(cipher: Cipher, sealed: bytes, place: bytes) -> bool:
    try:
        cipher.open(sealed, place)
    except Forged:
        return False
    return True


def test_every_vector_of_wycheproof_is_opened_or_refused_as_it_says() -> None:
    seen = holds_against_wycheproof(Cipher)
    assert sum(seen.values()) == 316
    assert min(seen.values()) > 25, seen  # none of the sorts is missing


@pytest.mark.parametrize("kind", [Trusting, Placeless])
def test_the_vectors_of_wycheproof_notice_a_cipher_that_checks_less(kind: type[Cipher]) -> None:
    with pytest.raises(AssertionError):
        holds_against_wycheproof(kind)


def refuses_all_tampering(cipher: Cipher, other: Cipher) -> None:
    """No bit, no byte more or less, no other place or key goes unnoticed."""
    sealed = cipher.seal(b"what was said", b"here")
    assert cipher.open(sealed, b"here") == b"what was said"
    for bit in range(len(sealed) * 8):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not opens(cipher, bytes(flipped), b"here"), f"bit {bit}"
    for cut in range(len(sealed)):
        assert not opens(cipher, sealed[:cut], b"here"), f"cut to {cut}"
        assert not opens(cipher, sealed[cut + 1 :], b"here"), f"without the first {cut + 1}"
    assert not opens(cipher, sealed + b"\0", b"here")
    for place in (b"", b"her", b"here\0", b"there"):
        assert not opens(cipher, sealed, place), place
    assert not opens(other, sealed, b"here")


def test_nothing_that_was_changed_is_opened() -> None:
    refuses_all_tampering(Cipher(os.urandom(32)), Cipher(os.urandom(32)))


@pytest.mark.parametrize("kind", [Trusting, Placeless])
def test_a_cipher_that_checks_less_is_noticed(kind: type[Cipher]) -> None:
    """The control of the test above."""
    with pytest.raises(AssertionError):
        refuses_all_tampering(kind(os.urandom(32)), kind(os.urandom(32)))


def test_a_forgery_does_not_carry_the_library_s_exception_along() -> None:
    with pytest.raises(Forged) as caught:
        Cipher(os.urandom(32)).open(bytes(40), b"")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_same_text_never_looks_the_same_twice() -> None:
    cipher = Cipher(os.urandom(32))
    sealed = {cipher.seal(b"the same", b"here") for _ in range(500)}
    assert len(sealed) == 500
    assert len({one[: primitives.NONCE] for one in sealed}) == 500
    assert {len(one) for one in sealed} == {12 + 8 + 16}


@pytest.mark.parametrize("size", [0, 1, 16, 24, 31, 33, 64])
def test_a_cipher_takes_a_key_of_32_bytes_and_no_other(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Cipher(bytes(size))


@pytest.mark.parametrize("size", [0, 8, 11, 13, 16])
def test_a_nonce_has_12_bytes_and_no_other_number(size: int) -> None:
    with pytest.raises(ValueError, match="12 bytes"):
        Cipher(bytes(32)).seal(b"", b"", bytes(size))


# -- deriving and hashing

# RFC 5869, A.1 to A.3: secret, salt, purpose, length, derived.
RFC_5869 = [
    ("0b" * 22, "000102030405060708090a0b0c", "f0f1f2f3f4f5f6f7f8f9", 42,
     "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"),
    (bytes(range(0x50)).hex(), bytes(range(0x60, 0xB0)).hex(), bytes(range(0xB0, 0x100)).hex(), 82,
     ("b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09"
      "da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87")),
    ("0b" * 22, "", "", 42,
     "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"),
]  # fmt: skip


@pytest.mark.parametrize("vector", RFC_5869)
def test_deriving_makes_what_rfc_5869_says(vector: tuple[str, str, str, int, str]) -> None:
    secret, salt, purpose, length, derived = vector
    made = primitives.derive(bytes.fromhex(secret), bytes.fromhex(salt), bytes.fromhex(purpose), length)
    assert made.hex() == derived


Derive = Callable[[bytes, bytes, bytes, int], bytes]


def derives_as_wycheproof_says(derive: Derive) -> int:
    groups: list[dict[str, Any]] = json.loads((WYCHEPROOF / "hkdf_sha256_test.json").read_text())["testGroups"]
    tests = [test for group in groups for test in group["tests"]]
    for test in tests:
        secret, salt, purpose = (bytes.fromhex(test[name]) for name in ("ikm", "salt", "info"))
        if test["result"] == "valid":
            assert derive(secret, salt, purpose, test["size"]).hex() == test["okm"], test["tcId"]
        else:
            with pytest.raises(ValueError, match=r"[Ll]ength|large"):
                derive(secret, salt, purpose, test["size"])
    return len(tests)


def test_deriving_makes_what_wycheproof_says_and_refuses_what_it_refuses() -> None:
    assert derives_as_wycheproof_says(primitives.derive) == 86


def test_the_vectors_notice_a_derivation_that_forgets_the_purpose() -> None:
    def forgetful(secret: bytes, salt: bytes, _: bytes, length: int) -> bytes:
        return primitives.derive(secret, salt, b"", length)

    with pytest.raises(AssertionError):
        derives_as_wycheproof_says(forgetful)


def test_a_derived_key_has_32_bytes_and_depends_on_secret_salt_and_purpose() -> None:
    made = {
        primitives.derive(secret, salt, purpose)
        for secret in (b"a" * 32, b"b" * 32)
        for salt in (b"", b"s")
        for purpose in (b"p", b"q")
    }
    assert len(made) == 8
    assert {len(one) for one in made} == {32}


def test_the_mac_is_hmac_sha256_whole_and_in_pieces() -> None:
    """RFC 4231, test case 2."""
    key, data = b"Jefe", b"what do ya want for nothing?"
    expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    assert primitives.mac(key, data).hex() == expected
    running = primitives.running_mac(key)
    for piece in (data[:5], b"", data[5:]):
        running.update(piece)
    assert running.hexdigest() == expected


def test_a_weight_is_a_number_of_128_bits_that_depends_on_key_and_data() -> None:
    weights = {primitives.weight(key, data) for key in (b"k" * 32, b"l" * 32) for data in (b"", b"a", b"b")}
    assert len(weights) == 6
    assert all(0 <= one < 1 << 128 for one in weights)
    assert max(weights) > 1 << 100
    assert primitives.weight(b"k" * 32, b"a") == primitives.weight(b"k" * 32, b"a")


def test_the_same_is_the_same_and_nothing_else_is() -> None:
    assert primitives.same(b"abc", b"abc")
    assert not primitives.same(b"abc", b"abd")
    assert not primitives.same(b"abc", b"ab")


def test_random_keys_have_32_bytes_and_are_never_alike() -> None:
    made = {primitives.random_key() for _ in range(100)}
    assert len(made) == 100
    assert {len(one) for one in made} == {32}
