"""Makes docs/envelope-vectors.json, the published vectors of sealing: docs/envelope.md#vectors says how to read them.

What opens is made by the library's own functions, with fixed keys, and with bytes that only look random. What is
refused is one of these with one thing changed. The same script makes the same bytes, given the zstd that
requirements/dev.txt pins.

    python scripts/make_envelope_vectors.py            # write the file
    python scripts/make_envelope_vectors.py --check    # is the one in docs/ the one that this makes?
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec import msgpack

from hitherto._engine import revisions
from hitherto._engine.attachments import _compress_chunk
from hitherto._engine.bodies import (
    Meta,
    WorkspaceMeta,
    body_of,
    chunk_place,
    close_pack,
    encode,
    meta_place,
    pack_message,
    pack_place,
)
from hitherto._engine.compression import decompress
from hitherto._engine.typed_items import item_place
from hitherto._sealing import primitives, sealed
from hitherto._sealing.codec import MODULUS, Plain
from hitherto._sealing.quarantine import _key as quarantine_key
from hitherto._sealing.quarantine import _Note
from hitherto._sealing.sealed import AES, NO_KEY, Sealed, SealedEnvelope, Secret, Slot, write_box
from hitherto.backend import ConversationRow, MessageRow, PackRow
from hitherto.keys import Key
from hitherto.model import Message, Setup

VECTORS = Path(__file__).resolve().parent.parent / "docs" / "envelope-vectors.json"

KEY, OLD_KEY, FOREIGN_KEY = (bytes(range(start, start + 32)) for start in (0x00, 0x20, 0x40))
WORKSPACE, OTHER_WORKSPACE = bytes(range(0xA0, 0xB0)), bytes(range(0xB0, 0xC0))
CONVERSATION = bytes.fromhex("6f1c2d3e4f504a6b8c7d9e0f1a2b3c4d")
OTHER_CONVERSATION = bytes.fromhex("7f1c2d3e4f504a6b8c7d9e0f1a2b3c4d")
TOKEN = bytes(range(0x60, 0x70))
NOON = 1_700_000_000_000_000

Case = dict[str, Any]  # as it stands in the file


@contextmanager
def no_randomness() -> Iterator[None]:
    """Keys and nonces are the next bytes of a stream that is always the same."""
    drawn = 0

    def urandom(size: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return hashlib.shake_256(b"hitherto vectors %d" % drawn).digest(size)

    real = primitives.os
    primitives.os = SimpleNamespace(urandom=urandom)
    try:
        yield
    finally:
        primitives.os = real


def shown(value: object) -> object:
    """As it stands in the file: bytes in hexadecimal digits."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {shown(name): shown(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return value


def opens(name: str, kind: str, **fields: object) -> Case:
    return {"name": name, "kind": kind, "expect": "opens", **{field: shown(value) for field, value in fields.items()}}


_OUTPUTS = ("aad", "nonce", "content", "inside", "slots")


def refused(like: Case, name: str, reason: str, **fields: object) -> Case:
    """The same with something changed; `place` changes columns of the place."""
    case = {field: value for field, value in deepcopy(like).items() if field not in _OUTPUTS}
    case |= {"name": f"{like['name']}: {name}", "expect": "refused", "reason": reason}
    place = fields.pop("place", {})
    assert isinstance(place, dict)
    case |= {field: shown(value) for field, value in fields.items()}
    if place:
        case["place"] |= {column: shown(value) for column, value in place.items()}
    assert case["place"] != like["place"] if place else True
    return case


def minus_one(like: Case, column: str) -> Case:
    assert like["place"][column] is None
    return refused(like, f"{column} is -1, which is written as NULL is", "column", place={column: -1})


def flipped(data: bytes, at: int, bit: int = 0x01) -> bytes:
    changed = bytearray(data)
    changed[at] ^= bit
    return bytes(changed)


# -- keys


def keys() -> Iterator[Case]:
    yield opens("a key file", "key text", text=Key(KEY)._text() + "\n", key=KEY)
    yield opens("a key in hexadecimal digits", "key text", text=KEY.hex(), key=KEY)
    for name, key in (("the key", KEY), ("another key", OLD_KEY)):
        yield opens(f"the id of {name}", "key id", key=key, id=Key(key).id)
    for name, workspace in (("the workspace", WORKSPACE), ("another workspace", OTHER_WORKSPACE)):
        derived = Key(KEY)._derive(workspace, b"hitherto/1 wrapping key")
        yield opens(f"the wrapping key of {name}", "wrapping key", key=KEY, workspace=workspace, wrapping_key=derived)


def derived_keys(data_key: bytes) -> Iterator[Case]:
    for name, conversation in (("a conversation", CONVERSATION), ("another conversation", OTHER_CONVERSATION)):
        raw = primitives.derive(data_key, WORKSPACE + conversation, b"hitherto/1 data key", 128)
        secret = Secret(data_key, WORKSPACE, conversation)
        assert raw[32:] == secret.name_key + secret.proof_key + secret.commitment
        yield opens(
            f"the keys of {name}", "derived keys", data_key=data_key, workspace=WORKSPACE, conversation=conversation,
            record_key=raw[:32], name_key=secret.name_key, proof_key=secret.proof_key, commitment=secret.commitment,
        )  # fmt: skip


# -- boxes


class Boxes:
    """Slots that the library made, and what is in them."""

    def __init__(self) -> None:
        self.codec = Sealed(WORKSPACE, Key(KEY), lambda: None)
        self.old = Sealed(WORKSPACE, Key(OLD_KEY), lambda: None)
        self.foreign = Sealed(WORKSPACE, Key(FOREIGN_KEY), lambda: None)
        self.first, self.second = (self.codec.new_slot(CONVERSATION, n, n) for n in (1, 2))
        self.retired = {bytes.fromhex(Key(OLD_KEY).id): Key(OLD_KEY)._derive(WORKSPACE, b"hitherto/1 wrapping key")}

    def data_key(self, slot: Slot) -> bytes:
        return bytes(self.codec._secret(CONVERSATION, slot)._secret)

    def case(self, name: str, slots: Sequence[Slot], retired: dict[bytes, bytes], data_keys: Sequence[bytes]) -> Case:
        found, keys = [], iter(data_keys)
        for slot in slots:
            one: dict[str, object] = {"kind": slot.kind, "generation": slot.generation, "epoch": slot.epoch}
            if slot.kind == AES:
                one |= {"key_id": slot.key_id, "commitment": slot.commitment, "nonce": slot.wrapped[:12]}
                one |= {"aad": sealed._slot_place(WORKSPACE, CONVERSATION, slot), "data_key": next(keys)}
            found.append(one)
        return opens(
            name, "box", key=KEY, retired=retired, workspace=WORKSPACE, conversation=CONVERSATION,
            box=write_box(slots), slots=found,
        )  # fmt: skip

    def cases(self) -> Iterator[Case]:
        first, second = self.first, self.second
        keys = self.data_key(first), self.data_key(second)
        one = self.case("a box", (first,), {}, keys[:1])
        yield one
        yield self.case("a box with two keys", (second, first), {}, keys[::-1])
        yield self.case("a box of a conversation that is being sealed", (second, Slot(NO_KEY, 1, 0)), {}, keys[1:])
        yield self.case("a box of a conversation that is being unsealed", (Slot(NO_KEY, 2, 2), first), {}, keys[:1])
        self.old._remember(Secret(keys[0], WORKSPACE, CONVERSATION))
        old = self.old.rewrap(CONVERSATION, (first,))
        waiting = self.case("a box that is not wrapped anew yet", old, self.retired, keys[:1])
        yield waiting
        yield refused(waiting, "the key is retired no more", "key", retired={})
        yield refused(one, "the key of somebody else", "key", key=FOREIGN_KEY)
        yield from self._refused(one, write_box((first,)))
        yield refused(one, "the commitment of another key", "commitment", box=self._uncommitted())

    def _refused(self, one: Case, box: bytes) -> Iterator[Case]:
        yield refused(one, "moved to another conversation", "tag", conversation=OTHER_CONVERSATION)
        yield refused(one, "moved to another workspace", "tag", workspace=OTHER_WORKSPACE)
        yield refused(one, "an unknown version", "version", box=b"\x02" + box[1:])
        yield refused(one, "an unknown kind", "kind", box=box[:2] + b"\x02" + box[3:])
        yield refused(one, "another generation", "tag", box=flipped(box, 6))
        yield refused(one, "another epoch", "tag", box=flipped(box, 10))
        yield refused(one, "a flipped bit in the key id", "key", box=flipped(box, 11))
        yield refused(one, "a flipped bit in the commitment", "tag", box=flipped(box, 19))
        yield refused(one, "a flipped bit in the nonce", "tag", box=flipped(box, 51))
        yield refused(one, "a flipped bit in the wrapped key", "tag", box=flipped(box, 63))
        yield refused(one, "a flipped bit in the tag", "tag", box=flipped(box, -1, 0x80))
        yield refused(one, "a byte less", "short", box=box[:-1])
        yield refused(one, "a byte more", "length", box=box + b"\x00")
        yield refused(one, "fewer slots than there are", "length", box=box[:2] + box[2:] * 2)
        yield refused(one, "more slots than there are", "short", box=box[:1] + b"\x02" + box[2:])
        yield refused(one, "one byte", "short", box=box[:1])
        yield refused(one, "no slots", "no key", box=b"\x01\x00")
        yield refused(one, "no slot with a key", "no key", box=write_box((Slot(NO_KEY, 1, 1),)))

    def _uncommitted(self) -> bytes:
        """Well sealed, by somebody who has the wrapping key, with a commitment that is not the data key's."""
        secret = self.codec._secret(CONVERSATION, self.first)
        bare = Slot(AES, 1, 1, self.codec.key_id, self.second.commitment)
        wrap = self.codec._wraps[self.codec.key_id]
        wrapped = secret.wrap(wrap, sealed._slot_place(WORKSPACE, CONVERSATION, bare))
        return write_box((Slot(AES, 1, 1, bare.key_id, bare.commitment, wrapped),))


# -- records

MESSAGE = MessageRow(35, CONVERSATION, 7, 34, None, True, "user", 0, NOON, None)
ROOT = MessageRow(64, CONVERSATION, 9, None, 35, False, "rôle", 2, NOON + 1, None)


class Records:
    """What an envelope seals, with all that goes into it."""

    def __init__(self, boxes: Boxes) -> None:
        self.keys = [(slot.generation, boxes.data_key(slot)) for slot in (boxes.first, boxes.second)]
        self.box = write_box((boxes.first,))
        self.envelope = boxes.codec.draft(CONVERSATION, (boxes.first,))
        self.both = boxes.codec.draft(CONVERSATION, (boxes.second, boxes.first))
        self.header = self.envelope._header

    def case(
        self,
        name: str,
        place: dict[str, object],
        built: bytes,
        record: bytes,
        content: bytes,
        inside: bytes | None = None,
    ) -> Case:
        assert record[:7] == self.header
        fields = {"aad": self.header + built, "nonce": record[7:19], "sealed": record, "content": content}
        if inside is not None:
            fields["inside"] = inside
        keys = [{"generation": generation, "data_key": key} for generation, key in self.keys[:1]]
        return opens(
            name, "record", data_keys=keys, workspace=WORKSPACE, conversation=CONVERSATION, place=place, **fields
        )

    def closed(
        self, name: str, place: dict[str, object], where: tuple[object, ...], content: bytes, **more: bytes
    ) -> Case:
        record = self.envelope.close(where, content)
        return self.case(name, place, self.envelope._bytes_of(where), record, content, **more)

    # -- messages

    def message(self, name: str, row: MessageRow, content: bytes) -> Case:
        record = self.envelope.close_message(row, content)
        return self.case(name, message_place(row), self.envelope._message_place(row), record, content)

    def messages(self) -> Iterator[Case]:
        said = body_of(Message.user("Grüße", label="greeting", key="event-1"), 1)
        one = self.message("a message", MESSAGE, encode(said))
        yield one
        root = self.message("a root with a link", ROOT, encode(body_of(Message.user(""), 0)))
        yield root
        yield minus_one(root, "parent")
        yield self.message("a message without content", MESSAGE, b"")
        record = bytes.fromhex(one["sealed"])
        for name, reason, at, bit in (
            ("an unknown version", "version", 0, 0x03), ("an unknown suite", "suite", 1, 0x03),
            ("an unknown flag", "flags", 2, 0x01), ("another unknown flag", "flags", 2, 0x80),
            ("an unknown generation", "generation", 6, 0x03), ("a flipped bit in the nonce", "tag", 7, 0x01),
            ("a flipped bit in the content", "tag", 19, 0x01), ("a flipped bit in the tag", "tag", -1, 0x80),
        ):  # fmt: skip
            yield refused(one, name, reason, sealed=flipped(record, at, bit))
        yield refused(one, "a byte less", "tag", sealed=record[:-1])
        yield refused(one, "a byte more", "tag", sealed=record + b"\x00")
        yield refused(one, "without its tag", "tag", sealed=record[:-16])
        yield refused(one, "shorter than any record", "short", sealed=record[:34])
        yield refused(one, "nothing", "short", sealed=b"")
        yield refused(one, "a plain record", "version", sealed=Plain().close((), encode(said)))
        yield from self._generations(one, record)
        yield from self._elsewhere(one)

    def _generations(self, one: Case, record: bytes) -> Iterator[Case]:
        both = [{"generation": generation, "data_key": key} for generation, key in reversed(self.keys)]
        assert self.both.open_messages([row_of(MESSAGE, record)])
        yield {**deepcopy(one), "name": "a message of the generation before", "data_keys": shown(both)}
        claimed = record[:6] + b"\x02" + record[7:]
        yield refused(one, "the generation of another key", "tag", sealed=claimed, data_keys=both)
        yield refused(one, "its generation is gone", "generation", data_keys=both[:1])
        taken = [{"generation": 1, "data_key": self.keys[1][1]}]
        yield refused(one, "another key of the same generation", "tag", data_keys=taken)

    def _elsewhere(self, one: Case) -> Iterator[Case]:
        yield refused(one, "in another conversation", "tag", conversation=OTHER_CONVERSATION)
        yield refused(one, "in another workspace", "tag", workspace=OTHER_WORKSPACE)
        for column, value in (
            ("number", 36), ("parent", 33), ("parent", None), ("link", 0), ("main", 0), ("seq", 8), ("revision", 1),
            ("created_at", NOON + 1), ("role", "assistant"), ("role", "user "), ("role", ""),
        ):  # fmt: skip
            yield refused(one, f"{column} is {json.dumps(value)}", "tag", place={column: value})
        yield refused(one, "main is 2", "column", place={"main": 2})
        yield minus_one(one, "link")
        as_description = refused(one, "as a description", "tag")
        as_description["place"] = {"field": "description"}
        yield as_description

    # -- descriptions, items

    def others(self) -> Iterator[Case]:
        meta = encode(Meta("Failing build", "import-42", "/home/me/project", {"origin": "test"}, 1, 1))
        description = self.closed("a description", {"field": "description"}, meta_place(CONVERSATION), meta)
        yield description
        yield refused(description, "in another conversation", "tag", conversation=OTHER_CONVERSATION)
        retired = WorkspaceMeta(bytes(range(16)), {bytes.fromhex(Key(OLD_KEY).id): OLD_KEY})
        yield self.closed(
            "a description of a workspace with a retired key", {"field": "description"}, meta_place(CONVERSATION),
            encode(retired),
        )  # fmt: skip
        setup = self._item("a setup", b"setup/000001", encode(Setup("openai", "gpt-5", "Be terse.")))
        yield setup
        yield refused(setup, "under another key", "tag", place={"key": b"setup/000002"})
        note = msgpack.encode(_Note(NOON, "a stored message does not open where it lies"))
        yield self._item("a note of a message in quarantine", quarantine_key((OTHER_CONVERSATION, 35)), note)
        yield self._item("a note of a conversation in quarantine", quarantine_key((OTHER_CONVERSATION, None)), note)
        words = msgpack.encode([1, NOON, 0, 8, [b"segment1"]])
        yield self._item("the list of the words for search", b"words/list", words)
        yield from self._ledgers()

    def _item(self, name: str, key: bytes, content: bytes) -> Case:
        return self.closed(name, {"field": "item", "key": key}, item_place(CONVERSATION, key), content)

    def _ledgers(self) -> Iterator[Case]:
        content = msgpack.encode(revisions.Ledger({35: 2}, {64: 70}))
        record = revisions.Ledger({35: 2}, {64: 70}).item(self.envelope, CONVERSATION, 3).body
        place = {"field": "item", "key": revisions.KEY, "rewrites": 3}
        built = self.envelope._bytes_of(revisions.place(CONVERSATION, 3))
        ledger = self.case("a ledger", place, built, record, content)
        yield ledger
        yield refused(ledger, "an older one", "tag", place={"rewrites": 4})

    # -- packs, chunks

    def packs(self) -> Iterator[Case]:
        yield self._pack("a pack", ["short"], 31)
        root = self._pack("a pack of a root", ["short"], None)
        yield root
        yield minus_one(root, "parent")
        large = self._pack("a compressed pack", ["the build is failing " * 20, "again " * 50], 31)
        assert "inside" in large
        yield large
        for column, value in (("first", 64), ("parent", 30), ("parent", None), ("count", 1)):
            yield refused(large, f"{column} is {json.dumps(value)}", "tag", place={column: value})

    def _pack(self, name: str, texts: Sequence[str], parent: int | None) -> Case:
        inner = []
        for n, text in enumerate(texts):
            row = MessageRow(32 + n, CONVERSATION, n, 31 + n if n else parent, None, True, "user", 0, NOON, None)
            inner.append(pack_message(row, encode(body_of(Message.user(text), 0))))
        pack = close_pack(self.envelope, PackRow(32, CONVERSATION, parent, 0, b""), inner)
        content = self.envelope.open(pack_place(pack), pack.body)
        inside = decompress(content)
        place = {"field": "pack", "first": pack.first, "parent": pack.parent, "count": pack.count}
        built = self.envelope._bytes_of(pack_place(pack))
        return self.case(name, place, built, pack.body, content, None if inside == content else inside)

    def chunks(self) -> Iterator[Case]:
        for name, piece in (("a chunk", b"an image"), ("a compressed chunk", b"an image " * 100)):
            fingerprint = self.envelope.fingerprint()
            fingerprint.update(piece)
            named = fingerprint.digest()
            place: dict[str, object] = {"field": "chunk", "name": named, "index": 0}
            content = _compress_chunk(piece)
            case = self.closed(name, place, chunk_place(CONVERSATION, named, 0), content, inside=piece)
            yield case
        yield refused(case, "at another index", "tag", place={"index": 1})
        yield refused(case, "of another attachment", "tag", place={"name": flipped(named, -1)})
        yield refused(case, "its name as plain ones are", "tag", place={"name": named[4:]})

    # -- rows, and what the proof holds

    def rows(self) -> Iterator[Case]:
        loose = row_of(MESSAGE, self.envelope.close_message(MESSAGE, encode(body_of(Message.user("one"), 0))))
        inner = [pack_message(MESSAGE, encode(body_of(Message.user("two"), 0)))]
        pack = close_pack(self.envelope, PackRow(64, CONVERSATION, None, 0, b""), inner)
        plain = row_of(ROOT, Plain().close((), encode(body_of(Message.user("three"), 0))))
        weights = [self.envelope.weigh([row]) for row in (loose, pack, plain)]
        bodies = [{"body": loose.body}, {"body": pack.body}, {"body": plain.body, "place": message_place(ROOT)}]
        for name, take in (("nothing", 0), ("a message", 1), ("a message and a pack", 2), ("a plain message, too", 3)):
            total = sum(weights[:take]) % MODULUS
            yield opens(
                f"the sum of {name}", "sum", data_key=self.keys[0][1], workspace=WORKSPACE, conversation=CONVERSATION,
                bodies=bodies[:take], weights=[f"{weight:032x}" for weight in weights[:take]], total=f"{total:032x}",
            )  # fmt: skip
        meta = self.envelope.close(meta_place(CONVERSATION), encode(Meta("Failing build")))
        key = self.envelope.tags("conversation", "import-42")[0]
        row = ConversationRow(
            CONVERSATION, "chat", key, NOON + 5, TOKEN, 1, 35, (35, 70), 10, 3, 420, 3, NOON, NOON + 1, None, True,
            self.box, meta, b"",
        )  # fmt: skip
        bare = ConversationRow(
            CONVERSATION, "chat", None, NOON, TOKEN, 1, None, (), 0, 0, 0, 0, NOON, NOON, NOON + 9, False, self.box,
            meta, b"",
        )  # fmt: skip
        one = self._row("a row", row, sum(weights[:2]))
        yield one
        empty = self._row("a row of an empty conversation", bare, 0)
        yield empty
        yield minus_one(empty, "head")
        yield from self._rows_refused(one)

    def _row(self, name: str, row: ConversationRow, total: int) -> Case:
        proof = self.envelope.prove(row, total)
        content = (total % MODULUS).to_bytes(16, "big")
        return self.case(name, row_place(row), self.envelope._row_place(row), proof, content)

    def _rows_refused(self, one: Case) -> Iterator[Case]:
        for column, value in (
            ("kind", "workspace"), ("key", None), ("key", b""), ("token", bytes(16)), ("tips", [35]),
            ("tips", [70, 35]), ("version", NOON + 6), ("generation", 2), ("head", None), ("head", 70),
            ("next_seq", 11), ("count", 2), ("size", 421), ("rewrites", 2), ("created_at", NOON + 1),
            ("active_at", NOON), ("expires_at", NOON), ("held", 0),
        ):  # fmt: skip
            what = json.dumps(shown(value))
            yield refused(one, f"{column} is {what}", "tag", place={column: value})
        for column in ("data_key", "meta"):
            changed = flipped(bytes.fromhex(one["place"][column]), -1)
            yield refused(one, f"a flipped bit in {column}", "tag", place={column: changed})
        proof = bytes.fromhex(one["sealed"])
        yield refused(one, "a flipped bit in the sum", "tag", sealed=flipped(proof, 19))
        yield refused(one, "in another conversation", "tag", conversation=OTHER_CONVERSATION)
        both = [{"generation": generation, "data_key": key} for generation, key in reversed(self.keys)]
        yield refused(one, "made with the key before", "generation", data_keys=both)
        yield refused(one, "no proof", "short", sealed=b"")
        yield refused(one, "a token that is too short", "column", place={"token": TOKEN[:12]})
        yield refused(one, "held is 2", "column", place={"held": 2})
        yield minus_one(one, "expires_at")

    # -- names

    def names(self) -> Iterator[Case]:
        fields = {"data_key": self.keys[0][1], "workspace": WORKSPACE, "conversation": CONVERSATION}
        for field, value in (
            ("conversation", "import-42"), ("project", "/home/me/project"), ("label", "subagent:reviewer:run-1"),
            ("subagent", "reviewer"), ("key", "event-1"), ("label", "é=ü"), ("label", ""),
        ):  # fmt: skip
            tag = self.envelope.tags(field, value)[0]
            yield opens(f"the tag of {field}={value}", "tag", **fields, field=field, value=value, tag=tag)
        for name, content in (("an empty attachment", b""), ("an attachment", b"an image")):
            yield opens(
                f"the name of {name}", "attachment name", **fields, generation=1, content=content,
                attachment=named(self.envelope, content),
            )  # fmt: skip


def named(envelope: SealedEnvelope, content: bytes) -> bytes:
    fingerprint = envelope.fingerprint()
    fingerprint.update(content)
    return fingerprint.digest()


def row_of(like: MessageRow, body: bytes) -> MessageRow:
    return MessageRow(
        like.number, like.conversation, like.seq, like.parent, like.link, like.main, like.role, like.revision,
        like.created_at, body,
    )  # fmt: skip


def message_place(m: MessageRow) -> dict[str, object]:
    return {
        "field": "message", "number": m.number, "parent": m.parent, "link": m.link, "main": int(m.main), "seq": m.seq,
        "revision": m.revision, "created_at": m.created_at, "role": m.role,
    }  # fmt: skip


def row_place(row: ConversationRow) -> dict[str, object]:
    columns = {name: getattr(row, name) for name in row.__struct_fields__ if name not in ("id", "proof")}
    return {"field": "row", **columns, "held": int(row.held)}


def cases() -> list[Case]:
    with no_randomness():
        boxes = Boxes()
        records = Records(boxes)
        parts: Sequence[Callable[[], Iterator[Case]]] = (
            keys, lambda: derived_keys(boxes.data_key(boxes.first)), boxes.cases, records.messages, records.others,
            records.packs, records.chunks, records.rows, records.names,
        )  # fmt: skip
        found = [case for part in parts for case in part()]
    assert len({case["name"] for case in found}) == len(found)
    return found


def text() -> str:
    about = "Vectors of hitherto's envelope: docs/envelope.md says what they mean."
    return json.dumps({"about": about, "cases": cases()}, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the vectors of the envelope.")
    parser.add_argument("--check", action="store_true", help="only compare with the file that is there")
    made = text()
    if parser.parse_args().check:
        return 0 if VECTORS.read_text("utf-8") == made else 1
    VECTORS.write_text(made, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
