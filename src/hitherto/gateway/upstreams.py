"""The providers behind the gateway, by the first part of a path: `/anthropic/v1/messages` leads to `/v1/messages` of
Anthropic."""

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from msgspec import Struct

from ..chat import validate_base_url
from ..chat._urls import is_loopback
from ..errors import InvalidArgument

__all__ = ["DEFAULTS", "Upstream", "parse_upstream", "parse_upstreams"]

DEFAULTS = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com",
    "gemini": "https://generativelanguage.googleapis.com",
}
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")
_PORTS = {"https": 443, "http": 80}


class Upstream(Struct, frozen=True):
    """A provider: where its requests go."""

    name: str
    scheme: str
    host: str
    port: int
    path: str  # before every path that is asked for; without a slash at its end
    is_local: bool  # on this machine

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


def parse_upstream(name: str, url: str) -> Upstream:
    """Return the provider at a base URL. Raises `InvalidBaseURL` for an address that no credential should go to."""
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"not the name of an upstream: {name!r:.40}", hint="small letters, digits, - and _: local=https://…"
        )
    validate_base_url(url, allow_insecure=is_loopback(url))
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise InvalidArgument(f"the address of the upstream {name} holds more than a path", hint="leave ? and # out")
    scheme, host = parts.scheme.lower(), parts.hostname or ""
    return Upstream(name, scheme, host, parts.port or _PORTS[scheme], parts.path.rstrip("/"), is_loopback(url))


def parse_upstreams(given: Iterable[str]) -> dict[str, Upstream]:
    """Return the providers by name: the three that everyone knows, and those given as `name=https://…`."""
    addresses = dict(DEFAULTS)
    for one in given:
        name, equals, url = one.partition("=")
        if not equals:
            raise InvalidArgument(
                "an upstream is given as name=https://…", hint="--upstream local=http://127.0.0.1:11434"
            )
        addresses[name] = url
    return {name: parse_upstream(name, url) for name, url in addresses.items()}
