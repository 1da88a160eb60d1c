"""The keys and names under which adapters keep things: made of a framework's ids, whatever characters these have.

A part is escaped as in URLs, so that `/` separates parts and NUL and lone surrogates can be kept. Ordinary letters
stay as they are.
"""

from hashlib import sha256
from urllib.parse import quote, unquote

_PLAIN = " !$'()*+,:;=@[]"  # needs no escape and reads better without one
_LONGEST = 500  # bytes of a key: databases index no long values


def escape(part: str) -> str:
    """Return a text without `/`, control characters and surrogates, from which `unescape` makes the part again."""
    return quote(part, safe=_PLAIN, errors="surrogatepass")


def unescape(text: str) -> str:
    return unquote(text, errors="surrogatepass")


def key_of(framework: str, *parts: str) -> str:
    """Return the key of a conversation for these parts. No other parts have the same. Of long ones it is a hash."""
    path = "/".join(escape(part) for part in parts)
    if len(path) > _LONGEST:
        path = f"sha256:{sha256(path.encode()).hexdigest()}"
    return f"{framework}/{path}"
