"""References to media, as later versions of the shared form have them.

A text in the messages that is exactly `chatmedia+sha256:` and 64 hexadecimal digits stands for what lies under `media/`
with these digits as its name: a text that was long, such as a picture in base64. Its SHA-256 is the name, so that it
can be checked, and many snapshots can share it.

Only the text itself is replaced, where it stands: not a name in an object, and no other byte around it. A text in a
message that merely looks like a reference is itself stored under `media/` and referred to, so that it is restored
unchanged and never taken for a reference. Where some of its characters were written as escapes, those of the reference
are, too: so nothing has to be kept beside it to bring back the very same text.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator

from ..errors import Damaged
from ._json_text import written

FOLDER = "media/"
_REFERENCE = re.compile(r"chatmedia\+sha256:([0-9a-f]{64})")
# A text begins with a quote before which no backslash can stand, and a name is followed by a colon. Any character may
# be written as an escape, which other readers understand.
_TEXT = re.compile(r'(?<!\\)"(?:[0-9a-z+:]|\\u00[2-7][0-9a-fA-F]){81}"(?!\s*:)')
_CHARACTER = re.compile(r"\\u[0-9a-fA-F]{4}|.")


def references(text: str) -> Iterator[tuple[int, int, str]]:
    """Where in a JSON text references stand, and what they refer to: begin, end, digits."""
    if "chatmedia" not in text and "\\u00" not in text:
        return  # as nearly always
    for found in _TEXT.finditer(text):
        reference = _REFERENCE.fullmatch(json.loads(found[0]))
        if reference:
            yield found.start(), found.end(), reference[1]


def resolve(text: str, fetch: Callable[[str], bytes], most: int) -> str:
    """Replace all references in a text by their content. `fetch` reads an object under `media/`; `most` bounds the
    result, because one reference may occur many times. Raises `Damaged` if an object does not match its name."""
    out: list[str] = []
    known: dict[str, str] = {}
    at, size = 0, len(text)
    for begin, end, digits in references(text):
        if digits not in known:
            known[digits] = written(_check_digest(fetch(digits), digits), "media")
        size += len(known[digits])
        if size > most:
            raise Damaged(f"media would make the snapshot larger than {most:,} bytes", hint=_HINT)
        inner = _REFERENCE.fullmatch(known[digits], 1, len(known[digits]) - 1)
        out += (text[at:begin], _referring(text[begin:end], inner[1]) if inner else known[digits])
        at = end
    return "".join((*out, text[at:])) if out else text


def _check_digest(data: bytes, digits: str) -> str:
    if hashlib.sha256(data).hexdigest() != digits:
        raise Damaged(f"media/{digits[:12]}… is not what its name says", hint=_HINT)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Damaged(f"media/{digits[:12]}… is not text", hint=_HINT) from None


def protect(text: str) -> tuple[str, dict[str, bytes]]:
    """Replace texts that look like references by real references. Returns the text, and the objects to store under
    `media/`."""
    out: list[str] = []
    kept: dict[str, bytes] = {}
    at = 0
    for begin, end, _ in references(text):
        said = json.loads(text[begin:end]).encode()
        digits = hashlib.sha256(said).hexdigest()
        kept[digits] = said
        out += (text[at:begin], _referring(text[begin:end], digits))
        at = end
    return ("".join((*out, text[at:])) if out else text), kept


def _referring(token: str, digits: str) -> str:
    """Return a reference with other digits, and with its escapes unchanged."""
    characters = _CHARACTER.findall(token[1:-1])
    before, after = characters[:-64], characters[-64:]
    new = (f"\\u{ord(digit):04x}" if len(old) > 1 else digit for old, digit in zip(after, digits, strict=True))
    return '"' + "".join((*before, *new)) + '"'


_HINT = "restore the folder media from where the snapshots come from, or open the store with a larger max_bytes"
