"""What callers give, checked and cleaned, before anything is written.

Values come as the structs that records are read as, or as dicts with the same names. A name that is not known is
refused: somebody who writes `expire_at` means something. The error names that field, cleaned like everything that is
given, and the fields that there are; no value that was given stands in it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec import Meta as Limits
from msgspec.structs import replace

from .._engine.record_items import Amendment, ConversationSummary, Measure, Metrics, Participant, Time
from ..conversation import checked_text
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


class Said(Struct, frozen=True):
    """A message on its way into a record."""

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


class Given:
    """Turns what is given into what is kept, for one store."""

    def __init__(self, store: "Store", redactors: "Sequence[Redactor]") -> None:
        self._store, self._redactors = store, redactors

    def _as(self, given: object, kind: type[T], like: type | None, what: str) -> T:
        """The value as one of this kind, from a dict, or from the struct that it is read as."""
        known = ", ".join(getattr(kind, "__struct_fields__", ()))
        if not isinstance(given, Mapping) and (like is None or type(given) is not like):
            raise InvalidArgument(f"{what} is a dict, not a {type(given).__name__}", hint=f"with {known}")
        try:
            return msgspec.convert(dict(_fields(given)), kind, from_attributes=True)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"{what} cannot be taken: {self._reason(error)}", hint=f"with {known}") from None
        except UnicodeEncodeError:
            what = f"{what} has a name with half of a surrogate pair, which is not a character"
            raise InvalidArgument(what) from None

    def _reason(self, error: msgspec.ValidationError) -> str:
        """What is wrong, in msgspec's words. The name of an unknown field is the caller's own, so it is cleaned."""
        found = _UNKNOWN.search(str(error))
        if found is None:
            return shorten(ascii(str(error))[1:-1], 200)
        name = found[1]
        for redactor in self._redactors:
            name = redactor.text(name)
        where = f" in {found[2].removeprefix('$.')}" if found[2] else ""
        return f"there is no field {shorten(ascii(name), 60)}{where}"

    # -- messages

    def messages(self, given: object) -> list[Said]:
        """Messages in order, each frame once."""
        found: dict[object, Said] = {}
        for place, one in enumerate(as_list(given, "messages")):
            said = self._message(one) if isinstance(one, Message) else self._frame(one, f"message {place + 1}")
            found.setdefault(said.message.key or place, said)
        return list(found.values())

    def _message(self, message: Message) -> Said:
        if not isinstance(message, Saved) and message.parent is not None:
            hint = "give messages without a parent; store.save([...]) puts one elsewhere"
            raise InvalidArgument("a record goes on at its end", hint=hint)
        return Said(self._clean(message))

    def _frame(self, given: object, what: str) -> Said:
        frame = self._as(given, _Frame, Frame, what)
        _one_of(frame.role, _ROLES, f"the role of {what}")
        note: dict[str, object] = {}
        if frame.role == "system":
            note["role"] = frame.role
        if frame.attachments:
            note["attachments"] = [msgspec.to_builtins(_attachment(ref, what)) for ref in frame.attachments]
        if frame.audio is not None:
            _one_of(frame.audio.format, _FORMATS, f"the audio format of {what}")
            if not 0 <= frame.audio.duration_ms < 2**63:
                raise InvalidArgument(f"the audio of {what} takes a time from 0 up")
            note["audio"] = msgspec.to_builtins(frame.audio)
        message = Message(
            "event" if frame.role == "system" else frame.role,
            (Block("content", frame.content),),
            key=frame.frame_id or None,
            extra={NOTE: note} if note else None,
            privacy=_noted(frame.privacy),
        )
        at = None if frame.created_at is None else from_datetime(frame.created_at, "created_at")
        return Said(self._clean(message), frame.sequence, at)

    def _clean(self, message: Message) -> Message:
        """Without what is not to be kept. By its key a message is found again: one that holds a secret is refused, and
        one with something personal, or with what by chance looks so, becomes another, always the same."""
        check(message)
        key = message.key
        for redactor in self._redactors:
            key = redactor.id(redactor.name(key, "the frame_id", personal=False))
            message = redactor.message(message if key is None else replace(message, key=None))
        return message if key is None else replace(message, key=key)

    def time(self, given: object, what: str) -> int:
        """The microseconds of a datetime, or of one as ISO text, as frames take it."""
        if isinstance(given, str):
            try:
                given = msgspec.convert(given, Time)
            except (msgspec.ValidationError, UnicodeEncodeError):
                hint = "2026-01-02T03:04:05Z, or datetime.now(UTC)"
                raise InvalidArgument(f"{what} is no time with a time zone", hint=hint) from None
        return from_datetime(given, what)  # type: ignore[arg-type]  # it checks what it is

    # -- what is said of the record

    def title(self, title: str | None) -> str | None:
        return None if title is None else self._text(title, "the title")

    def _check_text(self, text: str, what: str) -> None:
        checked_text(text, what, self._store._max_write_bytes)
        if not encodable(text):
            raise InvalidArgument(f"{what} holds half of a surrogate pair, which is not a character")

    def _text(self, text: str, what: str) -> str:
        self._check_text(text, what)
        for redactor in self._redactors:
            text = redactor.text(text)
        return text

    def participants(self, given: object) -> tuple[Participant, ...] | None:
        if given is None:
            return None
        found = [self._as(one, Participant, Participant, "a participant") for one in as_list(given, "participants")]
        for one in found:
            _one_of(one.role, _ROLES, "the role of a participant")
        return tuple(replace(p, id=self._id(p.id), display_name=self._maybe(p.display_name)) for p in found)

    def _id(self, id: str) -> str:
        """Two participants stay two, whatever is taken out of their ids."""
        self._check_text(id, "the id of a participant")
        for redactor in self._redactors:
            id = redactor.id(id)
        return id

    def _maybe(self, text: str | None) -> str | None:
        return None if text is None else self._text(text, "the text")

    def summary(self, given: object) -> ConversationSummary | None:
        if given is None:
            return None
        found = self._as(given, _Summary, ConversationSummary, "the summary")
        at = to_datetime(
            self._store._clock()
            if found.last_updated_at is None
            else from_datetime(found.last_updated_at, "last_updated_at")
        )
        return ConversationSummary(
            self._text(found.synopsis, "the synopsis"),
            at,
            tuple(self._text(word, "a keyword") for word in found.keywords),
            tuple(self._text(item, "an action item") for item in found.action_items),
        )

    def metrics(self, given: object) -> dict[Measure, int]:
        found = {} if given is None else msgspec.to_builtins(self._as(given, _Metrics, Metrics, "the metrics"))
        return dict(found)

    def retention(self, given: object) -> Amendment:
        if given is None:
            return Amendment()
        if isinstance(given, Retention):
            given = {"policy": given.policy, "hold": given.hold} | (
                {"expires_at": given.expires_at} if given.policy == "custom" else {}
            )
        found = self._as(given, _Retention, None, "the retention")
        own = found.expires_at is not UNSET and found.expires_at is not None
        _one_of(found.policy, (None, "custom" if own else "workspace-default"), "the policy beside this expires_at")
        expires: int | UnsetType | None = UNSET
        if isinstance(found.expires_at, UnsetType | None):
            expires = UNSET if found.expires_at is UNSET and found.policy is None else None
        else:
            expires = from_datetime(found.expires_at, "expires_at")
        return Amendment(held=found.hold, expires_at=expires)

    def privacy(self, given: object) -> Amendment:
        if given is None:
            return Amendment()
        found = self._as(given, _Privacy, Privacy, "the privacy")
        _one_of(found.classification, ("Confidential",), "the classification")
        consent = found.consent if isinstance(found.consent, UnsetType) else self._maybe(found.consent)
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
        """All of it."""
        kept, seen = self.retention(retention), self.privacy(privacy)
        return replace(
            kept,
            title=self.title(title),
            exportable=seen.exportable,
            consent=seen.consent,
            participants=self.participants(participants),
            metrics=self.metrics(metrics),
            summary=self.summary(summary),
        )


def check_kind(given: object, kind: type, hint: str) -> None:
    if not isinstance(given, kind):
        raise InvalidArgument(f"a {type(given).__name__} where a {kind.__name__} is wanted", hint=hint)


def check_places(said: Iterable[Said], first: int) -> None:
    """A sequence that was given has to be the place that the message gets."""
    for place, one in enumerate(said, first):
        if one.sequence not in (None, place):
            hint = "leave the sequence out, or read the record again: it may have grown"
            raise InvalidArgument(
                f"a message says that its sequence is {one.sequence}, and it would be {place}", hint=hint
            )


_UNKNOWN = re.compile(r"unknown field `(.*?)`(?: - at `([^`]*)`)?$", re.DOTALL)  # as msgspec says it


def _fields(given: object) -> Iterator[tuple[object, object]]:
    if isinstance(given, Mapping):
        yield from given.items()
    else:
        yield from ((name, getattr(given, name)) for name in getattr(given, "__struct_fields__", ()))


def _one_of(value: object, allowed: Sequence[object], what: str) -> None:
    if value not in allowed:
        shown = ", ".join(str(one) for one in allowed if one is not None)
        raise InvalidArgument(f"{what} is none that is known", hint=f"one of {shown}")


def _attachment(ref: AttachmentRef, what: str) -> AttachmentRef:
    _one_of(ref.type, _KINDS, f"the type of an attachment of {what}")
    known = len(ref.checksum) == 64 and not set(ref.checksum) - set("0123456789abcdef")
    if ref.byte_length < 0 or not (known or (ref.missing and not ref.checksum)):
        hint = "the SHA-256 in 64 small hexadecimal digits, and a length from 0 up"
        raise InvalidArgument(f"an attachment of {what} has no checksum or length that could be one", hint=hint)
    return ref


def _noted(privacy: FramePrivacy) -> dict[str, object] | None:
    """What is known of a frame already, in the words of the sanitiser."""
    if privacy == FramePrivacy():
        return None
    rules, hashes = list(privacy.rules_applied), list(privacy.pii_tokens)
    return {"contains_secrets": privacy.contains_secrets, "rules": rules, "hashes": hashes}
