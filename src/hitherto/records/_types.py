"""A record as a value: what a product that keeps histories wants to know of a conversation.

Each name is that of the record's schema; times are aware. What is given out holds of one moment.
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
_SUMS = 10_000  # checksums that are remembered
NOTE = "record"  # in a message's extra: what a frame has that a message has no word for
_SYSTEM = (NOTE, "vpconv")  # where it stands that an event was said by the system


class AttachmentRef(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Content beside a frame: where it lies, and what it must be."""

    attachment_id: str
    type: str  # audio, transcript, code or document; image and video
    uri: str
    checksum: str  # SHA-256, in hexadecimal; empty if it is not known, because the content is missing
    byte_length: int
    missing: bool = False  # the store has lost the content


class AudioRef(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The recording of a frame."""

    uri: str
    format: str  # pcm16 or opus
    duration_ms: int


class FramePrivacy(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """What was taken out of a frame before it was kept."""

    contains_secrets: bool = False
    rules_applied: tuple[str, ...] = ()
    pii_tokens: tuple[str, ...] = ()  # keyed hashes, so that the same value can be recognised


class Frame(Struct, frozen=True, gc=False):
    """Something said."""

    frame_id: str  # the key of the message, or its id
    sequence: int  # its place in the record, from 1
    role: str
    content: str  # the text, redacted
    created_at: datetime
    attachments: tuple[AttachmentRef, ...] = ()
    privacy: FramePrivacy = FramePrivacy()
    audio: AudioRef | None = None


class Retention(Struct, frozen=True):
    """How long a record is kept."""

    expires_at: datetime | None  # None: for as long as nobody says otherwise
    policy: str = "workspace-default"  # or custom: an expiry of its own
    hold: bool = False  # nothing may destroy it
    expired: bool = False  # it is due, and goes with the next sweep, unless it is on hold


class Privacy(Struct, frozen=True):
    """Who may see a record."""

    exportable: bool = True  # it may leave its store
    consent: str | None = None  # who agreed to what
    classification: str = "Confidential"


class Storage(Struct, frozen=True):
    """Where a record lies."""

    location: str
    revision: int
    size_bytes: int  # of content
    checksum: str  # SHA-256 of what the record says
    last_compacted_at: datetime | None = None  # packing is the store's own business, and not told apart


class Contents(Struct, frozen=True):
    """What takes time to read of a record."""

    summaries: tuple[ConversationSummary, ...]
    messages: tuple[Frame, ...]
    attachments: tuple[AttachmentRef, ...]
    metrics: Metrics
    storage: Storage


@dataclass(frozen=True, repr=False)
class Record:
    """A conversation, as a record. Who wrote to it has it without its contents, which are read when somebody looks at
    one of them: `NotFound` if it was purged since."""

    conversation_id: str
    revision: int  # what `expect_revision` is compared with
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

    @classmethod
    def _later(cls, known: Mapping[str, object], read: Callable[[], Contents]) -> "Record":
        """One whose contents are read when they are wanted."""
        made = cls.__new__(cls)
        made.__dict__.update(known, _read=read)
        return made

    def _load(self) -> None:
        read = self.__dict__.get("_read")
        if read is not None:
            self.__dict__.update(msgspec.structs.asdict(read()))
            self.__dict__.pop("_read", None)

    if not TYPE_CHECKING:  # or every name would be one that a record has

        def __getattr__(self, name: str) -> object:
            """Called for what is not there: so far, or at all."""
            if name in Contents.__struct_fields__:
                self._load()
            if name not in self.__dict__:
                raise AttributeError(f"a record has no {name}")
            return self.__dict__[name]

    def __getstate__(self) -> dict[str, object]:
        self._load()
        return self.__dict__

    def __repr__(self) -> str:
        """Without what was said: it ends up in logs."""
        return f"<Record {self.conversation_id}, revision {self.revision}>"


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


def shown(path: list[Saved]) -> list[tuple[Saved, str]]:
    """What of a thread is in its record, and as whose: every message, but for events that nobody said."""
    said = ((message, _role(message)) for message in path)
    return [(message, role) for message, role in said if role != "event"]


def frames(path: list[Saved], sums: Sums) -> tuple[Frame, ...]:
    """The frames of a thread. What is known of attachments is not read again."""
    return tuple(_frame(message, role, place, sums) for place, (message, role) in enumerate(shown(path), 1))


def _role(message: Saved) -> str:
    """What the system says is kept as an event: no model is sent it again."""
    if message.role == "event" and any(_noted(message, name).get("role") == "system" for name in _SYSTEM):
        return "system"
    return message.role


def _noted(message: Saved, name: str = NOTE) -> Mapping[str, object]:
    found = (message.extra or {}).get(name)
    return found if isinstance(found, dict) else {}


def _frame(message: Saved, role: str, place: int, sums: Sums) -> Frame:
    note = _noted(message) if message.extra else {}
    bare = not note and all(type(block.content) is str for block in message.blocks)
    return Frame(
        message.key or message.id,
        place,
        role,
        message.text,
        message.created_at,
        () if bare else tuple(_attachments(message, note, sums)),
        _privacy(message.privacy) if message.privacy else _CLEAN,
        _converted(note.get("audio"), AudioRef) if note else None,
    )


def _attachments(message: Saved, note: Mapping[str, object], sums: Sums) -> Iterator[AttachmentRef]:
    """What a frame refers to, and what its message holds beside text."""
    listed = note.get("attachments")
    for given in listed if isinstance(listed, list) else ():
        ref = _converted(given, AttachmentRef)
        if ref is not None:
            yield ref
    for number, block in enumerate(message.blocks):
        if not isinstance(block.content, str):
            yield _held(message, number, block.content, block.modality, sums)


def _converted(value: object, kind: type[T]) -> T | None:
    """What somebody else may have written under our name is not taken for ours."""
    try:
        return msgspec.convert(value, kind) if isinstance(value, dict) else None
    except msgspec.ValidationError:
        return None


def _held(message: Saved, number: int, content: bytes | Attachment, modality: str, sums: Sums) -> AttachmentRef:
    """What is in the store itself."""
    size = content.size if isinstance(content, Attachment) else len(content)
    kind = modality if modality in ("audio", "image", "video") else "document"
    missing = isinstance(content, Attachment) and content.is_missing
    place, sum_ = f"{message.id}/{number}", "" if missing else _checksum(message.conversation, content, sums)
    return AttachmentRef(place, kind, f"{message.conversation}/{place}", sum_, size, missing)


def _checksum(conversation: str, content: bytes | Attachment, sums: Sums) -> str:
    """In a plain store an attachment is named by it; in a sealed one it is read once."""
    name = content._name if isinstance(content, Attachment) else None
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
    """Of what a record says."""
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()
