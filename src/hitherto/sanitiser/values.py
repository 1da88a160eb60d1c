"""Clean one value: a text, JSON, bytes, an attachment.

A sanitiser cleans texts. This module finds the texts in a value: in JSON and in JSON inside JSON, behind escapes, in
base64 of both alphabets, in bytes and files that turn out to be text, whatever their declared type is.

In JSON the name of a field is a hint: the value of `password` is a password. The names that providers use for ids and
for their own state are no hints. Such a value is judged by its form alone, and a long run of base64 there is not
changed, because a change would break the conversation. An id with a secret is replaced by another id, always by the
same one, so that a result still finds its call. The same holds for names in JSON, which have to stay distinct.

A value that still **grows**, because an answer is streaming in, loses its end if that may become a secret. Only the
last item of a list grows, and only if it is no name, no id, no word, and no closed JSON.
"""

import base64
import binascii
import codecs
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import count
from typing import TypeVar

import msgspec

from ..attachment import Attachment
from . import Cleaned, Finding, Rule, Sanitiser, values_in

T = TypeVar("T")
V = TypeVar("V")

ARGUMENTS = ("input", "args", "arguments", "parameters")  # an object under one of these names is always complete
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
_KINDS = ("media_type", "mime_type", "mimeType")  # and fields beside them with their type
_TEXTS = ("text/", "message/")
_MEDIA = ("image/", "audio/", "video/")
_TEXT_PARTS = ("json", "xml", "yaml", "toml", "javascript", "typescript", "x-sh", "sql", "csv", "x-www-form-urlencoded")

_WORD = re.compile(r"[a-z]+(?:[_.-][a-z]+)*")
_LONGEST_WORD = 40
_RUN = re.compile(r"[A-Za-z0-9+/_-]{101,}={0,2}|(?:[A-Za-z0-9+/]{60,76}\r?\n){2,}[A-Za-z0-9+/]{0,76}={0,2}\s*")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# A literal of JSON. One without an end ends the text.
_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*+)(?:"|\\?\Z)(\s*:)?', re.DOTALL)
_HIDING = re.compile(r"\\[u/]")  # escapes that hide characters from a pattern
_HALVES = re.compile("[\ud800-\udfff]")
_NAMED = 51  # characters of a rule's name that go into a marker with a hash
_NAMES = 10_000  # that are known to be clean
_TEXTS_KNOWN = 50_000  # the same, as hashes of a hundred bytes each
_BEGINNING = 512  # characters of a long one that show whether it is a key
_SNIFFED = 1 << 16  # bytes that show whether something is text


def is_text(mime_type: str) -> bool:
    """Are bytes of this kind text?

    >>> is_text("text/plain; charset=utf-8"), is_text("application/ld+json"), is_text("image/png")
    (True, True, False)
    """
    kind = mime_type.partition(";")[0].strip().lower()
    return kind.startswith(_TEXTS) or any(part in kind for part in _TEXT_PARTS)


class KnownTexts:
    """Texts that a sanitiser has found to be clean.

    The same texts come again and again: the names of roles and kinds, and an answer once when it is kept and once in
    the history of the next request. Only keyed hashes of texts are in memory; names of fields are there as they are.
    """

    def __init__(self) -> None:
        self._key = os.urandom(32)
        self._hashes: set[bytes] = set()
        self.names: set[str] = set()

    def hash(self, text: str, name: str = "", *, as_json: bool = False) -> bytes:
        """A keyed hash of a text, of the name of its field, and of how it is cleaned."""
        data = f"{len(name)} {as_json:d} {name}{text}".encode("utf-8", "surrogatepass")
        return blake2b(data, key=self._key, digest_size=16).digest()

    def has(self, hash: bytes) -> bool:
        return hash in self._hashes

    def add(self, hash: bytes) -> None:
        if len(self._hashes) >= _TEXTS_KNOWN:
            self._hashes.clear()
        self._hashes.add(hash)

    def add_name(self, name: str) -> None:
        if len(self.names) >= _NAMES:
            self.names.clear()
        self.names.add(name)


class Cleaning:
    """One value that is being cleaned, with its findings."""

    def __init__(self, sanitiser: Sanitiser, known: KnownTexts | None = None) -> None:
        """`known` has the texts that this sanitiser has found to be clean; more are added."""
        self._sanitiser = sanitiser
        self._known = KnownTexts() if known is None else known
        self._cache: dict[tuple[str, str, bool], str] = {}  # the provider's own message repeats the texts of the blocks
        self.found: list[Finding] = []
        self.values: dict[str, Rule] = {}  # secrets that were found; each is removed everywhere else too

    def _note(self, text: str, findings: Sequence[Finding]) -> None:
        self.found += findings
        self.values |= values_in(text, findings)

    def findings(self, text: str) -> Sequence[Finding]:
        """The findings in a text that must not be changed."""
        hash = self._known.hash(text)
        if self._known.has(hash):
            return ()
        found = self._sanitiser.clean(text).findings
        if not found:
            self._known.add(hash)
        return found

    # -- texts

    def text(self, text: str, name: str = "", *, as_json: bool = False, grows: bool = False) -> str:
        """Clean a text, and the values in it if it is JSON, where escapes may hide a secret."""
        cached = self._cache.get((name, text, grows))
        if cached is not None:
            return text if cached == text else cached  # callers compare by identity
        as_json = as_json or text[:100].lstrip()[:1] in ("{", "[")
        hash = None if grows else self._known.hash(text, name, as_json=as_json)
        if hash is not None and self._known.has(hash):
            return text
        before = len(self.found)
        given = self._clean_literals(text) if as_json else text
        cleaned = self._sanitiser.clean(given, name=name, complete=not grows)
        self._note(given, cleaned.findings)
        result = text if cleaned.text == text else cleaned.text
        if as_json:
            result = self._clean_json(result)
        self._cache[name, text, grows] = result
        if hash is not None and result is text and len(self.found) == before:
            self._known.add(hash)
        return result

    def id(self, id: str) -> str:
        """Clean an id. Equal ids become equal ids everywhere. A UUID is never changed."""
        if _UUID.fullmatch(id):
            return id
        found = self.findings(id)
        self._note(id, found)
        for one in sorted(found, key=lambda one: -one.start):
            id = f"{id[: one.start]}[redacted:{one.rule[:_NAMED]}-{one.hash[:8]}]{id[one.end :]}"
        return id

    def name(self, name: str) -> str:
        """Clean a name in JSON. Distinct names stay distinct."""
        if name in self._known.names:
            return name
        cleaned = self.id(name)
        if cleaned is name and len(name) <= _LONGEST_WORD:
            self._known.add_name(name)
        return cleaned

    def clean_joined(self, texts: Sequence[str], *, grows: bool = False) -> Sequence[str]:
        """Remove the secrets that lie across two consecutive texts. The marker stands where the secret began."""
        whole = "".join(texts)
        cleaned = self._sanitiser.clean(whole, complete=not grows) if len(texts) > 1 else None
        if cleaned is None or cleaned.text == whole:
            return texts
        self._note(whole, cleaned.findings)
        return list(_split_again(texts, cleaned, grows=grows))

    # -- JSON

    def _clean_literals(self, text: str) -> str:
        """Clean the names and the escaped literals of a JSON text, which may be incomplete. The rest is not changed."""
        out, done, name = list[str](), 0, ""
        for found in _LITERAL.finditer(text):
            raw = found[1]
            hides = _HIDING.search(raw) is not None
            if not hides and not found[2]:
                continue
            said = _decode_literal(raw) if "\\" in raw else raw
            clean = self.name(said) if found[2] else self.text(said, _hint(name))
            name = said if found[2] else name
            if clean is not said:
                out += (text[done : found.start(1)], _encode_literal(clean))
                done = found.end(1)
        return "".join((*out, text[done:])) if done else text

    def _clean_json(self, text: str) -> str:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            return text  # it is no JSON, and was cleaned as a text
        cleaned = self.value(value)
        return text if cleaned is value else msgspec.json.encode(cleaned).decode()

    def value(self, value: V, name: str = "", *, grows: bool = False) -> V:
        """Clean any JSON. Returns the same object if nothing is found."""
        found: object = value
        if isinstance(value, str):
            grows = grows and _can_grow(value, name)
            found = self._clean_url(value) if value.startswith("data:") else self.text(value, name, grows=grows)
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
        """Clean an object of JSON. Returns the same object if nothing is found."""
        kind = next((kind for k in _KINDS if isinstance(kind := value.get(k), str)), "")
        after: dict[str, object] = {}
        same = True
        for name, item in value.items():
            new = self.name(name)
            if isinstance(item, str):
                clean: object = self._clean_field(name, item, kind, grows=grows)
            else:
                clean = self.value(item, _hint(name), grows=grows and not _is_whole(name, item))
            same = same and new is name and clean is item
            if new in after:
                new = next(other for n in count(2) if (other := f"{new}~{n}") not in after)
            after[new] = clean
        return value if same else after

    def _clean_field(self, name: str, item: str, kind: str, *, grows: bool) -> str:
        """Clean the text of a field. `kind` is the type of data that a field beside it declares."""
        if name in _DATA:
            return self._clean_base64(item, kind)
        if name.lower() in _STATE and self._is_state(item):
            return item
        if name in _IDS:
            return self.id(item)
        return self.value(item, _hint(name), grows=grows and name.lower() not in _OPAQUE)

    def all(self, values: Iterable[T], clean: Callable[[T], T]) -> tuple[T, ...]:
        """Clean all values. Returns the same object if nothing changes."""
        before = tuple(values)
        after = tuple(map(clean, before))
        same = all(a is b for a, b in zip(before, after, strict=True))
        return values if same and isinstance(values, (tuple, list)) else after  # type: ignore[return-value]  # as given

    # -- bytes

    def binary(self, data: bytes, kind: str = "") -> bytes:
        """Clean bytes that are text, or are declared as text."""
        encoding = _detect_encoding(data, kind)
        if encoding is None:
            return data
        whole = len(data) if encoding == "utf-8" else len(data) // 2 * 2
        said = data[:whole].decode(encoding, _ERRORS[encoding])
        cleaned = self.text(said)
        return data if cleaned is said else cleaned.encode(encoding, _ERRORS[encoding]) + data[whole:]

    def _clean_base64(self, said: str, kind: str) -> str:
        """Clean a value that should be base64, and may be text."""
        if said.startswith("data:"):
            return self._clean_url(said)
        read = _decode_base64(said)
        if read is not None:
            data, write = read
            cleaned = self.binary(data, kind)
            if cleaned is not data:
                return write(cleaned)
            if self._is_state(said):
                return said
        return self.text(said)

    def _is_state(self, said: str) -> bool:
        """Is this a long run of base64, which looks like a secret only by chance? A real key matches from its first
        character on."""
        if not _RUN.fullmatch(said):
            return False
        return not any(one.start == 0 for one in self._sanitiser.clean(said[:_BEGINNING]).findings)

    def _clean_url(self, text: str) -> str:
        head, comma, data = text.partition(",")
        if not comma or not head.endswith(";base64"):
            return self.text(text)
        cleaned = self._clean_base64(data, head.removeprefix("data:"))
        return text if cleaned is data else f"{head},{cleaned}"

    def attachment(self, attachment: Attachment, kind: str = "") -> Attachment | str:
        """Clean an attachment. Its text is read and cleaned in pieces, three times: to find secrets, to measure the
        cleaned text, and when it is stored. A missing attachment is returned as it is."""
        if attachment.is_missing:
            return attachment
        if attachment.encodes is not None:
            source, _, prefix = attachment.encodes
            same = self.attachment(source, prefix.removeprefix("data:")) is source
            return attachment if same else self._clean_base64(attachment.read().decode(), kind)
        encoding = "utf-8" if attachment.text else _detect_encoding(_first_piece(attachment), kind, cut=True)
        if encoding is None:
            return attachment
        stream = self._sanitiser.stream()
        for _ in _clean_pieces(attachment, encoding, stream.feed, stream.finish):
            pass
        if not stream.findings:
            return attachment
        self.found += stream.findings
        self.values |= stream.values

        def pieces() -> Iterator[bytes]:
            rules, values = self._sanitiser.stream(), self._sanitiser.searching(stream.values).stream()
            return _clean_pieces(
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
    """May this text grow? A word cannot, unless its field holds streamed text; closed JSON cannot either."""
    if name not in _STREAMED and len(text) <= _LONGEST_WORD and _WORD.fullmatch(text):
        return False
    return not is_closed(text)


def is_closed(text: str) -> bool:
    """Is this a complete object or list of JSON?"""
    if text[:100].lstrip()[:1] not in ("{", "[") or text[-100:].rstrip()[-1:] not in ("}", "]"):
        return False
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True


def _decode_literal(raw: str) -> str:
    """Decode a literal of JSON. Invalid literals are returned as they are."""
    try:
        return str(json.loads(f'"{raw}"', strict=False))
    except ValueError:
        return raw


def _encode_literal(text: str) -> str:
    return _HALVES.sub(lambda half: f"\\u{ord(half[0]):04x}", json.dumps(text, ensure_ascii=False)[1:-1])


def _split_again(texts: Sequence[str], cleaned: Cleaned, *, grows: bool) -> Iterator[str]:
    """Split the cleaned join into the texts again, with each marker in the text where its secret began."""
    start, end = 0, sum(map(len, texts))
    found = sorted(cleaned.findings, key=lambda one: one.start)
    if grows:  # the end that is held back is removed, too
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


# -- text and its encoding

_ERRORS: Mapping[str, str] = {"utf-8": "surrogateescape", "utf-16-le": "surrogatepass", "utf-16-be": "surrogatepass"}


def _detect_encoding(data: bytes, kind: str, *, cut: bool = False) -> str | None:
    """The encoding of bytes that are text, or are declared as text. None for other bytes. `cut`: more bytes follow."""
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


def _first_piece(attachment: Attachment) -> bytes:
    return next((piece for piece in attachment if piece), b"")


def _decode_base64(said: str) -> tuple[bytes, Callable[[bytes], str]] | None:
    """Decode base64. Returns the bytes and a function that encodes others in the same form. None if it is no base64."""
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


def _clean_pieces(
    attachment: Attachment, encoding: str, feed: Callable[[str], str], finish: Callable[[], str]
) -> Iterator[bytes]:
    """The cleaned bytes of an attachment. An incomplete character at the end is not changed."""
    errors = _ERRORS[encoding]
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    for piece in attachment:
        yield feed(decoder.decode(piece)).encode(encoding, errors)
    rest = b"" if encoding == "utf-8" else decoder.getstate()[0]
    last = decoder.decode(b"", final=True) if encoding == "utf-8" else ""
    yield (feed(last) + finish()).encode(encoding, errors) + rest
