"""What lies in a bucket, to the byte: as other programs write and read it, and in our own envelope.

The encoders and decoders here share no code with the library: they use the cipher, the derivation and the compression
as they come. Requirements: A7, A11, D6.
"""

import contextlib
import hashlib
import hmac
import json
import os
import struct
import uuid
from pathlib import Path

import msgspec
import pytest
import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from hitherto import Key
from hitherto.errors import (
    Damaged,
    HithertoError,
    KeyUnavailable,
    NewerFormat,
    NotFound,
    PayloadTooLarge,
)
from hitherto.snapshots import FileStore, MemoryFiles, Snapshot, _file_layouts
from hitherto.snapshots._media import protect, references, resolve

from ..support.foreign_files import write_gtb

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
ID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def some(text: str = "Hello", **metadata: str) -> Snapshot:
    return Snapshot.new("claude", "m", "S", [{"role": "user", "content": text}], (), metadata)


def fields(**changes: object) -> dict[str, object]:
    found: dict[str, object] = {"id": ID, "provider": "gemini", "model": "m", "messages": [{"role": "user"}]}
    return found | {"created_at": "2026-02-03T04:05:06.7Z", "version": 1} | changes


def sealed_by_others(data: bytes, key: bytes = KEY) -> bytes:
    nonce = os.urandom(12)
    return nonce + AESGCM(key).encrypt(nonce, data, None)


def opened_by_others(data: bytes, key: bytes = KEY) -> bytes:
    return AESGCM(key).decrypt(data[:12], data[12:], None)


# -- as other programs do it


def test_a_plain_file_is_the_snapshot_to_the_byte(tmp_path: Path) -> None:
    snapshot = some()
    FileStore(tmp_path).save(snapshot)
    assert (tmp_path / f"{snapshot.id}.json").read_bytes() == snapshot.to_json()


def test_what_we_seal_for_others_they_open(tmp_path: Path) -> None:
    snapshot = some()
    FileStore(tmp_path, KEY, layout="gtb").save(snapshot)
    data = (tmp_path / f"{snapshot.id}.json").read_bytes()
    assert opened_by_others(data) == snapshot.to_json()
    FileStore(tmp_path, KEY, layout="gtb").save(snapshot)
    assert (tmp_path / f"{snapshot.id}.json").read_bytes()[:12] != data[:12]


def test_what_others_seal_we_open(tmp_path: Path) -> None:
    text = json.dumps(fields(messages=[{"n": 12345678901234567890, "f": 1e5}]), indent=7).encode()
    (tmp_path / f"{ID}.json").write_bytes(sealed_by_others(text))
    for store in (FileStore(tmp_path, KEY), FileStore(tmp_path, KEY, layout="gtb")):
        assert store.load(ID).messages_json == '[{"n":12345678901234567890,"f":100000.0}]'
        assert store.list()[0].revision == store.load(ID).revision


def test_what_others_sealed_with_zeros_can_be_read(tmp_path: Path) -> None:
    (tmp_path / f"{ID}.json").write_bytes(sealed_by_others(json.dumps(fields()).encode(), bytes(32)))
    assert FileStore(tmp_path, bytes(32)).load(ID).id == ID


def test_what_is_wrong_with_a_file_of_others_is_told_apart(tmp_path: Path) -> None:
    store = FileStore(tmp_path, KEY, layout="gtb")
    file = tmp_path / f"{ID}.json"
    good = sealed_by_others(json.dumps(fields()).encode())
    cases: list[tuple[bytes, type[HithertoError], str]] = [
        (b"", Damaged, "short"),
        (good[:27], Damaged, "short"),
        (good[:-1], KeyUnavailable, "another one, or .* damaged"),
        (good[:20] + bytes((good[20] ^ 1,)) + good[21:], KeyUnavailable, "another one, or .* damaged"),
        (sealed_by_others(json.dumps(fields()).encode(), OTHER), KeyUnavailable, "another one, or .* damaged"),
        (sealed_by_others(b"no JSON"), Damaged, "not JSON"),
        (sealed_by_others(b""), Damaged, "not JSON"),
        (sealed_by_others(b"\xff\xfe"), Damaged, "UTF-8"),
        (sealed_by_others(json.dumps(fields(id=str(uuid.uuid4()))).encode()), Damaged, "another id"),
        (sealed_by_others(json.dumps(fields(version=7)).encode()), NewerFormat, "7"),
    ]
    for data, error, said in cases:
        file.write_bytes(data)
        with pytest.raises(error, match=said) as caught:
            store.load(ID)
        assert type(caught.value) is error
        assert caught.value.hint
    file.unlink()
    with pytest.raises(NotFound):
        store.load(ID)


def test_the_files_of_other_programs_are_read_and_written_again_to_the_same_bytes(tmp_path: Path) -> None:
    vectors = write_gtb(tmp_path / "gtb")
    plain = {file.stem: file.read_bytes() for file in vectors.glob("plain*/*.json")}
    for folder, key in (("plain", None), ("plain_media", None), ("aes256gcm", KEY)):
        there = FileStore(vectors / folder, key, layout="gtb")
        listing = there.list()
        assert {one.id for one in listing} == {file.stem for file in (vectors / folder).glob("*.json")}
        assert listing.unreadable == ()
        here = FileStore(tmp_path / folder, key, layout="gtb")
        for one in listing:
            snapshot = there.load(one.id)
            assert snapshot.revision == one.revision
            here.save(snapshot)
            assert here.load(one.id) == snapshot
            assert b"chatmedia" not in snapshot.to_json()
            data = (tmp_path / folder / f"{one.id}.json").read_bytes()
            if not list((vectors / folder).glob("media")) or b"chatmedia" not in plain[one.id]:
                assert (opened_by_others(data) if key else data) == plain[one.id]


# -- media


def reference(content: bytes) -> str:
    return f"chatmedia+sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.mark.parametrize("key", [None, KEY])
def test_media_is_put_where_it_is_referred_to_and_no_other_byte_is_changed(tmp_path: Path, key: bytes | None) -> None:
    picture, note = b"QUJD" * 400, 'a "quoted" <line>\n\x00 é 🌻'.encode()
    escaped = reference(picture).replace("+", "\\u002b")
    text = (
        f'{{"id": "{ID}", "provider": "gemini", "messages": [{{"data": "{reference(picture)}", "n": 1.50,\n'
        f'"m": [1E5, "{reference(note)}", "{reference(picture)} ", "x\\"{reference(picture)}"],'
        f' "{reference(picture)}": "{escaped}"}}],'
        f'"system_prompt": "{reference(picture)}", "created_at": "2026-02-03T04:05:06Z", "version": 1}}'
    ).encode()
    (tmp_path / "media").mkdir()
    for content in (picture, note):
        name = hashlib.sha256(content).hexdigest()
        (tmp_path / "media" / name).write_bytes(sealed_by_others(content) if key else content)
    (tmp_path / f"{ID}.json").write_bytes(sealed_by_others(text) if key else text)
    store = FileStore(tmp_path, key, layout="gtb")
    found = store.load(ID)
    said = json.dumps(note.decode(), ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e")
    assert found.messages_json == (
        f'[{{"data":"{picture.decode()}","n":1.50,"m":[1E5,{said},"{reference(picture)} ",'
        f'"x\\"{reference(picture)}"],"{reference(picture)}":"{picture.decode()}"}}]'
    )
    assert found.system_prompt == reference(picture)
    (summary,) = store.list()
    assert (summary.revision, summary.message_count) == (found.revision, 1)


def test_media_that_is_missing_or_not_what_its_name_says_is_an_error(tmp_path: Path) -> None:
    data = json.dumps(fields(messages=[{"a": reference(b"text")}])).encode()
    (tmp_path / f"{ID}.json").write_bytes(data)
    store = FileStore(tmp_path)
    good = some()
    store.save(good)

    def check(said: str) -> None:
        with pytest.raises(Damaged, match=said) as caught:
            store.load(ID)
        assert caught.value.hint
        listing = store.list()
        assert ([one.id for one in listing], len(listing.unreadable)) == ([good.id], 1)

    check("not there")
    file = tmp_path / "media" / hashlib.sha256(b"text").hexdigest()
    file.parent.mkdir()
    for content in (b"", b"tex", b"other"):
        file.write_bytes(content)
        check("not what its name says")
    (tmp_path / f"{ID}.json").write_bytes(json.dumps(fields(messages=[{"a": reference(b"\xff")}])).encode())
    (tmp_path / "media" / hashlib.sha256(b"\xff").hexdigest()).write_bytes(b"\xff")
    check("not text")
    file.unlink()
    (tmp_path / f"{ID}.json").write_bytes(data)
    file.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_bytes(b"text")
    check("link")
    file.unlink()
    file.write_bytes(b"text")
    assert store.load(ID).messages == [{"a": "text"}]


def test_one_reference_made_many_times_is_bounded(tmp_path: Path) -> None:
    content = b"x" * 100_000
    many = [{"a": reference(content)}] * 20_000
    (tmp_path / f"{ID}.json").write_bytes(json.dumps(fields(messages=many)).encode())
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / hashlib.sha256(content).hexdigest()).write_bytes(content)
    store = FileStore(tmp_path, max_bytes=1 << 24)
    with pytest.raises(Damaged, match="larger"):
        store.load(ID)
    assert len(store.list().unreadable) == 1


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("escaped", [False, True])
def test_what_merely_looks_like_a_reference_comes_back_as_it_was(
    tmp_path: Path, key: bytes | None, escaped: bool
) -> None:
    said = reference(b"nothing that is kept")
    nested = reference(said.encode())
    snapshot = Snapshot.new("claude", "m", said, [{"a": said, said: [said, nested]}], (), {"a": said})
    if escaped:
        text = snapshot.messages_json.replace("chatmedia", "ch\\u0061tmedia")
        snapshot = msgspec.structs.replace(snapshot, messages_json=text)
    store = FileStore(tmp_path, key, layout="gtb")
    store.save(snapshot)
    assert store.load(snapshot.id) == snapshot
    assert store.save(snapshot, expect=snapshot) == store.list()[0].revision == snapshot.revision
    assert (store.load(snapshot.id).system_prompt, store.load(snapshot.id).metadata) == (said, {"a": said})
    data = (tmp_path / f"{snapshot.id}.json").read_bytes()
    text = (opened_by_others(data) if key else data).decode()
    # As others read it: each text in the messages that is a reference stands for what it refers to.
    (entry,) = json.loads(text)["messages"]
    for written, wanted in zip(
        (entry["a"], *next(v for k, v in entry.items() if k != "a")), (said, said, nested), strict=True
    ):
        assert written != wanted
        file = (tmp_path / "media" / written.removeprefix("chatmedia+sha256:")).read_bytes()
        assert (opened_by_others(file) if key else file).decode() == wanted


@settings(max_examples=50)
@given(st.sets(st.integers(0, 80)), st.booleans())
def test_what_looks_like_a_reference_comes_back_with_the_escapes_that_it_was_written_with(
    places: set[int], large: bool
) -> None:
    said = reference(b"nothing that is kept")
    escape = "\\u{:04X}" if large else "\\u{:04x}"
    token = "".join(escape.format(ord(c)) if n in places else c for n, c in enumerate(said))
    text = f'[{{"a":"{token}","b":["{said}","{token}"]}}]'
    snapshot = msgspec.structs.replace(some(), messages_json=text)
    store = FileStore("x", fs=MemoryFiles())
    store.save(snapshot)
    assert store.load(snapshot.id).messages_json == text
    assert store.save(snapshot, expect=snapshot) == snapshot.revision


def test_in_our_own_layout_a_reference_means_nothing() -> None:
    snapshot = some(reference(b"nothing"))
    store = FileStore("x", KEY, fs=MemoryFiles())
    store.save(snapshot)
    assert store.load(snapshot.id) == snapshot
    assert list(store._bucket.things("media/")) == []


TEXTS = st.text() | st.binary(max_size=3).map(reference) | st.binary(max_size=3).map(lambda b: reference(b)[:-1])


@settings(max_examples=50)
@given(st.recursive(TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2)))
def test_whatever_is_said_comes_back_through_references(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False)
    hidden, kept = protect(text)
    assert json.loads(resolve(hidden, kept.__getitem__, 1 << 20)) == value
    assert all(hashlib.sha256(said).hexdigest() == digits for digits, said in kept.items())
    assert len(list(references(hidden))) == len(list(references(text)))


# -- our own envelope, read and written from its description alone

HEADER = struct.Struct(">8sBBBB8s32s32sIQ")
MAGIC = b"\x93hth\r\n\x1a\n"


def derived(key: bytes, salt: bytes, purpose: str, length: int) -> bytes:
    return HKDF(SHA256(), length, salt, b"hitherto/1 " + purpose.encode()).derive(key)


def name_bytes(id: str, key: bytes = KEY) -> bytes:
    return hmac.digest(derived(key, b"", "snapshot names", 32), id.encode(), "sha256")[:16]


def name_of(id: str, key: bytes = KEY) -> str:
    return f"{derived(key, b'', 'key id', 8).hex()}-{name_bytes(id, key).hex()}.sealed"


def place(label: bytes, header: bytes, id: str) -> bytes:
    return b"hitherto/1 " + label + b"\x00" + header + name_bytes(id)


def opened(data: bytes, id: str) -> tuple[dict[str, object], bytes]:
    """Summary and text of a file."""
    header, rest = data[: HEADER.size], data[HEADER.size :]
    magic, version, suite, kind, flags, key_id, salt, commitment, first, second = HEADER.unpack(header)
    assert (magic, version, suite, kind, flags) == (MAGIC, 1, 1, 1, 0)
    assert key_id == derived(KEY, b"", "key id", 8)
    file_key = derived(KEY, salt, "snapshot file", 64)
    assert file_key[32:] == commitment
    assert len(rest) == first + second
    gcm = AESGCM(file_key[:32])
    summary = gcm.decrypt(rest[:12], rest[12:first], place(b"snapshot summary", header, id))
    body = gcm.decrypt(rest[first : first + 12], rest[first + 12 :], place(b"snapshot body", header, id))
    how, size = struct.unpack_from(">BQ", body)
    text = zstandard.ZstdDecompressor().decompress(body[9:]) if how else body[9:]
    assert len(text) == size
    return msgspec.msgpack.decode(summary), text


def made(
    snapshot: Snapshot, *, how: int = 0, size: int | None = None, text: bytes | None = None, **says: object
) -> bytes:
    """A file, as somebody with the key could make it."""
    summary: dict[str, object] = {
        "id": snapshot.id,
        "provider": snapshot.provider,
        "model": snapshot.model,
        "created_at": snapshot.created_at,
        "message_count": 1,
        "approximate_tokens": 2,
        "revision": snapshot.revision,
    }
    first = msgspec.msgpack.encode(summary | says)
    text = snapshot.to_json() if text is None else text
    second = struct.pack(">BQ", how, len(text) if size is None else size) + text
    salt = os.urandom(32)
    keys = derived(KEY, salt, "snapshot file", 64)
    key_id = derived(KEY, b"", "key id", 8)
    header = HEADER.pack(MAGIC, 1, 1, 1, 0, key_id, salt, keys[32:], len(first) + 28, len(second) + 28)
    parts = []
    for label, part in ((b"snapshot summary", first), (b"snapshot body", second)):
        nonce = os.urandom(12)
        parts.append(nonce + AESGCM(keys[:32]).encrypt(nonce, part, place(label, header, snapshot.id)))
    return header + parts[0] + parts[1]


@pytest.mark.parametrize("text", ["short", "long " * 1000])
def test_the_envelope_is_as_it_is_described(tmp_path: Path, text: str) -> None:
    snapshot = some(text, a="b")
    FileStore(tmp_path, KEY).save(snapshot)
    (file,) = tmp_path.glob("*.sealed")
    assert file.name == name_of(snapshot.id)
    summary, body = opened(file.read_bytes(), snapshot.id)
    assert json.loads(body) == json.loads(snapshot.to_json())
    assert Snapshot.from_json(body) == snapshot
    assert len(body) < len(snapshot.to_json())
    assert (summary["id"], summary["revision"], summary["metadata_items"]) == (
        snapshot.id,
        snapshot.revision,
        [["a", "b"]],
    )
    other = some("made elsewhere")
    (tmp_path / name_of(other.id)).write_bytes(made(other))
    store = FileStore(tmp_path, KEY)
    assert store.load(other.id) == other
    assert len(store.list()) == 2


def test_each_file_has_a_key_of_its_own(tmp_path: Path) -> None:
    snapshot = some()
    salts = set()
    for _ in range(3):
        FileStore(tmp_path, KEY).save(snapshot)
        salts.add((tmp_path / name_of(snapshot.id)).read_bytes()[20:52])
    assert len(salts) == 3


def test_no_bit_of_a_file_can_be_changed(tmp_path: Path) -> None:
    snapshot = some("x" * 700)
    store = FileStore(tmp_path, KEY)
    store.save(snapshot)
    file = tmp_path / name_of(snapshot.id)
    good = file.read_bytes()
    for at in range(len(good)):
        file.write_bytes(good[:at] + bytes((good[at] ^ (1 << at % 8),)) + good[at + 1 :])
        with pytest.raises((Damaged, NewerFormat)) as caught:
            store.load(snapshot.id)
        # A newer version cannot be told from a changed number of it.
        assert isinstance(caught.value, Damaged) or at in (8, 9, 11)
    file.write_bytes(good)
    assert store.load(snapshot.id) == snapshot


def test_files_cannot_be_cut_extended_swapped_renamed_or_spliced(tmp_path: Path) -> None:
    one, two = some("one"), some("two")
    store = FileStore(tmp_path, KEY)
    store.save(one)
    store.save(two)
    files = [tmp_path / name_of(snapshot.id) for snapshot in (one, two)]
    first, second = (file.read_bytes() for file in files)
    split = HEADER.size + HEADER.unpack(first[: HEADER.size])[8]
    other_split = HEADER.size + HEADER.unpack(second[: HEADER.size])[8]
    bad = [
        second,  # another file under this name
        first[:-1],
        first[:split],
        first[: HEADER.size],
        first[: HEADER.size - 1],
        b"",
        first + b"x",
        first[:split] + second[other_split:],  # another body
        first[: HEADER.size] + second[HEADER.size : other_split] + first[split:],  # another summary
        second[: HEADER.size] + first[HEADER.size :],  # another header
        first[: HEADER.size] + first[split:] + first[HEADER.size : split],  # the parts exchanged
    ]
    for data in bad:
        files[0].write_bytes(data)
        with pytest.raises(Damaged):
            store.load(one.id)
        assert store.load(two.id) == two
    files[0].write_bytes(first)
    assert store.load(one.id) == one


def test_without_its_place_a_part_could_be_swapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: it is the associated data that notices. Where nothing is bound, and two files share a salt, the
    body of the one is taken with the summary of the other."""
    salt = bytes(range(32))
    unbound = monkeypatch.setattr
    unbound(_file_layouts, "_place", lambda *_: b"")
    unbound(os, "urandom", lambda size, real=os.urandom: salt if size == 32 else real(size))
    store = FileStore(tmp_path, KEY)
    first = some("one")
    second = msgspec.structs.replace(some("two"), id=first.id, created_at=first.created_at)  # summaries of one length
    file = tmp_path / name_of(first.id)
    files = []
    for snapshot in (first, second):
        store.save(snapshot)
        files.append(file.read_bytes())
    at = HEADER.size + HEADER.unpack(files[0][: HEADER.size])[8]
    assert at == HEADER.size + HEADER.unpack(files[1][: HEADER.size])[8]
    assert len(files[0]) == len(files[1])
    file.write_bytes(files[0][:at] + files[1][at:])
    assert store.list()[0].revision == first.revision
    assert store.load(first.id) == second
    monkeypatch.undo()
    with pytest.raises(Damaged):
        store.load(first.id)


def two_keys_one_text(first: bytes, second: bytes, nonce: bytes, size: int) -> bytes:
    """A ciphertext and tag that AES-GCM accepts under two keys: what it allows, and a commitment does not.

    GCM's tag is a polynomial in the hash key plus a mask. With two keys there are two such equations, linear in the
    blocks of the ciphertext: one block is free to make both tags equal.
    """

    def times(a: int, b: int) -> int:
        found = 0
        for bit in range(127, -1, -1):
            if b >> bit & 1:
                found ^= a
            a = a >> 1 ^ (0xE1 << 120 if a & 1 else 0)
        return found

    def power(a: int, n: int) -> int:
        found = 1 << 127
        while n:
            if n & 1:
                found = times(found, a)
            a, n = times(a, a), n >> 1
        return found

    def parts(key: bytes) -> tuple[int, int]:
        """The hash key, and the mask of the tag."""
        # The tag of nothing is the mask; with one block of zeros as associated data, the rest gives the hash key away.
        mask = int.from_bytes(AESGCM(key).encrypt(nonce, b"", None), "big")
        with_zeros = int.from_bytes(AESGCM(key).encrypt(nonce, b"", bytes(16)), "big")
        # tag = length * h + mask, with the length of 128 bits as a block: so h = (tag ^ mask) / length.
        length = 128 << 64
        return times(with_zeros ^ mask, power(length, (1 << 128) - 2)), mask

    (h1, m1), (h2, m2) = parts(first), parts(second)
    blocks = [int.from_bytes(os.urandom(16), "big") for _ in range(size - 1)]
    total = size * 128

    def rest(h: int, mask: int) -> int:
        found = mask ^ times(total, h)
        for n, block in enumerate(blocks):
            found ^= times(block, power(h, size + 1 - n))
        return found

    free = power(h1, 2) ^ power(h2, 2)
    last = times(rest(h1, m1) ^ rest(h2, m2), power(free, (1 << 128) - 2))
    tag = rest(h1, m1) ^ times(last, power(h1, 2))
    return b"".join(block.to_bytes(16, "big") for block in (*blocks, last)) + tag.to_bytes(16, "big")


def test_a_file_that_gcm_opens_under_two_keys_is_refused_by_its_commitment() -> None:
    """AES-GCM opens it under both; so it is not the tag that the envelope relies on."""
    nonce = os.urandom(12)
    keys = [derived(key, b"s" * 32, "snapshot file", 64) for key in (KEY, OTHER)]
    text = two_keys_one_text(keys[0][:32], keys[1][:32], nonce, 4)
    found = [AESGCM(key[:32]).decrypt(nonce, text, None) for key in keys]
    assert found[0] != found[1]
    with pytest.raises(InvalidTag):
        AESGCM(bytes(32)).decrypt(nonce, text, None)
    assert keys[0][32:] != keys[1][32:]  # a header has room for one of them
    for key, other in ((KEY, keys[1]), (OTHER, keys[0])):
        snapshot = some()
        store = FileStore("x", key, fs=MemoryFiles())
        name = store._layouts[0].name_of(snapshot.id)
        header = HEADER.pack(MAGIC, 1, 1, 1, 0, bytes.fromhex(Key(key).id), b"s" * 32, other[32:], 12 + len(text), 0)
        store._bucket.put(name, header + nonce + text)
        with pytest.raises(Damaged, match="header"):
            store.load(snapshot.id)


def test_a_file_whose_id_inside_is_another_is_refused(tmp_path: Path) -> None:
    snapshot, other = some(), some()
    store = FileStore(tmp_path, KEY)
    file = tmp_path / name_of(snapshot.id)
    for data in (made(snapshot, id=other.id), made(snapshot, text=other.to_json()), made(snapshot, id=7)):
        file.write_bytes(data)
        with pytest.raises(Damaged):
            store.load(snapshot.id)
    file.write_bytes(made(snapshot))
    assert store.load(snapshot.id) == snapshot


def test_a_compression_bomb_is_refused_by_what_it_says_and_by_what_it_is(tmp_path: Path) -> None:
    snapshot = some()
    store = FileStore(tmp_path, KEY, max_bytes=1 << 20)
    file = tmp_path / name_of(snapshot.id)
    huge = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    assert len(huge) < 1 << 14
    file.write_bytes(made(snapshot, how=1, text=huge, size=1 << 26))
    with pytest.raises(PayloadTooLarge):
        store.load(snapshot.id)
    for how, text, size in (
        (1, huge, 1000),
        (1, huge[:50], 1000),
        (1, b"", 0),
        (0, b"x", 2),
        (0, b"xx", 1),
        (7, b"", 0),
    ):
        file.write_bytes(made(snapshot, how=how, text=text, size=size))
        with pytest.raises(Damaged):
            store.load(snapshot.id)
    file.write_bytes(made(snapshot))
    assert store.load(snapshot.id) == snapshot


def test_a_window_that_wants_much_memory_is_refused(tmp_path: Path) -> None:
    snapshot = some()
    parameters = zstandard.ZstdCompressionParameters(window_log=30, write_content_size=0)
    wide = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    text = wide.compress(snapshot.to_json()) + wide.flush()
    (tmp_path / name_of(snapshot.id)).write_bytes(made(snapshot, how=1, text=text, size=len(snapshot.to_json())))
    with pytest.raises(Damaged):
        FileStore(tmp_path, KEY).load(snapshot.id)


@given(st.binary(max_size=300))
def test_whatever_lies_there_is_a_snapshot_or_one_of_our_errors(data: bytes) -> None:
    snapshot = some()
    for key in (None, KEY):
        store = FileStore("x", key, fs=MemoryFiles())
        for name in (f"{snapshot.id}.json", store._layouts[0].name_of(snapshot.id)):
            for content in (data, MAGIC + data, sealed_by_others(data)):
                store._bucket.put(name, content)
                with pytest.raises(HithertoError):
                    store.load(snapshot.id)
                with contextlib.suppress(KeyUnavailable):
                    assert len(store.list()) == 0
