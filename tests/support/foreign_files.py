"""Files as other programs write them, made without any code of ours: what the tests of formats and layouts read.

Nothing here imports `hitherto`. The files follow the formats of these programs (their names, tables,
escapes and ciphers); the words are ours.

- **gtb**: snapshots as Go's `encoding/json` writes them with two spaces (it escapes `<`, `>`, `&`, U+2028 and U+2029);
  with OpenAI the first message is the system's; sealed ones are a nonce and AES-256-GCM over that; media lies
  beside them, named by its SHA-256.
- **cpe**: SQLite files of the two generations of that program, and the trees that it draws of them.
- **vpconv**: one sealed conversation.
"""

import hashlib
import json
import sqlite3
from base64 import b64encode
from contextlib import closing
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY = bytes(range(32))
FIRST_ID, SECOND_ID, THIRD_ID, MEDIA_ID = (f"{digit * 8}-{digit * 4}-4{digit * 3}-8{digit * 3}-{digit * 12}" for digit in "1234")  # fmt: skip # noqa: E501

# -- gtb

_FIRST = (
    '{\n  "id": "%s",\n  "provider": "claude",\n  "model": "claude-sonnet-4-5",\n'
    '  "system_prompt": "Answer in one line.",\n  "messages": [\n    {\n      "role": "user",\n'
    '      "content": "What is a snapshot?"\n    },\n    {\n      "role": "assistant",\n      "content": [\n        {\n'
    '          "type": "text",\n          "text": "A copy."\n        }\n      ]\n    }\n  ],\n  "tools": [\n    {\n'
    '      "name": "look",\n      "description": "Look at a file"\n    }\n  ],\n  "metadata": {\n    "place": "here"\n'
    '  },\n  "created_at": "2026-05-06T07:08:09Z",\n  "version": 1\n}'
)
_SECOND = (
    '{\n  "id": "%s",\n  "provider": "openai",\n  "model": "gpt-5",\n'
    '  "system_prompt": "1 \\u003c 2 \\u0026 3 \\u003e 2 \\u2028\\u2029 ß 🌻 \\b\\f\\u0002 \\"so\\" \\\\ / \\t",\n'
    '  "messages": [\n    {\n      "role": "system",\n      "content": "\\u003ci\\u003e \\u0026lt; \\u2029 \\u00df ß"\n'
    '    },\n    {\n      "large": 98765432109876543210,\n      "whole": 2.0,\n      "power": 3E7,\n'
    '      "nothing": {},\n      "none": []\n    }\n  ],\n'
    '  "created_at": "2026-05-06T07:08:09.987654321Z",\n  "version": 1\n}'
)
_THIRD = (
    '{\n  "id": "%s",\n  "provider": "gemini",\n  "model": "",\n  "messages": null,\n'
    '  "created_at": "2026-05-06T07:08:09.5Z",\n  "version": 1\n}'
)
_MEDIA = (
    '{\n  "id": "%s",\n  "provider": "gemini",\n  "model": "gemini-3-pro",\n  "messages": [\n    {\n      "parts": [\n'
    '        {\n          "text": "what is \\u003cthis\\u003e"\n        },\n        {\n          "inlineData": {\n'
    '            "data": "chatmedia+sha256:%s",\n            "mimeType": "image/png"\n          }\n        }\n'
    '      ],\n      "role": "user",\n      "zz": 98765432109876540000\n    }\n  ],\n'
    '  "created_at": "2026-06-07T00:00:00Z",\n  "version": 1\n}'
)
_PICTURE = b64encode(bytes(n * 11 % 256 for n in range(900)))  # media is kept as the text that stood in the message


def write_gtb(folder: Path) -> Path:
    """The folders `plain`, `plain_media` and `aes256gcm`."""
    named = hashlib.sha256(_PICTURE).hexdigest()
    plain = {id: (text % id).encode() for id, text in ((FIRST_ID, _FIRST), (SECOND_ID, _SECOND), (THIRD_ID, _THIRD))}
    media = (_MEDIA % (MEDIA_ID, named)).encode()
    for name in ("plain", "plain_media/media", "aes256gcm/media"):
        (folder / name).mkdir(parents=True)
    for id, text in plain.items():
        (folder / "plain" / f"{id}.json").write_bytes(text)
    (folder / "plain_media" / f"{MEDIA_ID}.json").write_bytes(media)
    (folder / "plain_media" / "media" / named).write_bytes(_PICTURE)
    (folder / "aes256gcm" / f"{FIRST_ID}.json").write_bytes(_sealed(plain[FIRST_ID], 1))
    (folder / "aes256gcm" / f"{MEDIA_ID}.json").write_bytes(_sealed(media, 2))
    (folder / "aes256gcm" / "media" / named).write_bytes(_sealed(_PICTURE, 3))
    return folder


def _sealed(text: bytes, number: int) -> bytes:
    nonce = hashlib.sha256(b"nonce %d" % number).digest()[:12]
    return nonce + AESGCM(KEY).encrypt(nonce, text, None)


# -- cpe

_BLOCKS = """CREATE TABLE blocks(id TEXT, message_id TEXT NOT NULL, block_type TEXT NOT NULL, modality_type INTEGER NOT NULL, mime_type TEXT NOT NULL,
 content TEXT NOT NULL, extra_fields TEXT, sequence_order INTEGER NOT NULL, created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
 PRIMARY KEY(message_id, sequence_order), FOREIGN KEY(message_id) REFERENCES messages(id) ON DELETE CASCADE)"""  # noqa: E501
_BY_TIME = "CREATE INDEX idx_messages_created_at ON messages(created_at)"
_BY_PARENT = "CREATE INDEX idx_messages_parent_id ON messages(parent_id)"
_FIRST_GENERATION = (
    """CREATE TABLE messages(id TEXT PRIMARY KEY, parent_id TEXT, title TEXT, role TEXT NOT NULL, tool_result_error BOOLEAN NOT NULL DEFAULT 0,
 created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, FOREIGN KEY(parent_id) REFERENCES messages(id) ON DELETE RESTRICT)""",  # noqa: E501
    _BY_TIME,
    _BY_PARENT,
    _BLOCKS,
)
_LATER_GENERATION = (
    """CREATE TABLE messages(id TEXT PRIMARY KEY, parent_id TEXT, compaction_parent_id TEXT, role TEXT NOT NULL,
 tool_result_error BOOLEAN NOT NULL DEFAULT 0, message_extra_fields TEXT, model_ref TEXT, model_id TEXT, model_type TEXT,
 model_display_name TEXT, input_tokens INTEGER, output_tokens INTEGER, cache_read_tokens INTEGER, cache_write_tokens INTEGER,
 created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, FOREIGN KEY(parent_id) REFERENCES messages(id) ON DELETE RESTRICT)""",  # noqa: E501
    _BLOCKS,
    """CREATE TABLE acp_sessions(id TEXT PRIMARY KEY, last_message_id TEXT, cwd TEXT NOT NULL, title TEXT NOT NULL, model_ref TEXT NOT NULL,
 thinking_level TEXT NOT NULL DEFAULT '', cost_usd REAL NOT NULL DEFAULT 0, created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
 FOREIGN KEY(last_message_id) REFERENCES messages(id) ON DELETE CASCADE)""",  # noqa: E501
    _BY_TIME,
    _BY_PARENT,
    "CREATE INDEX idx_messages_compaction_parent_id ON messages(compaction_parent_id)",
)

FIRST_TREE = """\
one001 (2024-02-03 08:00) [USER] said in one001
two002 (2024-02-03 08:01) [ASSISTANT] said in two002
    thr003 (2024-02-03 08:02) [USER] said in thr003
    fou004 (2024-02-03 08:03) [ASSISTANT] said in fou004
    ------
    fiv005 (2024-02-03 08:05) [USER] said in fiv005
    six006 (2024-02-03 08:06) [ASSISTANT] said in six006
    ------
sub007 (2024-02-03 08:10) [USER] said in sub007
sub008 (2024-02-03 08:11) [ASSISTANT] said in sub008
------
"""
LATER_TREE = """\
Ask001 (2026-08-09 10:00) [USER] Is the door open? 🚪
Ans002 (2026-08-09 10:00) [ASSISTANT] I have to look
    Res003 (2026-08-09 10:00) [TOOL RESULT] no such door
    End004 (2026-08-09 10:00) [ASSISTANT] There is none.
    ------
    Pic005 (2026-08-09 11:00) [USER] Image
    ------
Sum006 (2026-08-09 12:00) [USER] in short: no door
"""


def write_cpe(folder: Path) -> Path:
    """The files `first.cpeconvo` and `later.cpeconvo`."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(folder / "first.cpeconvo")) as database, database:
        for statement in _FIRST_GENERATION:
            database.execute(statement)
        trace = "subagent:proofread:0a1b2c3d"
        told = [
            ("one001", None, None, "user", 0), ("two002", "one001", None, "assistant", 1),
            ("thr003", "two002", None, "user", 2), ("fou004", "thr003", None, "assistant", 3),
            ("fiv005", "two002", None, "user", 5), ("six006", "fiv005", None, "assistant", 6),
            ("sub007", None, trace, "user", 10), ("sub008", "sub007", trace, "assistant", 11),
        ]  # fmt: skip
        for id, parent, title, role, minute in told:
            time = f"2024-02-03 08:{minute:02}:00"
            database.execute("INSERT INTO messages VALUES (?, ?, ?, ?, 0, ?)", (id, parent, title, role, time))
            _block(database, id, 0, f"said in {id}", time=time)
        _block(database, "gone99", 0, "left over of a message that was deleted", time="2024-02-03 07:00:00")
    with closing(sqlite3.connect(folder / "later.cpeconvo")) as database, database:
        for statement in _LATER_GENERATION:
            database.execute(statement)
        model = ("opus", "claude-y", "anthropic", "Claude Y")
        rows: list[tuple[object, ...]] = [
            ("Ask001", None, None, "user", 0, None, *[None] * 8, "2026-08-09 10:00:00"),
            ("Ans002", "Ask001", None, "assistant", 0, '{"phase":"last"}', *model, 11, 22, 0, 3, "2026-08-09 10:00:04"),
            ("Res003", "Ans002", None, "tool_result", 1, None, *[None] * 8, "2026-08-09 10:00:05"),
            ("End004", "Res003", None, "assistant", 0, None, *model, 44, 5, None, None, "2026-08-09 10:00:09"),
            ("Pic005", "Ans002", None, "user", 0, None, *[None] * 8, "2026-08-09 11:00:00"),
            ("Sum006", None, "End004", "user", 0, None, *[None] * 8, "2026-08-09 12:00:00"),
        ]
        database.executemany(f"INSERT INTO messages VALUES ({', '.join('?' * 15)})", rows)
        _block(database, "Ask001", 0, "Is the door open? 🚪")
        _block(database, "Ans002", 0, "I have to look", kind="thinking", extra='{"thinking_generator":"anthropic"}')
        call = '{"name":"knock","parameters":{"door":"front"}}'
        _block(database, "Ans002", 1, call, kind="tool_call", id="call_9")
        _block(database, "Res003", 0, "no such door", id="call_9")
        _block(database, "End004", 0, "There is none.")
        _block(database, "Pic005", 0, b64encode(b"\x89PNG").decode(), modality=1, mime="image/png")
        _block(database, "Sum006", 0, "in short: no door")
        sessions = [
            ("sess01", "End004", "/srv/house", "sess01", "opus", "high", 0.25, "2026-08-09 09:59:59"),
            ("sess02", "Pic005", "/srv/house", "sess02", "opus", "", 0.0, "2026-08-09 10:59:59"),
        ]
        database.executemany("INSERT INTO acp_sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?)", sessions)
    return folder


def _block(
    database: sqlite3.Connection, message: str, place: int, content: str, *, kind: str = "content", modality: int = 0,
    mime: str = "text/plain", id: str | None = None, extra: str | None = None, time: str = "2026-08-09 10:00:00",
) -> None:  # fmt: skip
    row = (id, message, kind, modality, mime, content, extra, place, time)
    database.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


# -- vpconv


def write_vpconv(folder: Path) -> Path:
    """The one file of the folder: named by the beginning of the SHA-256 of the conversation's id."""
    id = "talk-7"
    frame = {
        "frameId": f"{id}-frame-1", "sequence": 1, "role": "user", "content": "Good morning, voice",
        "createdAt": "2025-10-21T10:00:00.000Z", "privacy": {"containsSecrets": False, "redactionRulesApplied": []},
    }  # fmt: skip
    record = {
        "conversationId": id, "version": 1, "title": "Morning", "createdAt": "2025-10-21T10:00:00.000Z",
        "lastInteractionAt": "2025-10-21T10:00:00.000Z", "participants": [], "messages": [frame],
        "retention": {"retentionExpiresAt": "2026-01-19T10:00:00.000Z", "policyId": "workspace-default"},
        "privacy": {"exportable": True, "classification": "Confidential"},
    }  # fmt: skip
    plain = json.dumps(record, separators=(",", ":")).encode()
    nonce = hashlib.sha256(b"nonce of a voice").digest()[:12]
    box = AESGCM(KEY).encrypt(nonce, plain, None)
    envelope = {
        "conversationId": id, "schemaVersion": 1, "cipherText": b64encode(box[:-16]).decode(),
        "iv": b64encode(nonce).decode(), "authTag": b64encode(box[-16:]).decode(),
        "createdAt": "2025-10-21T10:00:01.000Z", "checksum": hashlib.sha256(plain).hexdigest(),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(id.encode()).hexdigest()[:32]}.vpconv"
    path.write_text(json.dumps(envelope, separators=(",", ":")))
    return path
