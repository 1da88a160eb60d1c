"""The envelope is what docs/envelope.md says: vectors, a second implementation, and a script that opens a real store.

Every vector in docs/envelope-vectors.json goes through the library, and through the few functions below, which use
nothing of it: only the primitives of `cryptography` and the standard library, and what the page says. They agree on
what opens and on what is refused; the second implementation also on why.
"""

import base64
import hashlib
import hmac
import json
import runpy
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

import hitherto
from hitherto import Block, Key, Message
from hitherto._engine import revisions
from hitherto._engine.bodies import chunk_place, meta_place, pack_place
from hitherto._engine.compression import decompress
from hitherto._engine.typed_items import item_place
from hitherto._sealing import primitives
from hitherto._sealing.codec import MODULUS
from hitherto._sealing.sealed import AES, Sealed, SealedEnvelope, Secret, _slot_place, read_box, write_box
from hitherto.backend import ConversationRow, MessageRow, PackRow
from hitherto.errors import Damaged
from hitherto.keys import _parse

ROOT = Path(__file__).resolve().parents[2]
VECTORS = ROOT / "docs" / "envelope-vectors.json"
PAGE = ROOT / "docs" / "envelope.md"
SCRIPT = ROOT / "scripts" / "open_sealed.py"
DICTIONARY = ROOT / "src" / "hitherto" / "_engine" / "dictionary-1.zstd"

Case = dict[str, Any]  # JSON
CASES: list[Case] = json.loads(VECTORS.read_text("utf-8"))["cases"]
un = bytes.fromhex


# What the page refuses, and the library does not yet.
def named(case: Case) -> str:
    return str(case["name"])


# -- the page, written down a second time


class Refused(Exception):
    """The reason, as the vectors call it."""


def need(fine: bool, reason: str) -> None:
    if not fine:
        raise Refused(reason)


def hkdf(key: bytes, salt: bytes, info: str, length: int) -> bytes:
    return HKDF(SHA256(), length, salt, f"hitherto/1 {info}".encode()).derive(key)


def decrypted(key: bytes, data: bytes, aad: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(data[:12], data[12:], aad)
    except InvalidTag:
        raise Refused("tag") from None


def i64(number: int | None) -> bytes:
    need(number is None or number >= 0, "column")
    return struct.pack(">q", -1 if number is None else number)


def sized(data: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if data is None else struct.pack(">I", len(data)) + data


def derived(data_key: bytes, ids: bytes) -> list[bytes]:
    """Record key, name key, proof key, commitment."""
    keys = hkdf(data_key, ids, "data key", 128)
    return [keys[n : n + 32] for n in range(0, 128, 32)]


def place_of(ids: bytes, place: dict[str, Any]) -> bytes:
    field = place["field"]
    start = bytes((["message", "description", "item", "pack", "chunk", "row"].index(field) + 1,)) + ids
    if field == "message":
        need(place["main"] in (0, 1), "column")
        numbers = [i64(place[name]) for name in ("number", "parent", "link")]
        rest = [i64(place[name]) for name in ("seq", "revision", "created_at")]
        return b"".join((start, *numbers, bytes((place["main"],)), *rest, place["role"].encode()))
    if field == "item":
        return start + sized(un(place["key"]) + (struct.pack(">Q", place["rewrites"]) if "rewrites" in place else b""))
    if field == "pack":
        return start + i64(place["first"]) + i64(place["parent"]) + i64(place["count"])
    if field == "chunk":
        return start + sized(un(place["name"])) + i64(place["index"])
    return start + (row_place(place) if field == "row" else b"")


def row_place(row: dict[str, Any]) -> bytes:
    token = un(row["token"])
    need(len(token) == 16 and row["held"] in (0, 1), "column")
    names = "version generation head next_seq count size rewrites created_at active_at expires_at"
    key = None if row["key"] is None else un(row["key"])
    return b"".join(
        (
            sized(row["kind"].encode()), sized(key), sized(token), struct.pack(">I", len(row["tips"])),
            *map(i64, row["tips"]), *(i64(row[name]) for name in names.split()), bytes((row["held"],)),
            sized(un(row["data_key"])), sized(un(row["meta"])),
        )
    )  # fmt: skip


def unzipped(data: bytes) -> bytes:
    dictionary = zstandard.ZstdCompressionDict(DICTIONARY.read_bytes())
    return zstandard.ZstdDecompressor(dict_data=dictionary).decompress(data)


def second_record(case: Case) -> Case:
    ids, record = un(case["workspace"]) + un(case["conversation"]), un(case["sealed"])
    keys = {one["generation"]: un(one["data_key"]) for one in case["data_keys"]}
    if case["place"]["field"] == "row":  # the first key proves
        keys = dict([next(iter(keys.items()))])
    place = place_of(ids, case["place"])
    need(len(record) >= 35, "short")
    version, suite, flags, generation = struct.unpack(">BBBI", record[:7])
    need(version == 1, "version")
    need(suite == 1, "suite")
    need(flags == 0, "flags")
    need(generation in keys, "generation")
    aad = record[:7] + place
    content = decrypted(derived(keys[generation], ids)[0], record[7:], aad)
    found = {"aad": aad.hex(), "nonce": record[7:19].hex(), "content": content.hex()}
    if case["place"]["field"] == "chunk":
        found["inside"] = (unzipped(content[1:]) if content[0] else content[1:]).hex()
    elif case["place"]["field"] == "pack" and content[:4] == b"\x28\xb5\x2f\xfd":
        found["inside"] = unzipped(content).hex()
    return found


def second_box(case: Case) -> Case:
    box, key, workspace = un(case["box"]), un(case["key"]), un(case["workspace"])
    wraps = {un(id): un(wrap) for id, wrap in case["retired"].items()}
    wraps[hkdf(key, b"", "key id", 8)] = hkdf(key, workspace, "wrapping key", 32)
    need(len(box) >= 2, "short")
    need(box[0] == 1, "version")
    at, slots = 2, []
    for _ in range(box[1]):
        need(len(box) >= at + 9, "short")
        need(box[at] in (0, 1), "kind")
        end = at + (109 if box[at] else 9)
        need(len(box) >= end, "short")
        slots.append(box[at:end])
        at = end
    need(at == len(box), "length")
    need(any(slot[0] for slot in slots), "no key")
    return {"slots": [second_slot(slot, wraps, workspace + un(case["conversation"])) for slot in slots]}


def second_slot(slot: bytes, wraps: dict[bytes, bytes], ids: bytes) -> Case:
    kind, generation, epoch = struct.unpack(">BII", slot[:9])
    found: Case = {"kind": kind, "generation": generation, "epoch": epoch}
    if kind == 0:
        return found
    key_id, commitment, wrapped = slot[9:17], slot[17:49], slot[49:]
    need(key_id in wraps, "key")
    aad = b"hitherto/1 wrapped key" + ids + slot[:9] + key_id + commitment
    data_key = decrypted(wraps[key_id], wrapped, aad)
    need(hmac.compare_digest(derived(data_key, ids)[3], commitment), "commitment")
    found |= {"key_id": key_id.hex(), "commitment": commitment.hex(), "nonce": wrapped[:12].hex()}
    return found | {"aad": aad.hex(), "data_key": data_key.hex()}


def second_key_text(case: Case) -> Case:
    text = case["text"].rstrip("\n")
    if len(text) == 64:
        return {"key": text}
    return {"key": base64.urlsafe_b64decode(text.removeprefix("hitherto-key-1:") + "=").hex()}


def second_derived_keys(case: Case) -> Case:
    keys = derived(un(case["data_key"]), un(case["workspace"]) + un(case["conversation"]))
    names = ("record_key", "name_key", "proof_key", "commitment")
    return {name: key.hex() for name, key in zip(names, keys, strict=True)}


def second_tag(case: Case) -> Case:
    name_key = un(second_derived_keys(case)["name_key"])
    return {"tag": hmac.digest(name_key, f"{case['field']}={case['value']}".encode(), "sha256")[:16].hex()}


def second_attachment_name(case: Case) -> Case:
    name_key = un(second_derived_keys(case)["name_key"])
    name = struct.pack(">I", case["generation"]) + hmac.digest(name_key, b"attachment=" + un(case["content"]), "sha256")
    return {"attachment": name.hex()}


def second_sum(case: Case) -> Case:
    ids, proof_key = un(case["workspace"]) + un(case["conversation"]), un(second_derived_keys(case)["proof_key"])
    weights = []
    for one in case["bodies"]:
        body = un(one["body"])
        weighed = body[-16:] if body[:3] == b"\x01\x01\x00" else place_of(ids, one["place"]) + body
        weights.append(hashlib.blake2b(weighed, key=proof_key, digest_size=16).hexdigest())
    return {"weights": weights, "total": f"{sum(int(weight, 16) for weight in weights) % 2**128:032x}"}


SECOND: dict[str, Callable[[Case], Case]] = {
    "key text": second_key_text,
    "key id": lambda case: {"id": hkdf(un(case["key"]), b"", "key id", 8).hex()},
    "wrapping key": lambda case: {
        "wrapping_key": hkdf(un(case["key"]), un(case["workspace"]), "wrapping key", 32).hex()
    },
    "derived keys": second_derived_keys,
    "box": second_box,
    "record": second_record,
    "tag": second_tag,
    "attachment name": second_attachment_name,
    "sum": second_sum,
}


# -- the library


def envelope_of(case: Case) -> SealedEnvelope:
    workspace, conversation = un(case["workspace"]), un(case["conversation"])
    keys = case.get("data_keys") or [{"generation": case.get("generation", 1), "data_key": case["data_key"]}]
    secrets = [(one["generation"], Secret(un(one["data_key"]), workspace, conversation)) for one in keys]
    return SealedEnvelope(workspace, conversation, secrets)


def message_of(conversation: bytes, place: dict[str, Any], body: bytes) -> MessageRow:
    rest = {name: value for name, value in place.items() if name != "field"}
    return MessageRow(conversation=conversation, body=body, **rest)


def ours_record(case: Case) -> Case:
    envelope, record, conversation = envelope_of(case), un(case["sealed"]), un(case["conversation"])
    place, inside = case["place"], None
    if place["field"] == "message":
        row = message_of(conversation, place, record)
        content, built = envelope.open_messages([row])[0], envelope._message_place(row)
    elif place["field"] == "row":
        proven = conversation_of(conversation, place, record)
        content, built = envelope.total(proven).to_bytes(16, "big"), envelope._row_place(proven)
    else:
        where = where_of(conversation, place)
        content, built = envelope.open(where, record), envelope._bytes_of(where)
        if place["field"] == "chunk":
            inside = decompress(content[1:]) if content[:1] == b"\x01" else content[1:]
        elif place["field"] == "pack" and decompress(content) != content:
            inside = decompress(content)
    found = {"aad": (record[:7] + built).hex(), "nonce": record[7:19].hex(), "content": content.hex()}
    return found if inside is None else {**found, "inside": inside.hex()}


def where_of(conversation: bytes, place: dict[str, Any]) -> tuple[object, ...]:
    if place["field"] == "description":
        return meta_place(conversation)
    if place["field"] == "pack":
        return pack_place(PackRow(place["first"], conversation, place["parent"], place["count"], b""))
    if place["field"] == "chunk":
        return chunk_place(conversation, un(place["name"]), place["index"])
    if "rewrites" in place:
        return revisions.place(conversation, place["rewrites"])
    return item_place(conversation, un(place["key"]))


def conversation_of(conversation: bytes, place: dict[str, Any], proof: bytes) -> ConversationRow:
    values = {name: value for name, value in place.items() if name != "field"}
    values |= {name: un(values[name]) for name in ("token", "data_key", "meta")}
    values |= {"key": None if values["key"] is None else un(values["key"]), "tips": tuple(values["tips"])}
    return ConversationRow(id=conversation, proof=proof, **values)


def ours_box(case: Case) -> Case:
    workspace, conversation = un(case["workspace"]), un(case["conversation"])
    codec: Sealed = Sealed(workspace, Key(un(case["key"])), lambda: codec)
    codec.retire({un(id): un(wrap) for id, wrap in case["retired"].items()})
    slots = read_box(un(case["box"]))
    assert write_box(slots).hex() == case["box"]
    codec.draft(conversation, slots)
    found = []
    for slot in slots:
        one: Case = {"kind": slot.kind, "generation": slot.generation, "epoch": slot.epoch}
        if slot.kind == AES:
            one |= {"key_id": slot.key_id.hex(), "commitment": slot.commitment.hex(), "nonce": slot.wrapped[:12].hex()}
            one["aad"] = _slot_place(workspace, conversation, slot).hex()
            one["data_key"] = codec._secret(conversation, slot)._secret.hex()
        found.append(one)
    return {"slots": found}


def ours_key_text(case: Case) -> Case:
    found = _parse(case["text"].encode(), "the text")
    assert isinstance(found, bytearray)
    return {"key": found.hex()}


def ours_derived_keys(case: Case) -> Case:
    data_key, workspace, conversation = (un(case[name]) for name in ("data_key", "workspace", "conversation"))
    secret = Secret(data_key, workspace, conversation)
    sealed = secret.cipher.seal(b"content", b"place", bytes(12))
    assert AESGCM(un(case["record_key"])).decrypt(sealed[:12], sealed[12:], b"place") == b"content"
    names = {"name_key": secret.name_key, "proof_key": secret.proof_key, "commitment": secret.commitment}
    return {"record_key": case["record_key"], **{name: key.hex() for name, key in names.items()}}


def ours_attachment_name(case: Case) -> Case:
    fingerprint = envelope_of(case).fingerprint()
    fingerprint.update(un(case["content"]))
    return {"attachment": fingerprint.digest().hex()}


def ours_sum(case: Case) -> Case:
    envelope, conversation = envelope_of(case), un(case["conversation"])
    anywhere = {
        "number": 0,
        "parent": None,
        "link": None,
        "main": 1,
        "seq": 0,
        "revision": 0,
        "created_at": 0,
        "role": "",
    }
    rows = [message_of(conversation, one.get("place", anywhere), un(one["body"])) for one in case["bodies"]]
    weights = [f"{envelope.weigh([row]):032x}" for row in rows]
    return {"weights": weights, "total": f"{envelope.weigh(rows) % MODULUS:032x}"}


OURS: dict[str, Callable[[Case], Case]] = {
    "key text": ours_key_text,
    "key id": lambda case: {"id": Key(un(case["key"])).id},
    "wrapping key": lambda case: {
        "wrapping_key": Key(un(case["key"]))._derive(un(case["workspace"]), b"hitherto/1 wrapping key").hex()
    },
    "derived keys": ours_derived_keys,
    "box": ours_box,
    "record": ours_record,
    "tag": lambda case: {"tag": envelope_of(case).tags(case["field"], case["value"])[0].hex()},
    "attachment name": ours_attachment_name,
    "sum": ours_sum,
}


# -- vectors


@pytest.mark.parametrize("case", CASES, ids=named)
def test_the_library_opens_and_refuses_what_the_vectors_say(case: Case) -> None:
    if case["expect"] == "refused":
        with pytest.raises(Damaged):
            OURS[case["kind"]](case)
    else:
        found = OURS[case["kind"]](case)
        assert found == {name: case[name] for name in found}


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_second_implementation_opens_and_refuses_what_the_vectors_say(case: Case) -> None:
    if case["expect"] == "refused":
        with pytest.raises(Refused) as refused:
            SECOND[case["kind"]](case)
        assert str(refused.value) == case["reason"]
    else:
        found = SECOND[case["kind"]](case)
        assert found == {name: case[name] for name in found}


@pytest.mark.parametrize("implementation", [OURS, SECOND], ids=["the library", "a second implementation"])
def test_every_output_of_a_vector_is_computed(implementation: dict[str, Callable[[Case], Case]]) -> None:
    """The control of the two tests above: none of them looks at less than there is."""
    given = {"name", "kind", "expect", "key", "retired", "workspace", "conversation", "box", "data_keys", "data_key",
             "place", "sealed", "text", "field", "value", "generation", "content", "bodies"}  # fmt: skip
    for case in CASES:
        if case["expect"] == "opens":
            assert set(case) - given <= set(implementation[case["kind"]](case)), case["name"]


def test_the_vectors_have_all_kinds_and_reasons_of_the_page() -> None:
    page = PAGE.read_text("utf-8")
    section = page[page.index("\n## Vectors\n") :]
    kinds = {case["kind"] for case in CASES}
    assert kinds == set(SECOND) == set(OURS)
    assert all(f"| `{kind}` |" in section for kind in kinds)
    reasons = {case["reason"] for case in CASES if case["expect"] == "refused"}
    assert all(f"`{reason}`" in section[section.index("| reason | |") :] for reason in reasons)
    fields = {case["place"]["field"] for case in CASES if case["kind"] == "record" and case["expect"] == "opens"}
    assert fields == {"message", "description", "item", "pack", "chunk", "row"}
    assert {"version", "suite", "flags", "generation", "tag", "short", "commitment", "key"} <= reasons


def test_the_vectors_are_what_the_script_makes() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "make_envelope_vectors.py"))["text"]()
    assert made == VECTORS.read_text("utf-8")
    assert len(primitives.random_key()) == 32  # the control: randomness is back
    assert primitives.random_key() != primitives.random_key()


# -- the script that opens a store without us

KEY = bytes(range(1, 33))
FIRST, LAST = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
ANY = "SELECT max(number) FROM message WHERE body IS NOT NULL"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A sealed store with messages in packs and alone, a label, an attachment, and what was changed and deleted."""
    path = tmp_path / "chats.db"
    with hitherto.open(path, key=Key(KEY), maintenance=False) as store:
        talk = store.start(title="Der Bau", project="/home/me", model="large", id=FIRST)
        for n in range(40):
            talk.append(
                Message.user(f"Why is the build failing, {n}?", key=f"event-{n}", label="asked" if n == 3 else None)
            )
        talk.append(Message.user((Block.text("see"), Block.image(bytes(range(256)) * 1200, "image/png"))))
        store.maintain()
        talk.append(Message.assistant("An unused import."))
        talk.label("answered")
        side = talk.fork(before=talk.at or "")
        store.delete([side.append(Message.user("never mind")).id])
        store.start(title="Another", id=LAST).append(Message.user("nothing"))
        assert store.verify().ok
    return path


def run(path: Path, key: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """In a process that has no way to the library: it fails if that is imported."""
    guard = (
        "import runpy, sys; sys.modules['hitherto'] = None; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__'); "
        "assert [name for name in sys.modules if name.startswith('hitherto')] == ['hitherto']"
    )
    command = [sys.executable, "-I", "-c", guard, str(SCRIPT), str(path), *arguments]
    return subprocess.run(command, input=key, text=True, encoding="utf-8", capture_output=True, check=False, timeout=60)


def lines(done: "subprocess.CompletedProcess[str]") -> list[tuple[str, str, str | None, list[str]]]:
    assert (done.returncode, done.stderr) == (0, "")
    found = map(json.loads, done.stdout.splitlines())
    return [(one["title"], one["role"], one["label"], one["texts"]) for one in found]


def told(path: Path) -> Iterator[tuple[str, str, str | None, list[str]]]:
    with hitherto.open(path, key=Key(KEY), maintenance=False) as store:
        for info in sorted(store.conversations().items, key=lambda info: info.id):
            for m in store.messages(conversation=info.id, newest_first=False):
                yield info.title, m.role, m.label, [b.content for b in m.blocks if isinstance(b.content, str)]


def test_a_script_opens_a_store_with_the_page_and_without_the_library(store: Path, tmp_path: Path) -> None:
    expected = list(told(store))
    with sqlite3.connect(store) as db:
        (packs,) = db.execute("SELECT count(*) FROM pack").fetchone()
        (loose,) = db.execute("SELECT count(*) FROM message WHERE body IS NOT NULL").fetchone()
    db.close()
    assert packs >= 2
    assert loose >= 2
    assert len(expected) == 43
    Key(KEY).to_file(tmp_path / "key")
    assert lines(run(store, KEY.hex())) == expected
    assert lines(run(store, (tmp_path / "key").read_text())) == expected


def test_the_script_does_not_know_the_library() -> None:
    source = SCRIPT.read_text("utf-8")
    assert "import hitherto" not in source
    assert "from hitherto" not in source


def test_the_script_refuses_another_key(store: Path) -> None:
    done = run(store, bytes(range(2, 34)).hex())
    assert (done.returncode, done.stdout) == (1, "")
    assert "this is another key" in done.stderr


OTHER = "SELECT min(place) FROM conversation WHERE kind = 'chat' AND place != message.conversation"
PLACE = "InvalidTag"
TAMPERED = {
    "a message moved to another number": (f"UPDATE message SET number = number + 3200 WHERE number = ({ANY})", PLACE),
    "a message moved to another conversation": (
        f"UPDATE message SET seq = 500, conversation = ({OTHER}) WHERE number = ({ANY})",
        PLACE,
    ),
    "another role": (f"UPDATE message SET role = 'system' WHERE number = ({ANY})", PLACE),
    "another role in a pack": (
        "UPDATE message SET role = 'system' WHERE body IS NULL AND seq = 5",
        "a row and its pack do not agree",
    ),
    "a message taken away": (
        "DELETE FROM message WHERE number = (SELECT max(number) FROM message)",
        "messages are missing, or too many",
    ),
    "a pack under another number": (
        "UPDATE pack SET first = first + 3200 WHERE first = (SELECT min(first) FROM pack)",
        PLACE,
    ),
    "another head": ("UPDATE conversation SET head = 1 WHERE kind = 'chat'", PLACE),
    "another token in the workspace's row": (
        "UPDATE conversation SET token = zeroblob(16) WHERE kind = 'workspace'",
        PLACE,
    ),
    "another size": (f"UPDATE message SET size = size + 1 WHERE number = ({ANY})", "messages are missing, or too many"),
    "no row of the workspace": (
        "DELETE FROM conversation WHERE kind = 'workspace'",
        "the row of the workspace is missing",
    ),
    "no proof": ("UPDATE conversation SET proof = x''", "not a record of this data key"),
    "the boxes of two conversations": (
        "UPDATE conversation SET data_key = (SELECT data_key FROM conversation WHERE kind = 'workspace')",
        PLACE,
    ),
    "no ledger": ("DELETE FROM item WHERE key = CAST('ledger' AS BLOB)", "the ledger is missing"),
    "-1 for NULL": ("UPDATE message SET link = -1 WHERE body IS NOT NULL", "a number is negative"),
    "2 for 1": (f"UPDATE message SET main = 2 WHERE number = ({ANY})", "a column has another form"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_the_script_refuses_what_was_tampered_with(store: Path, name: str) -> None:
    change, reason = TAMPERED[name]
    with sqlite3.connect(store) as db:
        assert db.execute(change).rowcount > 0
    db.close()
    done = run(store, KEY.hex())
    assert done.returncode == 1
    assert reason in done.stderr.splitlines()[-1]
