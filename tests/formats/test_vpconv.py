"""`.vpconv`: a sealed conversation of another program, read with its key, and with nothing of it lost; what is wrong
with a file is said as what it is.

Requirements: C17, D5.
"""

import hashlib
import json
import os
from base64 import b64encode
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import hitherto
from hitherto import Block, Key, Message
from hitherto.errors import CannotOpen, Damaged, HithertoError, InvalidArgument, KeyUnavailable, NewerFormat
from hitherto.formats._types import PortableConversation, PortableMessage, Source
from hitherto.formats.own import vpconv
from hitherto.snapshots import Unreadable

from ..support.foreign_files import write_vpconv

KEY = bytes(range(32))
TEN = 1_761_040_800_000_000  # 2025-10-21T10:00:00Z

FRAMES: list[dict[str, object]] = [
    {
        "frameId": "f2", "sequence": 2, "role": "assistant", "content": "two", "createdAt": "2025-10-21T10:00:02.500Z",
        "privacy": {"containsSecrets": True, "redactionRulesApplied": ["email"], "piiTokens": ["ab12"]},
        "audio": {"uri": "a.opus", "format": "opus", "durationMs": 900},
        "attachments": [{"attachmentId": "x", "type": "code", "uri": "c", "checksum": "00", "byteLength": 1}],
    },
    {"frameId": "f1", "sequence": 1, "role": "user", "content": "one", "createdAt": "2025-10-21T10:00:00Z"},
    {"frameId": "f5", "sequence": 5, "role": "system", "content": "three", "createdAt": "never", "mood": "calm"},
]  # fmt: skip


def record(**changes: object) -> dict[str, object]:
    return {
        "conversationId": "c-1", "version": 1, "title": "A talk", "createdAt": "2025-10-21T10:00:00.000Z",
        "lastInteractionAt": "2025-10-21T11:00:00.000Z", "participants": [{"id": "u", "role": "user"}],
        "messages": FRAMES, "summary": {"synopsis": "short", "keywords": ["a"]}, "metrics": {"durationMs": 5},
        "retention": {"retentionExpiresAt": "2026-01-01T00:00:00Z", "manualHold": True},
        "privacy": {"classification": "Confidential", "exportable": True}, "storage": {"blobVersion": 3},
        "attachments": [{"attachmentId": "y"}], "somethingNew": [1, None], **changes,
    }  # fmt: skip


def sealed(path: Path, content: object = None, *, key: bytes = KEY, **changes: object) -> Path:
    """A file as the program writes it; `content` is a record, or the very text that is sealed."""
    value = record() if content is None else content
    plain = value if isinstance(value, bytes) else json.dumps(value).encode()
    nonce = os.urandom(12)
    box = AESGCM(key).encrypt(nonce, plain, None)
    envelope: dict[str, object] = {
        "conversationId": "c-1", "schemaVersion": 1, "cipherText": b64encode(box[:-16]).decode(),
        "iv": b64encode(nonce).decode(), "authTag": b64encode(box[-16:]).decode(),
        "createdAt": "2025-10-21T12:00:00.000Z", "checksum": hashlib.sha256(plain).hexdigest(), **changes,
    }  # fmt: skip
    path.write_text(json.dumps({name: value for name, value in envelope.items() if value is not ...}))
    return path


def read(path: Path, key: bytes = KEY) -> PortableConversation:
    [found] = vpconv.read(path, Key(key))
    assert isinstance(found, PortableConversation)
    return found


def source(path: Path) -> Source:
    return Source(path, False, path.read_bytes()[:4096])


def test_the_file_of_the_program_reads_with_its_key_and_goes_into_a_store(tmp_path: Path) -> None:
    path = write_vpconv(tmp_path)
    assert vpconv.recognises(source(path)) == "a sealed conversation of Agent Voice, under the name of its id"
    talk = read(path)
    assert (talk.id, talk.title, talk.created_us) == ("talk-7", "Morning", TEN)
    [said] = talk.messages
    assert (said.id, said.message.role, said.message.text) == ("talk-7-frame-1", "user", "Good morning, voice")
    assert said.message.privacy == {"containsSecrets": False, "redactionRulesApplied": []}
    with hitherto.open("memory:") as store:
        report = hitherto.formats.load(path, store, key=KEY)
        assert (report.format, report.messages) == ("vpconv", 1)


def test_frames_stand_in_the_order_of_their_sequence_each_below_the_one_before(tmp_path: Path) -> None:
    talk = read(sealed(tmp_path / "f"))
    one, two, three = talk.messages
    assert one == PortableMessage(
        id="f1", message=Message.user("one", extra={"vpconv": {"sequence": 1}}), created_us=TEN
    )
    assert (two.id, two.parent, two.created_us) == ("f2", "f1", TEN + 2_500_000)
    assert two.message.blocks == (Block.text("two"),)
    assert two.message.privacy == FRAMES[0]["privacy"]
    assert two.message.extra == {
        "vpconv": {"sequence": 2, "audio": FRAMES[0]["audio"], "attachments": FRAMES[0]["attachments"]}
    }
    assert (three.parent, three.message.role, three.created_us) == ("f2", "event", two.created_us)
    assert three.message.extra == {"vpconv": {"sequence": 5, "createdAt": "never", "mood": "calm", "role": "system"}}


def test_everything_else_that_the_record_says_is_in_the_metadata_as_json(tmp_path: Path) -> None:
    talk = read(sealed(tmp_path / "f"))
    assert (talk.id, talk.title, talk.created_us, talk.held) == ("c-1", "A talk", TEN, True)
    told = {name: json.loads(value) for name, value in talk.metadata.items()}
    placed = {"conversationId", "title", "createdAt", "messages"}
    rest = {f"vpconv.{name}": value for name, value in record().items() if name not in placed}
    assert told == {**rest, "vpconv.sealedAt": "2025-10-21T12:00:00.000Z"}


def test_what_cannot_be_placed_is_not_lost(tmp_path: Path) -> None:
    odd = record(title=7, createdAt="once", retention="x")
    odd["messages"] = [
        {"role": "user", "content": "a", "privacy": [1], "big": 10**40},
        {"role": "user", "content": "b"},
    ]
    talk = read(sealed(tmp_path / "f", odd))
    assert (talk.title, talk.created_us, talk.held) == ("", 0, False)
    assert (talk.metadata["vpconv.title"], talk.metadata["vpconv.createdAt"]) == ("7", '"once"')
    assert [said.id for said in talk.messages] == ["frame-1", "frame-2"]
    assert talk.messages[0].message.extra == {"vpconv": {"privacy": [1], "big": str(10**40)}}


def test_two_frames_of_one_id_are_two_messages(tmp_path: Path) -> None:
    frames = [{"frameId": "same", "sequence": n, "role": "user", "content": str(n)} for n in (1, 2)]
    one, two = read(sealed(tmp_path / "f", record(messages=frames))).messages
    assert (one.id, two.id, two.parent) == ("same", "frame-2", "same")
    assert two.message.extra == {"vpconv": {"sequence": 2, "frameId": "same"}}


def test_a_frame_that_is_none_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    frames = ["x", {"role": "user"}, {"role": "a\nb", "content": "x"}, {"role": "user", "content": "good"}]
    found = list(vpconv.read(sealed(tmp_path / "f", record(messages=frames)), Key(KEY)))
    problems = [one for one in found if isinstance(one, Unreadable)]
    [talk] = [one for one in found if isinstance(one, PortableConversation)]
    assert [problem.reason for problem in problems] == [
        "it is no message", "its content is not text", "the role holds a control character",
    ]  # fmt: skip
    assert [said.message.text for said in talk.messages] == ["good"]


def test_a_renamed_file_is_recognised_and_read_and_others_are_not_taken_for_one(tmp_path: Path) -> None:
    path = sealed(tmp_path / "anything.json")
    assert vpconv.recognises(source(path)) == "a sealed conversation of Agent Voice"
    for content in ("", "{}", '{"cipherText": 1', '{"id": "x", "messages": []}', '[{"conversationId": 1}]', "\0" * 99):
        other = tmp_path / "other"
        other.write_text(content)
        assert (vpconv.recognises(source(other)) is not None) == content.startswith('{"cipherText"')
    assert vpconv.recognises(Source(tmp_path, True, b"")) is None


def test_without_a_key_it_says_that_one_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(KeyUnavailable) as error:
        list(vpconv.read(sealed(tmp_path / "f"), None))
    assert "key=" in (error.value.hint or "")


def test_a_wrong_key_and_a_changed_byte_are_one_error_that_says_both(tmp_path: Path) -> None:
    path = sealed(tmp_path / "f")
    read(path)  # the control
    with pytest.raises(KeyUnavailable, match="another one, or the file is damaged"):
        read(path, bytes(31) + b"\1")
    envelope = json.loads(path.read_text())
    for field in ("cipherText", "iv", "authTag"):
        other = "B" if envelope[field][0] == "A" else "A"
        path.write_text(json.dumps({**envelope, field: other + envelope[field][1:]}))
        with pytest.raises(KeyUnavailable, match="another one, or the file is damaged"):
            read(path)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"checksum": "0" * 64}, Damaged),
        ({"checksum": ...}, Damaged),
        ({"conversationId": "another"}, Damaged),
        ({"conversationId": ""}, Damaged),
        ({"conversationId": ...}, InvalidArgument),
        ({"schemaVersion": 2}, NewerFormat),
        ({"schemaVersion": "1"}, Damaged),
        ({"schemaVersion": True}, Damaged),
        ({"schemaVersion": 0}, Damaged),
        ({"iv": "AAAA"}, Damaged),
        ({"iv": ""}, Damaged),
        ({"authTag": "AAAAAAAAAAAAAAAA"}, Damaged),  # a short tag is easier to forge
        ({"authTag": ...}, Damaged),
        ({"cipherText": "not base64"}, Damaged),
        ({"cipherText": "ünïcode"}, Damaged),
        ({"cipherText": None}, Damaged),
    ],
)
def test_an_envelope_that_is_wrong_is_refused_as_what_it_is(
    changes: dict[str, object], error: type[HithertoError], tmp_path: Path
) -> None:
    path = sealed(tmp_path / "f", None, key=KEY, **changes)
    with pytest.raises(error) as raised:
        read(path)
    assert type(raised.value) is error
    assert raised.value.hint
    assert "A talk" not in str(raised.value)  # nothing of what is sealed


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"\xff\xfe", Damaged),
        (b"not JSON", Damaged),
        (b"[]", Damaged),
        (b'{"conversationId":"c-1","conversationId":"c-1"}', Damaged),
        (b'{"conversationId":"c-1","n":NaN}', Damaged),
        (b'{"conversationId":"c-1","n":1e999}', Damaged),
        (b'{"conversationId":"c-1","messages":{}}', Damaged),
        (b'{"conversationId":"c-1","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", Damaged),
        (b'{"conversationId":"c-2"}', Damaged),
        (b'{"conversationId":"c-1","version":2}', NewerFormat),
    ],
)
def test_a_record_that_is_wrong_inside_is_damaged(content: bytes, error: type[HithertoError], tmp_path: Path) -> None:
    with pytest.raises(error):
        read(sealed(tmp_path / "f", content))


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"a":' * 100_000, b"null", b'{"conversationId":1}'])
def test_what_is_no_such_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(InvalidArgument):
        read(tmp_path / "f")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "f", "wb") as file:
        file.truncate(64 * 1024 * 1024 + 1)
    with pytest.raises(InvalidArgument, match="larger"):
        read(tmp_path / "f")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "pipe", Path("a\0b")):
        with pytest.raises(CannotOpen):
            read(path)


def test_it_is_not_written(tmp_path: Path) -> None:
    assert not vpconv.writes
    with pytest.raises(InvalidArgument, match="read, not written"):
        vpconv.write([], tmp_path / "f", None)
    assert list(tmp_path.iterdir()) == []
