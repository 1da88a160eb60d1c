"""Opens a sealed store without hitherto: with SQLite, msgpack, zstd, the primitives of `cryptography`, and what
docs/envelope.md and docs/schema.md say. It was written from these pages alone; tests/sealing/test_envelope.py runs it.

    python scripts/open_sealed.py chats.db < key-file            # all conversations of the workspace "default"
    python scripts/open_sealed.py chats.db other < key-file      # of another one

One line of JSON for each message, on all branches. All but attachments is checked, in the order that
docs/envelope.md#reading has, and what is not as it should be ends the program. It reads a store at rest: not one whose
key is being rotated.
"""

import base64
import hashlib
import hmac
import json
import sqlite3
import struct
import sys
from pathlib import Path

import msgspec
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

DICTIONARY = Path(__file__).resolve().parents[1] / "src" / "hitherto" / "_engine" / "dictionary-1.zstd"
unpack = msgspec.msgpack.decode


def check(fine, otherwise):
    if not fine:
        sys.exit(otherwise)


def hkdf(key, salt, info, length):
    return HKDF(SHA256(), length, salt, b"hitherto/1 " + info).derive(key)


def i64(*numbers):
    check(all(n is None or n >= 0 for n in numbers), "a number is negative")
    return b"".join(struct.pack(">q", -1 if n is None else n) for n in numbers)


def sized(data):
    return b"\xff" * 4 if data is None else struct.pack(">I", len(data)) + data


class Conversation:
    def __init__(self, key, workspace, row):
        self.row, self.ids, box = row, workspace + row["id"], row["data_key"]
        check((len(self.ids), len(row["token"]), row["held"] in (0, 1)) == (32, 16, True), "a column has another form")
        check((len(box), box[:3]) == (111, b"\1\1\1"), "not a box with one key")
        self.generation, self.epoch, key_id, commitment = struct.unpack(">II8s32s", box[3:51])
        check(key_id == hkdf(key, b"", b"key id", 8), "this is another key")
        wrapping = AESGCM(hkdf(key, workspace, b"wrapping key", 32))
        data_key = wrapping.decrypt(box[51:63], box[63:], b"hitherto/1 wrapped key" + self.ids + box[2:51])
        derived = hkdf(data_key, self.ids, b"data key", 128)
        check(hmac.compare_digest(derived[96:], commitment), "another data key than the box says")
        self.cipher, self.proof_key = AESGCM(derived[:32]), derived[64:96]
        tips, columns = unpack(row["tips"]), "version generation head next_seq count size rewrites created_at active_at"
        place = sized(row["kind"].encode()) + sized(row["key"]) + sized(row["token"]) + struct.pack(">I", len(tips))
        place += i64(*tips, *(row[name] for name in columns.split()), row["expires_at"]) + bytes((row["held"],))
        self.sum = int.from_bytes(self.open(6, row["proof"], place + sized(box) + sized(row["meta"])), "big")
        self.description = unpack(self.open(2, row["meta"]))

    def open(self, field, record, place=b""):
        check(record[:7] == struct.pack(">BBBI", 1, 1, 0, self.generation), "not a record of this data key")
        return self.cipher.decrypt(record[7:19], record[19:], record[:7] + bytes((field,)) + self.ids + place)

    def weight(self, record):
        return int.from_bytes(hashlib.blake2b(record[-16:], key=self.proof_key, digest_size=16).digest(), "big")

    def ledger(self, db):
        if not self.row["rewrites"]:
            return {}, {}
        query = "SELECT body FROM item WHERE conversation = ? AND key = ?"
        found = db.execute(query, (self.row["place"], b"ledger")).fetchone()
        check(found, "the ledger is missing")
        return unpack(self.open(3, found["body"], sized(b"ledger" + struct.pack(">Q", self.row["rewrites"]))))

    def pack(self, p, base):
        content = self.open(4, p["body"], i64(p["first"] - base, p["parent"], p["count"]))
        if content[:4] == b"\x28\xb5\x2f\xfd":
            dictionary = zstandard.ZstdCompressionDict(DICTIONARY.read_bytes())
            content = zstandard.ZstdDecompressor(dict_data=dictionary).decompress(content)
        inside = unpack(content)
        check(len(inside) == p["count"], "a pack does not hold what it says")
        above = [p["parent"], *range(p["first"] - base, p["first"] - base + 31)]
        return {p["first"] - base + n: ([above[n], *m[:6]], m[6]) for n, m in enumerate(inside)}

    def messages(self, db, base):
        (revisions, ends), packed, bodies = self.ledger(db), {}, []
        for p in db.execute("SELECT * FROM pack WHERE conversation = ?", (self.row["place"],)):
            packed.update(self.pack(p, base))
            bodies.append(p["body"])
        rows = db.execute("SELECT * FROM message WHERE conversation = ? ORDER BY seq", (self.row["place"],)).fetchall()
        for m in rows:
            n, main = m["number"] - base, m["main"]
            check(main in (0, 1), "a column has another form")
            check(m["revision"] == revisions.get(n, 0), "an older revision of a message was put back")
            check(n < ends.get(n - n % 32, n + 1), "a message that was deleted was put back")
            if m["body"] is None:
                header = [m["parent"], m["seq"], m["link"], main == 1, m["role"], m["revision"], m["created_at"]]
                check(packed[n][0] == header, "a row and its pack do not agree")
                yield m["role"], packed[n][1]
            else:
                place = i64(n, m["parent"], m["link"]) + bytes((main,))
                place += i64(m["seq"], m["revision"], m["created_at"]) + m["role"].encode()
                yield m["role"], unpack(self.open(1, m["body"], place))
                bodies.append(m["body"])
        total = sum(self.weight(body) for body in bodies) % 2**128
        found = len(rows), sum(m["size"] for m in rows), total
        check(found == (self.row["count"], self.row["size"], self.sum), "messages are missing, or too many")


def main(path, workspace="default"):
    text = sys.stdin.read().strip().removeprefix("hitherto-key-1:")
    key = bytes.fromhex(text) if len(text) == 64 else base64.urlsafe_b64decode(text + "=")
    db = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    space = db.execute("SELECT * FROM workspace WHERE name = ?", (workspace,)).fetchone()
    rows = db.execute("SELECT * FROM conversation WHERE workspace = ? ORDER BY id", (space["place"],)).fetchall()
    opened = [Conversation(key, space["id"], row) for row in sorted(rows, key=lambda row: row["kind"] == "chat")]
    check(opened and opened[0].row["kind"] == "workspace", "the row of the workspace is missing")
    for talk in opened[1:]:
        check(talk.epoch == opened[0].epoch, "a conversation is of another epoch")
        for role, content in list(talk.messages(db, (space["place"] - 1) << 47)):
            texts = [block["content"] for block in content["blocks"] if isinstance(block["content"], str)]
            title, label = talk.description.get("title", ""), content.get("label")
            shown = {"conversation": talk.row["id"].hex(), "title": title, "role": role, "label": label, "texts": texts}
            print(json.dumps(shown))


if __name__ == "__main__":
    main(*sys.argv[1:])
