"""The values of records: the fields of a conversation that a product needs.

The names are those of the record's schema. Times are aware. A record describes its conversation at one moment.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct

from .._engine.record_items import ConversationSummary, Metrics, Participant
from ..attachment import Attachment
from ..model import Saved

T = TypeVar("T")

SCHEMA_VERSION = 1
_SUMS = 10_000  # checksums that are cached
NOTE = "record"  # the name in a message's extra for the fields of a frame that a message does not have
_SYSTEM = (NOTE, "vpconv")  # the notes that mark an event as a message of the system


class AttachmentRef(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A reference to content beside a frame, with its checksum."""

    attachment_id: str
    type: str  # audio, transcript, code or document; image and video
    uri: str
    checksum: str  # SHA-256, in hexadecimal; empty if the content is missing
    byte_length: int
    missing: bool = False  # the store has lost the content


class AudioRef(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The recording of a frame."""

    uri: str
    format: str  # pcm16 or opus
    duration_ms: int


class FramePrivacy(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The secrets and personal data that were removed from a frame before it was stored."""

    contains_secrets: bool = False
    rules_applied: tuple[str, ...] = ()
    pii_tokens: tuple[str, ...] = ()  # keyed hashes, so that the same value can be recognised


class Frame(Struct, frozen=True, gc=False):
    """A message of a record."""

    frame_id: str  # the key of the message, or its id
    sequence: int  # its place in the record, from 1
    role: str
    content: str  # the text, redacted
    created_at: datetime
    attachments: tuple[AttachmentRef, ...] = ()
    privacy: FramePrivacy = FramePrivacy()
    audio: AudioRef | None = None


class Retention(Struct, frozen=True):
    """The retention of a record."""

    expires_at: datetime | None  # None: never
    policy: str = "workspace-default"  # or custom: an expiry of its own
    hold: bool = False  # it must not be destroyed
    expired: bool = False  # it is due; the next sweep deletes it, unless it is on hold


class Privacy(Struct, frozen=True):
    """The privacy of a record."""

    exportable: bool = True  # it may leave its store
    consent: str | None = None  # in the words of the caller
    classification: str = "Confidential"


class Storage(Struct, frozen=True):
    """The storage of a record."""

    location: str
    revision: int
    size_bytes: int  # of content
    checksum: str  # SHA-256 of the content of the record
    last_compacted_at: datetime | None = None  # always None: the store does not record when it packs


class Contents(Struct, frozen=True):
    """The fields of a record that take time to read."""

    summaries: tuple[ConversationSummary, ...]
    messages: tuple[Frame, ...]
    attachments: tuple[AttachmentRef, ...]
    metrics: Metrics
    storage: Storage


@dataclass(frozen=True, repr=False)
class Record:
    """A conversation as a record.

    A call that writes returns the record without its contents. They are read on first access, which raises `NotFound`
    if the record was purged since.
    """

    conversation_id: str
    revision: int  # to be passed as `expect_revision`
    title: str
    created_at: datetime
    last_interaction_at: datetime
    summary: ConversationSummary | None  # the newest
    summaries: tuple[ConversationSummary, ...]
    participants: tuple[Participant, ...]
    messages: tuple[Frame, ...]
    attachments: tuple[AttachmentRef, ...]  # of all frames
    metrics: Metrics
    retention: Retention
    privacy: Privacy
    storage: Storage
    schema_version: int = SCHEMA_VERSION

    if not TYPE_CHECKING:  # or type checkers would accept every name

        def __getattr__(self, name: str) -> object:
            """Read the contents on first access to one of them."""
            if name in Contents.__struct_fields__:
                load_contents(self)
            if name not in self.__dict__:
                raise AttributeError(f"a record has no {name}")
            return self.__dict__[name]

    def __getstate__(self) -> dict[str, object]:
        load_contents(self)
        return self.__dict__

    def __repr__(self) -> str:
        """The id and the revision, without content: reprs end up in logs."""
        return f"<Record {self.conversation_id}, revision {self.revision}>"


def deferred_record(known: Mapping[str, object], read: Callable[[], Contents]) -> Record:
    """A record whose contents are read on first access."""
    record = Record.__new__(Record)
    record.__dict__.update(known, _read=read)
    return record


def load_contents(record: Record) -> None:
    """Read the contents of a deferred record now."""
    read = record.__dict__.get("_read")
    if read is not None:
        record.__dict__.update(msgspec.structs.asdict(read()))
        record.__dict__.pop("_read", None)


class RecordSummary(Struct, frozen=True):
    """A record in a list. If its description is damaged, `problem` says so, and there is no title."""

    conversation_id: str
    revision: int
    title: str
    created_at: datetime
    last_interaction_at: datetime
    message_count: int  # on all branches
    size_bytes: int
    retention: Retention
    exportable: bool = True
    problem: str | None = None


class RecordPage(Struct, frozen=True):
    """A part of a list. Pass `next_cursor` to `list` for the next part; None: this was the last."""

    items: tuple[RecordSummary, ...]
    next_cursor: str | None
    total: int | None  # records that all parts have together; None if it was not asked for

    def __iter__(self) -> Iterator[RecordSummary]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


# -- from messages to frames

_CLEAN = FramePrivacy()


Sums = dict[tuple[str, bytes], str]  # checksums of attachments, by conversation and fingerprint


def record_messages(path: list[Saved]) -> list[tuple[Saved, str]]:
    """The messages of a thread that belong to its record, with their roles: all except events without a speaker."""
    said = ((message, _role(message)) for message in path)
    return [(message, role) for message, role in said if role != "event"]


def frames(path: list[Saved], sums: Sums) -> tuple[Frame, ...]:
    """The frames of a thread. Attachments with a cached checksum are not read again."""
    return tuple(_frame(message, role, place, sums) for place, (message, role) in enumerate(record_messages(path), 1))


def _role(message: Saved) -> str:
    """The role of a message in its record. Messages of the system are stored as events, so that no model gets them."""
    if message.role == "event" and any(_read_note(message, name).get("role") == "system" for name in _SYSTEM):
        return "system"
    return message.role


def _read_note(message: Saved, name: str = NOTE) -> Mapping[str, object]:
    found = (message.extra or {}).get(name)
    return found if isinstance(found, dict) else {}


def _frame(message: Saved, role: str, place: int, sums: Sums) -> Frame:
    note = _read_note(message) if message.extra else {}
    bare = not note and all(type(block.content) is str for block in message.blocks)
    return Frame(
        message.key or message.id,
        place,
        role,
        message.text,
        message.created_at,
        () if bare else tuple(_attachments(message, note, sums)),
        _privacy(message.privacy) if message.privacy else _CLEAN,
        _convert(note.get("audio"), AudioRef) if note else None,
    )


def _attachments(message: Saved, note: Mapping[str, object], sums: Sums) -> Iterator[AttachmentRef]:
    """The attachments of a frame: references in its note, and the content of its message beside text."""
    listed = note.get("attachments")
    for given in listed if isinstance(listed, list) else ():
        ref = _convert(given, AttachmentRef)
        if ref is not None:
            yield ref
    for number, block in enumerate(message.blocks):
        if not isinstance(block.content, str):
            yield _reference(message, number, block.content, block.modality, sums)


def _convert(value: object, kind: type[T]) -> T | None:
    """Convert a note. None if it does not have our form: a foreign program may have written it."""
    try:
        return msgspec.convert(value, kind) if isinstance(value, dict) else None
    except msgspec.ValidationError:
        return None


def _reference(message: Saved, number: int, content: bytes | Attachment, modality: str, sums: Sums) -> AttachmentRef:
    """A reference to content in the store itself."""
    size = content.size if isinstance(content, Attachment) else len(content)
    kind = modality if modality in ("audio", "image", "video") else "document"
    missing = isinstance(content, Attachment) and content.is_missing
    place, sum_ = f"{message.id}/{number}", "" if missing else _checksum(message.conversation, content, sums)
    return AttachmentRef(place, kind, f"{message.conversation}/{place}", sum_, size, missing)


def _checksum(conversation: str, content: bytes | Attachment, sums: Sums) -> str:
    """The SHA-256 of content. In a plain store it is the name of the attachment; in a sealed one the content is read
    once."""
    name = content.stored_name if isinstance(content, Attachment) else None
    if name is not None and len(name) == hashlib.sha256().digest_size:
        return name.hex()
    if name is not None and (conversation, name) in sums:
        return sums[conversation, name]
    sha256 = hashlib.sha256()
    for piece in content if isinstance(content, Attachment) else (content,):
        sha256.update(piece)
    if name is not None:
        sums[conversation, name] = sha256.hexdigest()
        while len(sums) > _SUMS:
            sums.pop(next(iter(sums)), None)
    return sha256.hexdigest()


def _privacy(noted: Mapping[str, object]) -> FramePrivacy:
    texts = {
        name: tuple(text for text in found if isinstance(text, str))
        for name in ("rules", "hashes")
        if isinstance(found := noted.get(name), list)
    }
    return FramePrivacy(noted.get("contains_secrets") is True, texts.get("rules", ()), texts.get("hashes", ()))


def checksum(*said: object) -> str:
    """The SHA-256 of the content of a record."""
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()
