"""The rules for the address of a provider, to which an API key may be sent.

A client sends its key with the first request, to the host in its address. A typing error, a value left over from an
example, or an environment variable of another program is enough to give the key away. So the address is checked before
any credential is used, by seven rules, the cheapest first, and the first that is broken is the one that is named. The
address itself is never shown: it may hold a secret, and errors go into logs.

The rules are narrower than what browsers accept. Programs disagree about odd addresses (a backslash, a tab, an IPv4
address in octal, a full-width letter), and where the check reads one host and the connection goes to another, the check
is worthless. An address that two programs could read differently is refused. A host name in another script is written
in its ASCII form, `xn--…`: that is what is connected to, and no letter in it looks like another.
"""

import ipaddress
import re
import unicodedata
from collections.abc import Mapping, Sequence

from ..errors import Hint, InvalidBaseURL

MAX_BASE_URL_LENGTH = 2048
PLACEHOLDERS = ("example.com", "example.net", "example.org", "localhost.localdomain")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_HOST_AND_PORT = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_KEPT = "\u00df\u03c2"  # the German sharp s, the Greek sigma at the end of a word
# Letters and marks without a shape of their own.
_UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


def validate_base_url(url: str, allow_insecure: bool = False) -> None:
    """Refuse an address that no credential should be sent to, with `InvalidBaseURL`.

    `allow_insecure` permits `http`, for a server on this machine; every other rule holds all the same. An empty text is
    refused, too: a caller without an address must not call this.
    """
    if not isinstance(url, str):
        raise InvalidBaseURL(f"the base URL is a {type(url).__name__}, not text", rule="parse")
    _check_length(url)
    _check_characters(url)
    scheme, userinfo, host = _parse_url(url)
    _check_userinfo(userinfo)
    _check_scheme(scheme, insecure=allow_insecure is True)
    _check_host(host)
    _check_placeholder(host)


def is_loopback(url: str | None) -> bool:
    """Return True if an address leads to this machine: what is sent there does not leave it, so that `http` will do."""
    if url is None:
        return False
    try:
        host = _parse_url(url)[2].removesuffix(".")
        return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host.strip("[]")).is_loopback)
    except InvalidBaseURL:
        return False


def effective_base_url(
    configured: str | None, variables: Sequence[str], default: str | None, environ: Mapping[str, str]
) -> str | None:
    """Return the address that will be used: the configured one, else the first of the variables that is set and not
    empty, else the default. SDKs read such variables on their own, so the check must look in the same order."""
    if configured is not None:
        return configured
    return next((environ[name] for name in variables if environ.get(name)), default)


def _check_length(url: str) -> None:
    if len(url) > MAX_BASE_URL_LENGTH or len(url.encode("utf-8", "surrogatepass")) > MAX_BASE_URL_LENGTH:
        raise InvalidBaseURL(f"the base URL has more than {MAX_BASE_URL_LENGTH:,} bytes", rule="length")


def _check_characters(url: str) -> None:
    if any(unicodedata.category(c) == "Cc" for c in url):
        hint = "look for a line break or a tab at its end"
        raise InvalidBaseURL("the base URL holds a control character", rule="characters", hint=hint)


def _parse_url(url: str) -> tuple[str, bool, str]:
    """Return the scheme and the host in small letters, and whether there is a user name. Raises `InvalidBaseURL` if the
    address can be read in more than one way."""
    if not url:
        raise InvalidBaseURL("the base URL is empty", rule="parse")
    if any(c.isspace() or unicodedata.category(c) in ("Zs", "Zl", "Zp", "Cs") for c in url):
        raise InvalidBaseURL("the base URL holds a space, or half a character", rule="parse")
    if "\\" in url:
        raise InvalidBaseURL("the base URL holds a backslash", rule="parse")
    found = _SCHEME.fullmatch(url)
    scheme, rest = (found[1].lower(), found[2]) if found else ("", url)
    authority, path = _authority(rest)
    if _BAD_ESCAPE.search(path):
        raise InvalidBaseURL("the base URL holds a percent sign that begins no escape", rule="parse")
    _, userinfo, place = authority.rpartition("@")
    return scheme, bool(userinfo), _host(place)


def _authority(rest: str) -> tuple[str, str]:
    """Split the text after the scheme into the authority (after `//`) and the path."""
    if not rest.startswith("//"):
        return "", rest
    end = next((i for i, c in enumerate(rest) if i > 1 and c in "/?#"), len(rest))
    return rest[2:end], rest[end:]


def _host(place: str) -> str:
    found = _HOST_AND_PORT.fullmatch(place)
    if not found or int(found[2] or 0) > 65535:
        raise InvalidBaseURL("the host of the base URL, or its port, cannot be read", rule="parse")
    # Only ASCII, because the small form of some other letters is an ASCII one: the Kelvin sign's is k.
    return found[1].lower() if found[1].isascii() else found[1]


def _check_userinfo(userinfo: bool) -> None:
    if userinfo:
        text = "give the key as api_key, or in the environment, and leave it out of the URL"
        hint = Hint("credentials-in-url", text)
        raise InvalidBaseURL("the base URL holds a user name or a password", rule="userinfo", hint=hint)


def _check_scheme(scheme: str, *, insecure: bool) -> None:
    if not scheme:
        raise InvalidBaseURL("the base URL does not begin with https://", rule="scheme")
    if scheme != "https" and not (insecure and scheme == "http"):
        wanted = "https or http" if insecure else "https"
        text = "use https; for a server on this machine http will do, with allow_insecure_base_url=True"
        hint = Hint("insecure-base-url", text) if scheme == "http" else None
        raise InvalidBaseURL(f"the scheme of the base URL is not {wanted}", rule="scheme", hint=hint)


def _check_host(host: str) -> None:
    if not host:
        raise InvalidBaseURL("the base URL names no host", rule="host")
    if not host.isascii():
        hint = "write the name in its ASCII form, which begins with xn--"
        raise InvalidBaseURL("the host of the base URL holds letters that are not ASCII", rule="host", hint=hint)
    if not (_is_address(host) if host.startswith("[") or _ends_in_number(host) else _is_name(host)):
        hint = "a name of letters, digits and hyphens, or an address such as 10.0.0.1 or [fd00::1]"
        raise InvalidBaseURL("the host of the base URL is neither a name nor an address", rule="host", hint=hint)


def _check_placeholder(host: str) -> None:
    name = host.removesuffix(".")
    if any(name == p or name.endswith("." + p) for p in PLACEHOLDERS):
        raise InvalidBaseURL("the host of the base URL is a placeholder from an example", rule="placeholder")


def _ends_in_number(host: str) -> bool:
    """Such a host is an IPv4 address to whoever connects, in decimal, octal or hexadecimal, or it is an error."""
    return bool(_NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]))


def _is_address(host: str) -> bool:
    try:
        if host.startswith("["):
            return "%" not in host and bool(ipaddress.IPv6Address(host[1:-1]))
        return bool(ipaddress.IPv4Address(host))
    except ValueError:
        return False


def _is_name(host: str) -> bool:
    name = host.removesuffix(".")
    return len(name) <= 253 and all(_is_label(label) for label in name.split("."))


def _is_label(label: str) -> bool:
    if not _LABEL.fullmatch(label):
        return False
    return not label.startswith("xn--") or _is_punycode(label[4:])


def _is_punycode(code: str) -> bool:
    """Does it stand for a word in another script, and is it the only way to write that word?"""
    try:
        word = code.encode().decode("punycode")
        again = word.encode("punycode").decode()
    except (UnicodeError, ValueError, OverflowError):
        return False
    if again != code or word.isascii() or not _is_folded(word):
        return False
    begins = not unicodedata.category(word[0]).startswith("M")
    return begins and all(_is_letter(c) for c in word) and not _UNSEEN.search(word) and _reads_one_way(word)


def _is_folded(word: str) -> bool:
    """Is it as IDNA writes it down: in small letters, each in one form only? Two small letters are their own capitals'
    only partly, and IDNA keeps them."""
    plain = "".join(c for c in word if c not in _KEPT)
    return unicodedata.normalize("NFC", word) == word and unicodedata.normalize("NFKC", plain.casefold()) == plain


def _is_letter(c: str) -> bool:
    return c == "-" or unicodedata.category(c) in ("Ll", "Lo", "Lm", "Mn", "Mc", "Nd")


def _reads_one_way(word: str) -> bool:
    """A word written from the right has no letters in it that are written from the left (RFC 5893, made narrower)."""
    ways = {unicodedata.bidirectional(c) for c in word}
    if not ways & {"R", "AL", "AN"}:
        return True
    first = unicodedata.bidirectional(word[0])
    return first in ("R", "AL") and not ways - {"R", "AL", "NSM"}
