"""The address of a PostgreSQL server: a URL, from which our own parameters are removed.

It may contain everything that libpq understands, and libpq's environment and service files count. This module resolves
them, because they decide about encryption before the first connection: a server on another machine must not be reached
in clear text.
"""

import ipaddress
import os
from collections.abc import Iterator
from itertools import takewhile

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...errors import InvalidArgument

POOL_SIZE = 16
_OURS = ("pool_size", "partitions", "pooler")  # parameters of the URL that libpq does not know

# Settings that let a dead connection fail, instead of waiting for hours.
_KEEPALIVE = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


class Address:
    """A parsed URL or libpq string: where the server is, and how to connect."""

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self.read_only = read_only
        plain, ours = _without_ours(url)
        try:
            known = {name: str(value) for name, value in conninfo_to_dict(plain).items() if value is not None}
        except (psycopg.ProgrammingError, UnicodeError):  # half of a surrogate pair has no bytes
            hint = (
                "postgresql://user@host:5432/database?name=value, with special characters written as %XX; the names "
                f"are those of libpq, {', '.join(_OURS)}"
            )
            raise InvalidArgument("not the address of a PostgreSQL database", hint=hint) from None
        if _is_doubtful(plain, known):
            hint = "in a user, a password or a name, / is written as %2F, @ as %40, : as %3A, ? as %3F, % as %25"
            raise InvalidArgument("the address of the server cannot be understood", hint=hint)
        known = {**_service(known.pop("service", os.environ.get("PGSERVICE", ""))), **known}
        self.pool_size = _number(ours, "pool_size", POOL_SIZE, 1, 1000)
        self.partitions = _number(ours, "partitions", 0, 0, 1024)
        if ours.get("pooler", "session") not in ("session", "transaction"):
            raise InvalidArgument("pooler is session or transaction")
        self.by_transaction = ours.get("pooler") == "transaction"
        self.names_pooler = "pooler" in ours  # else a session setting might reach another client
        hosts = known.get("host", os.environ.get("PGHOST", "")).split(",")
        _check_names(hosts)
        addresses = known.get("hostaddr", os.environ.get("PGHOSTADDR", "")).split(",")
        self.hosts = hosts if len(hosts) >= len(addresses) else [""] * len(addresses)  # or only addresses
        settings = {**known, **{name: value for name, value in _KEEPALIVE.items() if name not in known}}
        settings.setdefault("application_name", "hitherto")
        settings.setdefault("connect_timeout", "10")
        settings["client_encoding"] = "UTF8"  # whatever PGCLIENTENCODING says
        self.local = all(map(is_local, [*hosts, *addresses]))
        self.decided = "sslmode" in known or "PGSSLMODE" in os.environ  # whether to encrypt
        if not self.decided and not self.local:
            settings["sslmode"] = "require"
        self.verified = settings.get("sslmode", os.environ.get("PGSSLMODE")) == "verify-full"
        if not read_only and len(self.hosts) > 1:
            settings.setdefault("target_session_attrs", "read-write")
        try:
            self.conninfo = make_conninfo("", **settings)
        except (psycopg.ProgrammingError, UnicodeError):
            hint = "the names are those of libpq; PGSERVICEFILE or ~/.pg_service.conf has them"
            raise InvalidArgument("a service file says what cannot be understood", hint=hint) from None
        where = (
            ",".join(host or "local" for host in hosts) if any(hosts) else ",".join(filter(None, addresses)) or "local"
        )
        port = known.get("port", os.environ.get("PGPORT", ""))
        port = f":{port}" if port else ""
        database = known.get("dbname") or os.environ.get("PGDATABASE") or known.get("user") or ""
        self.shown = f"postgresql://{where}{port}/{database}"  # no user, no password

    def each(self) -> Iterator[str]:
        """Yield the connection string of each named server."""
        known = {name: str(value) for name, value in conninfo_to_dict(self.conninfo).items() if value is not None}
        ports = known.get("port", os.environ.get("PGPORT", "")).split(",")
        addresses = known.get("hostaddr", os.environ.get("PGHOSTADDR", "")).split(",")
        for n, host in enumerate(self.hosts):
            one = {**known, "host": host, "target_session_attrs": "any"}
            if len(ports) > 1:
                one["port"] = ports[n % len(ports)]
            if len(addresses) > 1:
                one["hostaddr"] = addresses[n % len(addresses)]
            yield make_conninfo("", **{name: value for name, value in one.items() if value})


def _service(name: str) -> dict[str, str]:
    """Read a service as libpq does: its host decides whether the connection is encrypted."""
    if not name:
        return {}
    files = [os.environ.get("PGSERVICEFILE") or "~/.pg_service.conf"]
    if folder := os.environ.get("PGSYSCONFDIR"):
        files.append(os.path.join(folder, "pg_service.conf"))
    for file in map(os.path.expanduser, files):
        try:
            with open(file, encoding="utf-8", errors="surrogateescape") as text:
                lines = [line.strip() for line in text]
        except OSError:
            continue
        if f"[{name}]" in lines:
            said = takewhile(lambda line: not line.startswith("["), lines[lines.index(f"[{name}]") + 1 :])
            pairs = (line.partition("=") for line in said if "=" in line and not line.startswith(("#", "ldap")))
            return {key.strip(): value.strip() for key, _, value in pairs}
    return {"service": name}  # libpq reports the problem


def _check_names(hosts: list[str]) -> None:
    """Refuse a host name that cannot be resolved. psycopg would let the codec's `UnicodeError` through."""
    for host in hosts:
        if not host.startswith(("/", "@")):  # which are sockets of this machine
            try:
                host.encode("idna")
            except UnicodeError:
                hint = "each part of a name, between the dots, has 1 to 63 characters"
                raise InvalidArgument("the address names a server as none can be named", hint=hint) from None


def _without_ours(url: str) -> tuple[str, dict[str, str]]:
    if "\0" in url:
        raise InvalidArgument("an address has no U+0000 in it")
    if not url.startswith(("postgresql://", "postgres://")):
        return url, {}
    base, mark, query = url.partition("?")
    parts = [part.partition("=") for part in query.split("&") if part]
    ours = {name: value for name, _, value in parts if name in _OURS}
    if not ours:
        return url, {}
    rest = "&".join("".join(part) for part in parts if part[0] not in _OURS)
    return base + (mark + rest if rest else ""), ours


def _is_doubtful(url: str, known: dict[str, str]) -> bool:
    """Tell whether a part of a password could be parsed as another field, which error messages would then show."""
    if not all(port.isascii() and port.isdigit() for port in known.get("port", "0").split(",") if port):
        return True
    if not url.startswith(("postgresql://", "postgres://")):
        return False
    authority, _, rest = url.partition("://")[2].partition("/")
    return authority.count("@") > 1 or "@" in rest.partition("?")[0]


def _number(ours: dict[str, str], name: str, otherwise: int, least: int, most: int) -> int:
    value = ours.get(name)
    if value is None:
        return otherwise
    if not (value.isascii() and value.isdigit() and least <= int(value) <= most):
        raise InvalidArgument(
            f"{name} is a number from {least} to {most}", hint=f"{name}={otherwise or least} in the address"
        )
    return int(value)


def is_local(host: str) -> bool:
    if host in ("", "localhost") or host.startswith(("/", "@")):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name: it may resolve to anything
        return False
