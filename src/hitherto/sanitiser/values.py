"""One value, cleaned: a text, JSON, bytes, an attachment.

A sanitiser knows texts. Here is where texts are: in JSON and in JSON inside of JSON, behind escapes, in base64 of both
alphabets, in bytes and files that turn out to be text, whatever they are called.

In JSON the name of a field is a hint: what stands under `password` is one. Under names that providers give to ids and
to state of their own it is not: such a value is judged by what it looks like alone, and a long run of base64 there is
left alone, because a changed one would break the conversation. An id that does hold something becomes another one,
always the same, so that a result still finds its call; so do names in JSON, which have to stay apart.

What still **grows**, because an answer is on its way, loses its end if that may become something. Not everything does:
the last item of a list, and there what is neither a name, nor an id, nor a word, nor JSON that is closed.
"""

import base64
import binascii
import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TypeVar

import msgspec

from ..attachment import Attachment
from . import Cleaned, Finding, Rule, Sanitiser, values_in

T = TypeVar("T")
V = TypeVar("V")

ARGUMENTS = ("input", "args", "arguments", "parameters")  # an object under one of these is there when it is whole
_IDS = ("id", "call_id", "tool_call_id", "tool_use_id", "response_id", "item_id", "previous_response_id", "file_id")
_STATE = (
    "signature",
    "thoughtsignature",
    "thought_signature",
    "encrypted_content",
    "encrypted_index",
    "encrypted_stdout",
    "redacted",
    "data",
    "system_fingerprint",
)
_WORDS = (
    "type",
    "name",
    "role",
    "model",
    "format",
    "mime_type",
    "mimetype",
    "media_type",
    "finish_reason",
    "stop_reason",
)
_PLACES = ("uri", "url", "file_uri", "fileuri", "container_id")
_OPAQUE = frozenset((*_IDS, *_STATE, *_WORDS, *_PLACES))
_STREAMED = ("text", "content", "thinking", "refusal", "reasoning", "reasoning_content")
_DATA = ("data", "file_data")  # fields that hold base64
_KINDS = ("media_type", "mime_type", "mimeType")  # and fields beside them that say of what
_TEXTS = ("text/", "message/")
_MEDIA = ("image/", "audio/", "video/")
_TEXT_PARTS = ("json", "xml", "yaml", "toml", "javascript", "typescript", "x-sh", "sql", "csv", "x-www-form-urlencoded")

_WORD = re.compile(r"[a-z]+(?:[_.-][a-z]+)*")
_LONGEST_WORD = 40
_RUN = re.compile(r"[A-Za-z0-9+/_-]{101,}={0,2}|(?:[A-Za-z0-9+/]{60,76}\r?\n){2,}[A-Za-z0-9+/]{0,76}={0,2}\s*")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*+)(?:"|\\?\Z)(\s*:)?', re.DOTALL)  # of JSON; one without an end ends the text
_HIDING = re.compile(r"\\[u/]")  # escapes that change what a pattern sees
_HALVES = re.compile("[\ud800-\udfff]")
_NAMED = 51  # characters of a rule's name that go into a marker with a hash
_NAMES = 10_000  # that are known to be clean
_BEGINNING = 512  # characters of a long one that show whether it is a key
_SNIFFED = 1 << 16  # bytes that show whether something is text


def is_text(mime_type: str) -> bool:
    """Are bytes of this kind text?

    >>> is_text("text/plain; charset=utf-8"), is_text("application/ld+json"), is_text("image/png")
    (True, True, False)
    """
    kind = mime_type.partition(";")[0].strip().lower()
    return kind.startswith(_TEXTS) or any(part in kind for part in _TEXT_PARTS)


class Cleaning:
    """One thing that is being cleaned, and what was found in it."""

    def __init__(self, sanitiser: Sanitiser, names: set[str] | None = None) -> None:
        """`names` are known to be clean; those that turn out to be are added."""
        self._sanitiser = sanitiser
        self._names = set() if names is None else names
        self._known: dict[tuple[str, str, bool], str] = {}  # the provider's own message says the same texts again
        self.found: list[Finding] = []
        self.values: dict[str, Rule] = {}  # secrets that were found: each goes wherever else it stands

    def _note(self, text: str, findings: Sequence[Finding]) -> None:
        self.found += findings
        self.values |= values_in(text, findings)

    def findings(self, text: str) -> Sequence[Finding]:
        """What there is in a text that is not to be changed."""
        return self._sanitiser.clean(text).findings

    # -- texts

    def text(self, text: str, name: str = "", *, as_json: bool = False, grows: bool = False) -> str:
        """A text, and what it says if it is JSON: escapes there may hide something."""
        known = self._known.get((name, text, grows))
        if known is not None:
            return text if known == text else known  # callers tell by identity that nothing was changed
        as_json = as_json or text[:100].lstrip()[:1] in ("{", "[")
        given = self._literals(text) if as_json else text
        cleaned = self._sanitiser.clean(given, name=name, complete=not grows)
        self._note(given, cleaned.findings)
        result = text if cleaned.text == text else cleaned.text
        if as_json:
            result = self._json(result)
        self._known[name, text, grows] = result
        return result

    def id(self, id: str) -> str:
        """An id: one that has to be another is the same other one everywhere. A UUID says nothing."""
        if _UUID.fullmatch(id):
            return id
        cleaned = self._sanitiser.clean(id)
        self._note(id, cleaned.findings)
        for one in sorted(cleaned.findings, key=lambda one: -one.start):
            id = f"{id[: one.start]}[redacted:{one.rule[:_NAMED]}-{one.hash[:8]}]{id[one.end :]}"
        return id

    def name(self, name: str) -> str:
        """A name in JSON, which stays apart from others."""
        if name in self._names:
            return name
        cleaned = self.id(name)
        if cleaned is name and len(name) <= _LONGEST_WORD:
            if len(self._names) >= _NAMES:
                self._names.clear()
            self._names.add(name)
        return cleaned

    def joined(self, texts: Sequence[str], *, grows: bool = False) -> Sequence[str]:
        """Texts that follow each other, without what lies across two of them. A marker stands where it began."""
        whole = "".join(texts)
        cleaned = self._sanitiser.clean(whole, complete=not grows) if len(texts) > 1 else None
        if cleaned is None or cleaned.text == whole:
            return texts
        self._note(whole, cleaned.findings)
        return list(_spread(texts, cleaned, grows=grows))

    # -- JSON

    def _literals(self, text: str) -> str:
        """JSON text, or what begins like some, where names stay apart and no escape hides anything. All the rest stays
        as it is written."""
        out, done, name = list[str](), 0, ""
        for found in _LITERAL.finditer(text):
            raw = found[1]
            hides = _HIDING.search(raw) is not None
            if not hides and not found[2]:
                continue
            said = _unescaped(raw) if "\\" in raw else raw
            clean = self.name(said) if found[2] else self.text(said, _hint(name))
            name = said if found[2] else name
            if clean is not said:
                out += (text[done : found.start(1)], _escaped(clean))
                done = found.end(1)
        return "".join((*out, text[done:])) if done else text

    def _json(self, text: str) -> str:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return text  # then it is a text, and was cleaned as one
        cleaned = self.value(value)
        return text if cleaned is value else msgspec.json.encode(cleaned).decode()

    def value(self, value: V, name: str = "", *, grows: bool = False) -> V:
        """Any JSON; the same object if there is nothing in it."""
        found: object = value
        if isinstance(value, str):
            grows = grows and _can_grow(value, name)
            found = self._url(value) if value.startswith("data:") else self.text(value, name, grows=grows)
        elif isinstance(value, dict):
            found = self.mapping(value, grows=grows)
        elif isinstance(value, list | tuple):
            last = len(value) - 1
            items = [self.value(item, name, grows=grows and n == last) for n, item in enumerate(value)]
            same = all(a is b for a, b in zip(value, items, strict=True))
            found = value if same else tuple(items) if isinstance(value, tuple) else items
        elif isinstance(value, bytes):
            found = self.binary(value)
        elif isinstance(value, Attachment):
            found = self.attachment(value)
        return found  # type: ignore[return-value]  # of the same kind

    def mapping(self, value: dict[str, object], *, grows: bool = False) -> dict[str, object]:
        """An object of JSON; the same one if there is nothing in it."""
        kind = next((kind for k in _KINDS if isinstance(kind := value.get(k), str)), "")
        after: dict[str, object] = {}
        same = True
        for name, item in value.items():
            new = self.name(name)
            if isinstance(item, str):
                clean: object = self._field(name, item, kind, grows=grows)
            else:
                clean = self.value(item, _hint(name), grows=grows and not _is_whole(name, item))
            same = same and new is name and clean is item
            if new in after:
                new = next(other for n in count(2) if (other := f"{new}~{n}") not in after)
            after[new] = clean
        return value if same else after

    def _field(self, name: str, item: str, kind: str, *, grows: bool) -> str:
        """The text under a name in JSON, beside a field that says of what kind data is."""
        if name in _DATA:
            return self._data(item, kind)
        if name.lower() in _STATE and self._is_state(item):
            return item
        if name in _IDS:
            return self.id(item)
        return self.value(item, _hint(name), grows=grows and name.lower() not in _OPAQUE)

    def all(self, values: Iterable[T], clean: Callable[[T], T]) -> tuple[T, ...]:
        """All of them; the same object if all are the same."""
        before = tuple(values)
        after = tuple(map(clean, before))
        same = all(a is b for a, b in zip(before, after, strict=True))
        return values if same and isinstance(values, (tuple, list)) else after  # type: ignore[return-value]  # as given

    # -- bytes

    def binary(self, data: bytes, kind: str = "") -> bytes:
        """Bytes that are text, or are meant to be."""
        encoding = _encoding(data, kind)
        if encoding is None:
            return data
        whole = len(data) if encoding == "utf-8" else len(data) // 2 * 2
        said = data[:whole].decode(encoding, _ERRORS[encoding])
        cleaned = self.text(said)
        return data if cleaned is said else cleaned.encode(encoding, _ERRORS[encoding]) + data[whole:]

    def _data(self, said: str, kind: str) -> str:
        """What is meant to be base64, and may be text all the same."""
        if said.startswith("data:"):
            return self._url(said)
        read = _from_base64(said)
        if read is not None:
            data, write = read
            cleaned = self.binary(data, kind)
            if cleaned is not data:
                return write(cleaned)
            if self._is_state(said):
                return said
        return self.text(said)

    def _is_state(self, said: str) -> bool:
        """Is it a long run of base64, which only happens to hold what looks like something? A key is one from its first
        character on."""
        if not _RUN.fullmatch(said):
            return False
        return not any(one.start == 0 for one in self._sanitiser.clean(said[:_BEGINNING]).findings)

    def _url(self, text: str) -> str:
        head, comma, data = text.partition(",")
        if not comma or not head.endswith(";base64"):
            return self.text(text)
        cleaned = self._data(data, head.removeprefix("data:"))
        return text if cleaned is data else f"{head},{cleaned}"

    def attachment(self, attachment: Attachment, kind: str = "") -> Attachment | str:
        """Text that is read in pieces is cleaned in pieces: to see what there is, to measure it without the values that
        were found, and again when it is kept. A missing attachment has nothing to clean."""
        if attachment.is_missing:
            return attachment
        if attachment._base64 is not None:
            source, _, prefix = attachment._base64
            same = self.attachment(source, prefix.removeprefix("data:")) is source
            return attachment if same else self._data(attachment.read().decode(), kind)
        encoding = "utf-8" if attachment.text else _encoding(_head(attachment), kind, cut=True)
        if encoding is None:
            return attachment
        stream = self._sanitiser.stream()
        for _ in _pieces(attachment, encoding, stream.feed, stream.finish):
            pass
        if not stream.findings:
            return attachment
        self.found += stream.findings
        self.values |= stream.values

        def pieces() -> Iterator[bytes]:
            rules, values = self._sanitiser.stream(), self._sanitiser.knowing(stream.values).stream()
            return _pieces(
                attachment,
                encoding,
                lambda piece: values.feed(rules.feed(piece)),
                lambda: values.feed(rules.finish()) + values.finish(),
            )

        return Attachment(sum(map(len, pieces())), pieces, text=attachment.text)


def _hint(name: str) -> str:
    return "" if name.lower() in _OPAQUE else name


def _is_whole(name: str, item: object) -> bool:
    return name in ARGUMENTS and isinstance(item, dict)


def _can_grow(text: str, name: str = "") -> bool:
    """May more of this come? Not of a word, unless it stands where texts do; not of JSON that is closed."""
    if name not in _STREAMED and len(text) <= _LONGEST_WORD and _WORD.fullmatch(text):
        return False
    return not is_closed(text)


def is_closed(text: str) -> bool:
    """Is it an object or a list of JSON, with its end?"""
    if text[:100].lstrip()[:1] not in ("{", "[") or text[-100:].rstrip()[-1:] not in ("}", "]"):
        return False
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True


def _unescaped(raw: str) -> str:
    """What a literal of JSON says; as it is, if it is none."""
    try:
        return str(json.loads(f'"{raw}"', strict=False))
    except ValueError:
        return raw


def _escaped(text: str) -> str:
    return _HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", json.dumps(text, ensure_ascii=False)[1:-1])


def _spread(texts: Sequence[str], cleaned: Cleaned, *, grows: bool) -> Iterator[str]:
    """The texts again, from what their join became: what was found goes, and its marker stands where it began."""
    start, end = 0, sum(map(len, texts))
    found = sorted(cleaned.findings, key=lambda one: one.start)
    if grows:  # what is held back at the end goes, too
        end += len(cleaned.text) - end - sum(len(one.marker) - (one.end - one.start) for one in found)
    for text in texts:
        stop, said, at = start + len(text), "", start
        for one in found:
            if one.end > start and one.start < stop:
                said += text[at - start : max(one.start - start, at - start)]
                said += one.marker if one.start >= start else ""
                at = min(one.end, stop)
        said += text[at - start : max(0, min(stop, end) - start)]
        yield said
        start = stop


# -- what is text, and in which encoding

_ERRORS: Mapping[str, str] = {"utf-8": "surrogateescape", "utf-16-le": "surrogatepass", "utf-16-be": "surrogatepass"}


def _encoding(data: bytes, kind: str, *, cut: bool = False) -> str | None:
    """The encoding of bytes that are text, or are called text; None if they are something else. `cut`: there is more
    than these."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16-le" if data[0] == 0xFF else "utf-16-be"
    head = data[:_SNIFFED]
    low, high = head[::2].count(0), head[1::2].count(0)  # plain letters have a zero beside them in UTF-16
    plain = not kind.startswith(_MEDIA) and max(low, high) > len(head) // 8 > 10 * min(low, high)
    if plain or "utf-16" in kind.lower():
        return "utf-16-be" if low > high else "utf-16-le"
    if is_text(kind):
        return "utf-8"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data, final=not cut)
    except UnicodeDecodeError:
        return None
    return None if cut and 0 in data else "utf-8"


def _head(attachment: Attachment) -> bytes:
    return next((piece for piece in attachment if piece), b"")


def _from_base64(said: str) -> tuple[bytes, Callable[[bytes], str]] | None:
    """What this says in base64, and how it says it; None if it says nothing."""
    code = said.replace("\r", "").replace("\n", "").rstrip("=")
    apart = "-" in code or "_" in code
    if not code or (apart and ("+" in code or "/" in code)):
        return None
    try:
        plain = code.replace("-", "+").replace("_", "/") + "=" * (-len(code) % 4)
        data = base64.b64decode(plain, validate=True)
    except (binascii.Error, ValueError):
        return None
    padded = len(code) % 4 == 0 or said.rstrip().endswith("=")

    def write(data: bytes) -> str:
        text = (base64.urlsafe_b64encode if apart else base64.b64encode)(data).decode()
        return text if padded else text.rstrip("=")

    return data, write


def _pieces(
    attachment: Attachment, encoding: str, feed: Callable[[str], str], finish: Callable[[], str]
) -> Iterator[bytes]:
    """The bytes of an attachment, cleaned. An odd one at the end, which is half of a character, stays as it is."""
    errors = _ERRORS[encoding]
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    for piece in attachment:
        yield feed(decoder.decode(piece)).encode(encoding, errors)
    rest = b"" if encoding == "utf-8" else decoder.getstate()[0]
    last = decoder.decode(b"", final=True) if encoding == "utf-8" else ""
    yield (feed(last) + finish()).encode(encoding, errors) + rest
