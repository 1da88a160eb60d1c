"""Check and clean the arguments of callers before anything is written.

Values are the structs that records return, or dicts with the same names. An unknown name is refused: a caller who
writes `expire_at` by mistake should know it. The error names that field, which is cleaned like all input, and lists the
valid fields; it holds none of the values.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec import Meta as Limits
from msgspec.structs import replace

from .._engine.record_items import Amendment, ConversationSummary, Measure, Metrics, Participant, Time
from .._engine.setups import check_text
from ..errors import InvalidArgument, shorten
from ..model import Block, Message, Saved, as_list, check, encodable, from_datetime, to_datetime
from ._types import NOTE, AttachmentRef, AudioRef, Frame, FramePrivacy, Privacy, Retention

if TYPE_CHECKING:
    from ..sanitiser.redactor import Redactor
    from ..store import Store

T = TypeVar("T")
_KINDS = ("audio", "transcript", "code", "document", "image", "video")
_FORMATS = ("pcm16", "opus")
_ROLES = ("user", "assistant", "system")
_Count = Annotated[int, Limits(ge=0, le=2**63 - 1)]


class NewMessage(Struct, frozen=True):
    """A message that is to be added to a record."""

    message: Message
    sequence: int | None = None
    at: int | None = None


class _Frame(Struct, forbid_unknown_fields=True):
    role: str
    content: str
    frame_id: str | None = None
    sequence: int | None = None
    created_at: Time | None = None
    attachments: tuple[AttachmentRef, ...] = ()
    privacy: FramePrivacy = FramePrivacy()
    audio: AudioRef | None = None


class _Summary(Struct, forbid_unknown_fields=True):
    synopsis: str
    last_updated_at: Time | None = None
    keywords: tuple[str, ...] = ()
    action_items: tuple[str, ...] = ()


class _Metrics(Struct, forbid_unknown_fields=True, omit_defaults=True):
    user_utterances: _Count | UnsetType = UNSET
    assistant_utterances: _Count | UnsetType = UNSET
    duration_ms: _Count | UnsetType = UNSET
    average_latency_ms: _Count | UnsetType = UNSET


class _Retention(Struct, forbid_unknown_fields=True):
    expires_at: Time | UnsetType | None = UNSET
    policy: str | None = None
    hold: bool | None = None


class _Privacy(Struct, forbid_unknown_fields=True):
    exportable: bool | None = None
    consent: str | UnsetType | None = UNSET
    classification: str = "Confidential"


class Inputs:
    """Converts arguments into stored values, for one store."""

    def __init__(self, store: "Store", redactors: "Sequence[Redactor]") -> None:
        self._store, self._redactors = store, redactors

    def _convert(self, value: object, kind: type[T], like: type | None, what: str) -> T:
        """Convert a dict, or the struct that records return, into this type."""
        known = ", ".join(getattr(kind, "__struct_fields__", ()))
        if not isinstance(value, Mapping) and (like is None or type(value) is not like):
            raise InvalidArgument(f"{what} is a dict, not a {type(value).__name__}", hint=f"with {known}")
        try:
            return msgspec.convert(dict(_fields(value)), kind, from_attributes=True)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"{what} cannot be taken: {self._reason(error)}", hint=f"with {known}") from None
        except UnicodeEncodeError:
            what = f"{what} has a name with half of a surrogate pair, which is not a character"
            raise InvalidArgument(what) from None

    def _reason(self, error: msgspec.ValidationError) -> str:
        """The reason of an error, as msgspec says it. The name of an unknown field is the caller's own, so it is
        cleaned."""
        found = _UNKNOWN.search(str(error))
        if found is None:
            return shorten(ascii(str(error))[1:-1], 200)
        name = found[1]
        for redactor in self._redactors:
            name = redactor.text(name)
        where = f" in {found[2].removeprefix('$.')}" if found[2] else ""
        return f"there is no field {shorten(ascii(name), 60)}{where}"

    # -- messages

    def messages(self, value: object) -> list[NewMessage]:
        """The new messages in order, each frame once."""
        found: dict[object, NewMessage] = {}
        for place, one in enumerate(as_list(value, "messages")):
            new = self._message(one) if isinstance(one, Message) else self._frame(one, f"message {place + 1}")
            found.setdefault(new.message.key or place, new)
        return list(found.values())

    def _message(self, message: Message) -> NewMessage:
        if not isinstance(message, Saved) and message.parent is not None:
            hint = "give messages without a parent; store.save([...]) puts one elsewhere"
            raise InvalidArgument("a record goes on at its end", hint=hint)
        return NewMessage(self._clean(message))

    def _frame(self, value: object, what: str) -> NewMessage:
        frame = self._convert(value, _Frame, Frame, what)
        _check_choice(frame.role, _ROLES, f"the role of {what}")
        note: dict[str, object] = {}
        if frame.role == "system":
            note["role"] = frame.role
        if frame.attachments:
            note["attachments"] = [msgspec.to_builtins(_attachment(ref, what)) for ref in frame.attachments]
        if frame.audio is not None:
            _check_choice(frame.audio.format, _FORMATS, f"the audio format of {what}")
            if not 0 <= frame.audio.duration_ms < 2**63:
                raise InvalidArgument(f"the audio of {what} takes a time from 0 up")
            note["audio"] = msgspec.to_builtins(frame.audio)
        message = Message(
            "event" if frame.role == "system" else frame.role,
            (Block("content", frame.content),),
            key=frame.frame_id or None,
            extra={NOTE: note} if note else None,
            privacy=_privacy_notes(frame.privacy),
        )
        at = None if frame.created_at is None else from_datetime(frame.created_at, "created_at")
        return NewMessage(self._clean(message), frame.sequence, at)

    def _clean(self, message: Message) -> Message:
        """Remove secrets and personal data. The key of a message is used for lookups: a key with a secret is refused. A
        key with personal data, or with text that looks so by chance, is replaced, always by the same key."""
        check(message)
        key = message.key
        for redactor in self._redactors:
            key = redactor.id(redactor.name(key, "the frame_id", personal=False))
            message = redactor.message(message if key is None else replace(message, key=None))
        return message if key is None else replace(message, key=key)

    def time(self, value: object, what: str) -> int:
        """The microseconds of a datetime, or of the same as ISO text."""
        if isinstance(value, str):
            try:
                value = msgspec.convert(value, Time)
            except (msgspec.ValidationError, UnicodeEncodeError):
                hint = "2026-01-02T03:04:05Z, or datetime.now(UTC)"
                raise InvalidArgument(f"{what} is no time with a time zone", hint=hint) from None
        return from_datetime(value, what)  # type: ignore[arg-type]  # it checks the type

    # -- the other fields of a record

    def title(self, title: str | None) -> str | None:
        return None if title is None else self._text(title, "the title")

    def _check_text(self, text: str, what: str) -> None:
        check_text(text, what, self._store.engine.max_write_bytes)
        if not encodable(text):
            raise InvalidArgument(f"{what} holds half of a surrogate pair, which is not a character")

    def _text(self, text: str, what: str) -> str:
        self._check_text(text, what)
        for redactor in self._redactors:
            text = redactor.text(text)
        return text

    def participants(self, value: object) -> tuple[Participant, ...] | None:
        if value is None:
            return None
        found = [
            self._convert(one, Participant, Participant, "a participant") for one in as_list(value, "participants")
        ]
        for one in found:
            _check_choice(one.role, _ROLES, "the role of a participant")
        return tuple(
            replace(p, id=self._clean_id(p.id), display_name=self._optional_text(p.display_name)) for p in found
        )

    def _clean_id(self, id: str) -> str:
        """Clean the id of a participant. Distinct ids stay distinct."""
        self._check_text(id, "the id of a participant")
        for redactor in self._redactors:
            id = redactor.id(id)
        return id

    def _optional_text(self, text: str | None) -> str | None:
        return None if text is None else self._text(text, "the text")

    def summary(self, value: object) -> ConversationSummary | None:
        if value is None:
            return None
        found = self._convert(value, _Summary, ConversationSummary, "the summary")
        at = to_datetime(
            self._store.engine.clock()
            if found.last_updated_at is None
            else from_datetime(found.last_updated_at, "last_updated_at")
        )
        return ConversationSummary(
            self._text(found.synopsis, "the synopsis"),
            at,
            tuple(self._text(word, "a keyword") for word in found.keywords),
            tuple(self._text(item, "an action item") for item in found.action_items),
        )

    def metrics(self, value: object) -> dict[Measure, int]:
        found = {} if value is None else msgspec.to_builtins(self._convert(value, _Metrics, Metrics, "the metrics"))
        return dict(found)

    def retention(self, value: object) -> Amendment:
        if value is None:
            return Amendment()
        if isinstance(value, Retention):
            value = {"policy": value.policy, "hold": value.hold} | (
                {"expires_at": value.expires_at} if value.policy == "custom" else {}
            )
        found = self._convert(value, _Retention, None, "the retention")
        own = found.expires_at is not UNSET and found.expires_at is not None
        _check_choice(
            found.policy, (None, "custom" if own else "workspace-default"), "the policy beside this expires_at"
        )
        expires: int | UnsetType | None = UNSET
        if isinstance(found.expires_at, UnsetType | None):
            expires = UNSET if found.expires_at is UNSET and found.policy is None else None
        else:
            expires = from_datetime(found.expires_at, "expires_at")
        return Amendment(held=found.hold, expires_at=expires)

    def privacy(self, value: object) -> Amendment:
        if value is None:
            return Amendment()
        found = self._convert(value, _Privacy, Privacy, "the privacy")
        _check_choice(found.classification, ("Confidential",), "the classification")
        consent = found.consent if isinstance(found.consent, UnsetType) else self._optional_text(found.consent)
        return Amendment(exportable=found.exportable, consent=consent)

    def amendment(
        self,
        *,
        title: str | None = None,
        summary: object = None,
        retention: object = None,
        metrics: object = None,
        participants: object = None,
        privacy: object = None,
    ) -> Amendment:
        """Convert all fields of an update."""
        amendment, access = self.retention(retention), self.privacy(privacy)
        return replace(
            amendment,
            title=self.title(title),
            exportable=access.exportable,
            consent=access.consent,
            participants=self.participants(participants),
            metrics=self.metrics(metrics),
            summary=self.summary(summary),
        )


def check_kind(value: object, kind: type, hint: str) -> None:
    if not isinstance(value, kind):
        raise InvalidArgument(f"a {type(value).__name__} where a {kind.__name__} is wanted", hint=hint)


def check_places(new: Iterable[NewMessage], first: int) -> None:
    """Refuse a message whose sequence is not the place that it gets."""
    for place, one in enumerate(new, first):
        if one.sequence not in (None, place):
            hint = "leave the sequence out, or read the record again: it may have grown"
            raise InvalidArgument(
                f"a message says that its sequence is {one.sequence}, and it would be {place}", hint=hint
            )


_UNKNOWN = re.compile(r"unknown field `(.*?)`(?: - at `([^`]*)`)?$", re.DOTALL)  # in the words of msgspec


def _fields(value: object) -> Iterator[tuple[object, object]]:
    if isinstance(value, Mapping):
        yield from value.items()
    else:
        yield from ((name, getattr(value, name)) for name in getattr(value, "__struct_fields__", ()))


def _check_choice(value: object, allowed: Sequence[object], what: str) -> None:
    if value not in allowed:
        shown = ", ".join(str(one) for one in allowed if one is not None)
        raise InvalidArgument(f"{what} is none that is known", hint=f"one of {shown}")


def _attachment(ref: AttachmentRef, what: str) -> AttachmentRef:
    _check_choice(ref.type, _KINDS, f"the type of an attachment of {what}")
    has_checksum = len(ref.checksum) == 64 and not set(ref.checksum) - set("0123456789abcdef")
    if ref.byte_length < 0 or not (has_checksum or (ref.missing and not ref.checksum)):
        hint = "the SHA-256 in 64 small hexadecimal digits, and a length from 0 up"
        raise InvalidArgument(f"an attachment of {what} has no checksum or length that could be one", hint=hint)
    return ref


def _privacy_notes(privacy: FramePrivacy) -> dict[str, object] | None:
    """The privacy of a frame that was cleaned before, in the form of the sanitiser's notes."""
    if privacy == FramePrivacy():
        return None
    rules, hashes = list(privacy.rules_applied), list(privacy.pii_tokens)
    return {"contains_secrets": privacy.contains_secrets, "rules": rules, "hashes": hashes}
