"""Where a PostgreSQL server is, and how we talk to it: a URL, with our own parameters taken off.

Whatever libpq understands stands in it, and its environment and its service files count. What they say is looked up
here, because it decides things before the first word is said: whether the other side is this machine, and if it is not,
that nothing goes there in clear.
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

# What makes a connection that leads nowhere fail, instead of waiting for hours.
_KEEPALIVE = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


class Address:
    """Where the server is, and how we talk to it: a URL or a libpq string, with our own parameters taken off."""

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
        self.names_pooler = "pooler" in ours  # or what we set for a session may be another's, who sees no rows then
        hosts = known.get("host", os.environ.get("PGHOST", "")).split(",")
        _check_names(hosts)
        addresses = known.get("hostaddr", os.environ.get("PGHOSTADDR", "")).split(",")
        self.hosts = hosts if len(hosts) >= len(addresses) else [""] * len(addresses)  # who has no name has a number
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
        """Every server that is named, apart."""
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
    """What a service file says, as libpq would read it: who is meant decides whether we encrypt."""
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
    return {"service": name}  # libpq says what is wrong with it


def _check_names(hosts: list[str]) -> None:
    """Refuse a name that cannot be looked up. psycopg would let the codec's `UnicodeError` through."""
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
    """May a part of a password be taken for something else, which would then be shown?"""
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
    except ValueError:  # a name, whoever it may belong to
        return False
