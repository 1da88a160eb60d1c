"""A bucket in the cloud: S3, Google Cloud Storage, Azure, or whatever speaks like one of them, through obstore.

**Lost updates.** A put that expects something is one request with `If-Match` or `If-None-Match`: the server decides.
If its answer is lost, nobody knows whether it was kept, and asking again may find our own write in the way. So it is we
who repeat such a put, never the library below: then we know whether a conflict is one. If it may be ours, what is there
is read, and if it is exactly what we wrote, it is ours. Google compares a number of its own in place of the tag; there,
the tag is compared with the number in hand, and the put depends on the number.

**Silence.** The texts of obstore's errors hold addresses, headers and what the server said, so signatures and account
names as well. Nothing of them is passed on but the HTTP status. They are looked at inside an `except`, and our error is
raised outside of it: otherwise the other would still hang on to it. Credentials come from the usual variables of the
environment, which obstore reads itself (`AWS_…`, `GOOGLE_…`, `AZURE_…`); an address that holds one is refused.

**Servers that lie** are believed in nothing that can be checked: lengths are compared, and a listing of nothing is
believed only if the server also says of a name that nobody uses that there is nothing. (A login page in the way of the
network answers everything with 200.) Two things cannot be helped from here. obstore follows redirects wherever they
lead, which only a server can cause that is trusted with the data anyway. And a server may number its pages without end.

**After os.fork** the threads of obstore are gone, and it would wait for them for ever. A child may use a bucket if no
request was made before the fork; otherwise it gets an error.

`file://` is not obstore's: its local store does not sync, sets no modes, and cannot update on a condition. It is the
same folder that `FileStore` uses.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from .._system import forks
from ..errors import (
    Busy,
    CannotOpen,
    Closed,
    Denied,
    HithertoError,
    InvalidArgument,
    MissingExtra,
    PayloadTooLarge,
    StorageError,
    StorageFull,
    Unavailable,
)
from ._bucket import WHATEVER, Bucket, Content, Thing, Whatever, checked_seconds
from ._files import DiskFiles, checked_name, in_the_way, too_large

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode, PutResult
    from obstore.store import AzureStore, ClientConfig, GCSStore, MemoryStore, RetryConfig, S3Store

    Store = S3Store | GCSStore | AzureStore | MemoryStore

T = TypeVar("T")

_LARGE: Final = 16 << 20  # bytes, from which a put is made of parts
_PART: Final = 8 << 20  # bytes
_RETRIES: Final = 4
_MOST_RETRIES: Final = 1000
_CONNECT_SECONDS: Final = 5.0
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0

_KINDS: Final = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}  # and how the variables of their environment begin
_KIND_OF: Final = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az", "MemoryStore": "memory"}
_CARRIED: Final = ("allow_http", "proxy_url", "proxy_excludes", "proxy_ca_certificate")
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT"),
}
_ENDPOINT: Final = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?")
_NOBODYS: Final = ".hitherto-nothing-has-this-name"
_TAG: Final = re.compile(r"(?!\*$)[\x21\x23-\x7e]{1,1024}|W/\"[\x21\x23-\x7e]{0,1024}\"")  # no star: it fits everything

_URL_HINT: Final = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///path or memory://"
_SECRET_HINT: Final = "credentials come from the environment, never from the address"
_HOW_TO_REACH: Final = {
    "s3": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, and AWS_ENDPOINT_URL for another server than "
    "Amazon's (with AWS_ALLOW_HTTP=true if it has no TLS)",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the file with the credentials",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or another of its credentials",
    "memory": "",
}


# -- addresses


class _Address(NamedTuple):
    kind: str
    host: str
    path: str  # without a slash at either end


def bucket_at(url: str, *, timeout_seconds: float = 30.0, retries: int = _RETRIES) -> Bucket:
    """The bucket at an address, which is not asked for anything yet. `timeout_seconds` is for one request, which is
    repeated up to `retries` times, ever later. The content of `memory://` is visible through the returned object only.
    `file://` is a folder; `timeout_seconds` is how long it waits for other writers."""
    if type(retries) is not int or not 0 <= retries <= _MOST_RETRIES:
        raise InvalidArgument(f"retries is a number from 0 to {_MOST_RETRIES:,}")
    address = _parse_url(url)
    if address.kind == "file":
        return DiskFiles(timeout_seconds=timeout_seconds).folder(address.path)
    where = f"{address.kind}://{address.host}" + (f"/{address.path}" if address.path else "")
    opener = _Opener(address, where, checked_seconds(timeout_seconds))
    store = opener(retries)
    once = store if address.kind == "memory" else opener(0)
    return _Objects(address.kind, where, address.path, retries, store, once)


def bucket_on(store: object, prefix: str = "") -> Bucket:
    """Return a bucket on a given obstore store: an `S3Store`, `GCSStore`, `AzureStore` or `MemoryStore`, with its own
    credentials, timeouts and retries."""
    stores = _obstore_stores()
    if isinstance(store, stores.S3Store | stores.GCSStore | stores.AzureStore | stores.MemoryStore):
        path = _prefix(prefix)
        where = f"the {type(store).__name__}" + (f" under {path}" if path else "")
        once = _quietly(lambda: _without_repetitions(store))
        if isinstance(once, _Failure):
            raise CannotOpen(f"{where} cannot be opened a second time", hint="give an address in place of a store")
        return _Objects(_KIND_OF[type(store).__name__], where, path, _RETRIES, store, once)
    hint = "give an S3Store, a GCSStore, an AzureStore or a MemoryStore; for a folder, file:///path"
    raise InvalidArgument(f"a {type(store).__name__} is not a store that snapshots can lie in", hint=hint)


def _without_repetitions(store: "Store") -> "Store":
    """The same store, which asks for nothing twice."""
    stores = _obstore_stores()
    if isinstance(store, stores.MemoryStore):
        return store
    made: Any = store  # the three others are made alike, but have no name for that in common
    return cast(
        "Store",
        type(made)(
            prefix=made.prefix,
            config=made.config,
            client_options=made.client_options,
            credential_provider=made.credential_provider,
            retry_config={"max_retries": 0},
        ),
    )


def _parse_url(url: str) -> _Address:
    """Parse an address. Errors do not show it: it may hold credentials, and errors go into logs."""
    if not isinstance(url, str):
        raise InvalidArgument(f"the address of a bucket is text, not a {type(url).__name__}", hint=_URL_HINT)
    parts = urlsplit("")
    with suppress(ValueError):  # which may show the address: what is not understood is as good as empty
        parts = urlsplit(url)
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise InvalidArgument("an address with a user, a password or parameters is not taken", hint=_SECRET_HINT)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return _Address("file", "", url2pathname(parts.path))
    if parts.scheme == "memory" and not parts.netloc:
        return _Address("memory", "", _prefix(parts.path))
    if not url.isprintable() or parts.scheme not in _KINDS or not _HOST.fullmatch(parts.netloc):
        raise InvalidArgument("not the address of a bucket", hint=_URL_HINT)
    return _Address(parts.scheme, parts.netloc, _prefix(parts.path))


def _prefix(path: str) -> str:
    inner = path.strip("/")
    if inner and any(part in ("", ".", "..") or not part.isprintable() or "\\" in part for part in inner.split("/")):
        raise InvalidArgument("not a prefix in a bucket", hint="names between slashes, as in team/snapshots")
    return inner


class _Opener:
    """Makes the client for an address. Each is told how often it may repeat a request."""

    def __init__(self, address: _Address, where: str, timeout_seconds: float) -> None:
        self._address = address
        self._where = where
        self._timeout_seconds = timeout_seconds

    def __call__(self, retries: int) -> "Store":
        self._look_at_endpoint()
        stores = _obstore_stores()
        kind, host, _ = self._address
        options, again = self._client(), self._again(retries)
        makers: dict[str, Callable[[], Store]] = {
            "memory": stores.MemoryStore,
            # One request for one object, which every server that speaks S3 understands, in place of a list of them.
            "s3": lambda: stores.S3Store(
                host, config={"disable_bulk_delete": True}, client_options=options, retry_config=again
            ),
            "gs": lambda: stores.GCSStore(host, client_options=options, retry_config=again),
            "az": lambda: stores.AzureStore(host, client_options=options, retry_config=again),
        }
        made = _quietly(makers[kind])
        if isinstance(made, _Failure):
            hint = _HOW_TO_REACH[kind]
            raise CannotOpen(f"{self._where} cannot be opened: what the environment says does not suffice", hint=hint)
        return made

    def _look_at_endpoint(self) -> None:
        """obstore takes any text for one, and panics when it uses it."""
        for name in _ENDPOINTS.get(self._address.kind, ()):
            value = os.environ.get(name, "")
            if value and not _ENDPOINT.fullmatch(value):
                hint = "https:// and a host, without a user or a password"
                raise CannotOpen(f"{self._where} cannot be opened: {name} is not an address", hint=hint)

    def _client(self) -> "ClientConfig":
        """Options that are given replace all that obstore would have read from the environment, so that those which
        decide whether the server is reached at all are carried over."""
        options: ClientConfig = {
            "timeout": timedelta(seconds=self._timeout_seconds),
            "connect_timeout": timedelta(seconds=min(self._timeout_seconds, _CONNECT_SECONDS)),
        }
        begin = _KINDS.get(self._address.kind, "")
        for name in _CARRIED:
            value = os.environ.get(f"{begin}_{name.upper()}")
            if value:
                options[name] = value
        return options

    def _again(self, retries: int) -> "RetryConfig":
        return {
            "max_retries": retries,
            "retry_timeout": timedelta(seconds=self._timeout_seconds * (retries + 1)),
            "backoff": {
                "init_backoff": timedelta(seconds=_FIRST_PAUSE_SECONDS),
                "max_backoff": timedelta(seconds=_LONGEST_PAUSE_SECONDS),
                "base": 2,
            },
        }


class _Stores(NamedTuple):
    S3Store: "type[S3Store]"
    GCSStore: "type[GCSStore]"
    AzureStore: "type[AzureStore]"
    MemoryStore: "type[MemoryStore]"


def _obstore_stores() -> _Stores:
    try:
        from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store  # noqa: PLC0415  # heavy, and optional
    except ImportError:
        raise MissingExtra("obstore", "cloud") from None
    return _Stores(S3Store, GCSStore, AzureStore, MemoryStore)


# -- failures


class _Failure(NamedTuple):
    """The parts of an obstore exception that are safe to show."""

    kind: str
    status: int | None


_NOTHING, _CONFLICT, _REFUSED, _GONE, _SILENT, _ELSEWHERE, _FULL, _UNABLE, _NO_ADDRESS, _NONSENSE = (
    "nothing there",
    "conflict",
    "refused",
    "no bucket",
    "no answer",
    "redirect",
    "full",
    "unable",
    "no address",
    "nonsense",
)
_BY_TYPE: Final = {
    "AlreadyExistsError": _CONFLICT,
    "PreconditionError": _CONFLICT,
    "PermissionDeniedError": _REFUSED,
    "UnauthenticatedError": _REFUSED,
    "NotSupportedError": _UNABLE,
    "NotImplementedError": _UNABLE,
}
_BY_STATUS: Final = {401: _REFUSED, 403: _REFUSED, 404: _GONE, 408: _SILENT, 429: _SILENT, 507: _FULL}
_NO_BUCKET: Final = re.compile("NoSuchBucket|ContainerNotFound|ContainerBeingDeleted|bucket does not exist")
_STATUS: Final = re.compile(r"status code: ([1-5][0-9]{2})\b")


def _understood(error: BaseException) -> _Failure:
    """Classify an exception of obstore by its text, which is then dropped."""
    text = str(error)
    found = _STATUS.search(text)
    status = int(found[1]) if found else None
    if isinstance(error, FileNotFoundError):
        return _Failure(_GONE if _NO_BUCKET.search(text) else _NOTHING, status)
    by_type = _BY_TYPE.get(type(error).__name__)
    if by_type is not None:
        return _Failure(by_type, status)
    if status is not None:
        return _Failure(_BY_STATUS.get(status, _SILENT if status >= 500 else _NONSENSE), status)
    if "builder error" in text:
        return _Failure(_NO_ADDRESS, None)
    if "redirect without LOCATION" in text or "error following redirect" in text:
        return _Failure(_ELSEWHERE, None)
    return _Failure(_SILENT if "HTTP error" in text else _NONSENSE, None)


def _quietly(ask: Callable[[], T]) -> T | _Failure:
    """Call `ask`, and return its result or the failure. Never raises an exception of obstore, which may be of any
    class: a panic in it is not even an `Exception`."""
    try:
        return ask()
    except HithertoError:
        raise
    except Exception as error:  # noqa: BLE001  # as said: nothing that obstore raises may pass
        return _understood(error)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return _Failure(_NONSENSE, None)


# -- the bucket

_first_use: int | None = None  # the count of forks when obstore's threads were started


def _must_have_its_threads() -> None:
    global _first_use  # noqa: PLW0603  # there is one such set of threads in a process
    if _first_use is None:
        _first_use = forks.count()
    elif _first_use != forks.count():
        hint = "start processes with the method 'spawn', or make no request before os.fork"
        raise Closed("obstore was used before os.fork, and does not work after it", hint=hint)


class _Objects:
    """Names below one prefix of a bucket. `once` is the same store, which never repeats a request by itself."""

    def __init__(self, kind: str, where: str, prefix: str, retries: int, store: "Store", once: "Store") -> None:
        self._kind = kind
        self._where = where
        self._begin = f"{prefix}/" if prefix else ""
        self._retries = retries
        self._store = store
        self._once = once

    def __repr__(self) -> str:
        return f"<bucket {self._where}>"

    @property
    def where(self) -> str:
        return self._where

    # -- reading

    def get(self, name: str, most: int, *, whole: bool = True) -> Content | None:
        checked_name(name)
        found = self._ask(lambda: self._fetch(name, most, None if whole else max(most, 1)))
        if not whole and isinstance(found, _Failure) and found.kind == _NONSENSE:
            found = self._fetch_nothing(name) or found  # there is no range in an empty thing, and servers say so oddly
        if not isinstance(found, _Failure):
            return found
        if found.kind == _NOTHING:
            return None
        raise self._error("read", found)

    def _fetch(self, name: str, most: int, end: int | None) -> Content:
        import obstore  # noqa: PLC0415  # heavy

        options: GetOptions = {} if end is None else {"range": (0, end)}
        result = obstore.get(self._store, self._begin + name, options=options)
        meta = result.meta
        size, tag = meta["size"], _tag(meta)
        if end is None and size > most:
            raise too_large(self._where, size, most)
        data = bytes(result.bytes())
        if len(data) != (size if end is None else min(size, end)):
            raise StorageError(f"{self._where} gave {len(data):,} bytes of {size:,}", hint="try again")
        return Content(data[:most], size, tag)

    def _fetch_nothing(self, name: str) -> Content | _Failure | None:
        """An empty thing; None if it is not empty."""
        try:
            return self._ask(lambda: self._fetch(name, 0, None))
        except PayloadTooLarge:
            return None

    def things(self, prefix: str = "") -> Iterator[Thing]:
        above, slash, begin = prefix.rpartition("/")
        if slash:
            checked_name(above)
        folder = (self._begin + above).rstrip("/")
        listed = self._ask(lambda: self._list(folder))
        if isinstance(listed, _Failure):
            raise self._error("list", listed)
        if not listed and self._kind != "memory":
            self._look_for_nothing()
        skip = len(folder) + 1 if folder else 0
        for meta in listed:
            last = meta["path"][skip:]
            if last and "/" not in last and last.startswith(begin):
                yield Thing(above + slash + last, meta["size"], _tag(meta))

    def _list(self, folder: str) -> "list[ObjectMeta]":
        import obstore  # noqa: PLC0415  # heavy

        return list(obstore.list_with_delimiter(self._store, folder or None)["objects"])

    def _look_for_nothing(self) -> None:
        """A server that answers everything lists nothing, too, and has everything."""
        found = self._ask(lambda: self._fetch(_NOBODYS, _PART, None))
        if not isinstance(found, _Failure):
            raise self._error("list", _Failure(_NONSENSE, 200))
        if found.kind != _NOTHING:
            raise self._error("list", found)

    def tidy(self) -> None:
        """The parts of a put that was broken off are no objects; the server's own rules say when they go."""

    def stray(self) -> Iterator[tuple[str, str]]:
        return iter(())

    # -- writing

    def put(self, name: str, data: bytes, expect: str | Whatever | None = WHATEVER) -> str:
        checked_name(name)
        if not isinstance(expect, Whatever):
            return self._put_if(name, data, expect)
        done = self._ask(lambda: self._send(self._store, name, data, "overwrite"))
        if isinstance(done, _Failure):
            raise self._error("write", done)
        return done

    def _send(self, store: "Store", name: str, data: bytes, mode: "PutMode") -> str:
        import obstore  # noqa: PLC0415  # heavy

        parts = mode == "overwrite" and len(data) >= _LARGE
        path = self._begin + name
        result = obstore.put(store, path, data, mode=mode, use_multipart=parts, chunk_size=_PART)
        return _tag_of_put(result) or _tag(obstore.head(store, path))

    def _put_if(self, name: str, data: bytes, expect: str | None) -> str:
        """Put with a condition, and retry. `unsure`: an earlier attempt may have been stored."""
        unsure = False
        failure = _Failure(_SILENT, None)
        for attempt in range(self._retries + 1):
            if attempt:
                time.sleep(min(_FIRST_PAUSE_SECONDS * 2 ** (attempt - 1), _LONGEST_PAUSE_SECONDS))
            done = self._ask(lambda: self._send_if(name, data, expect))
            if not isinstance(done, _Failure):
                return done
            failure = done
            if failure.kind == _SILENT:
                unsure = True
            elif failure.kind == _CONFLICT:
                found = self.get(name, len(data) + 1, whole=False)
                if unsure and found is not None and found.data == data:
                    return found.tag
                if (None if found is None else found.tag) != expect:
                    raise in_the_way(name, expect, None if found is None else found.tag)
            else:
                break
        raise self._error("write", failure)

    def _send_if(self, name: str, data: bytes, expect: str | None) -> str | _Failure:
        if expect is None:
            return self._send(self._once, name, data, "create")
        if not _TAG.fullmatch(expect):
            return _Failure(_CONFLICT, None)
        mode: PutMode = {"e_tag": _quote(expect)}
        if self._kind == "gs":
            import obstore  # noqa: PLC0415  # heavy

            meta = _quietly(lambda: obstore.head(self._store, self._begin + name))
            if isinstance(meta, _Failure):
                return meta if meta.kind != _NOTHING else _Failure(_CONFLICT, None)
            if _tag(meta) != expect:
                return _Failure(_CONFLICT, None)
            mode = {"e_tag": meta["e_tag"], "version": meta["version"]}
        return self._send(self._once, name, data, mode)

    def remove(self, name: str) -> bool:
        """Delete an object. Servers do not report whether it existed, so two simultaneous calls may both return
        True."""
        if self.get(name, 1, whole=False) is None:
            return False
        done = self._ask(lambda: self._delete(name))
        if isinstance(done, _Failure) and done.kind != _NOTHING:
            raise self._error("remove", done)
        return not isinstance(done, _Failure)

    def _delete(self, name: str) -> None:
        import obstore  # noqa: PLC0415  # heavy

        obstore.delete(self._store, self._begin + name)

    # -- failures

    def _ask(self, ask: Callable[[], T]) -> T | _Failure:
        if self._kind != "memory":
            _must_have_its_threads()
        return _quietly(ask)

    def _error(self, doing: str, failure: _Failure) -> HithertoError:
        status = f" (HTTP {failure.status})" if failure.status is not None else ""
        what = f"{self._where}: cannot {doing}"
        match failure.kind:
            case "refused":
                return Denied(f"{what}, it refuses us{status}", hint=_HOW_TO_REACH[self._kind] or None)
            case "no bucket" | "nothing there":
                hint = "make the bucket first, or check its name; that is not ours to do"
                return CannotOpen(f"{what}, there is no such bucket{status}", hint=hint)
            case "no answer":
                return Unavailable(f"{what}, it does not answer, or says that it cannot now{status}")
            case "conflict":
                return Busy(f"{what}, others write the same at this moment{status}", hint="try again")
            case "redirect":
                return StorageError(f"{what}, it sends us elsewhere", hint="check the region and the address")
            case "full":
                return StorageFull(f"{what}, no space is left{status}")
            case "unable":
                return StorageError(f"{what}, it is not able to", hint="it must support conditional puts")
            case "no address":
                return CannotOpen(f"{what}, its address is not one", hint=_HOW_TO_REACH[self._kind] or None)
        hint = "check the address: what answers there may not be such a server"
        return StorageError(f"{what}, the answer cannot be understood{status}", hint=hint)


# -- tags


def _bare(tag: str) -> str:
    """Some servers leave the quotes out in listings."""
    return tag[1:-1] if len(tag) >= 2 and tag[0] == tag[-1] == '"' else tag


def _quote(tag: str) -> str:
    return tag if tag.startswith('W/"') else f'"{tag}"'


def _tag(meta: "ObjectMeta") -> str:
    """A server that gives no tags gets none of its puts on a condition: what we make up here fits nothing there."""
    return _bare(meta["e_tag"] or "") or f"{meta['size']:x}-{meta['last_modified'].timestamp():f}"


def _tag_of_put(result: "PutResult") -> str:
    return _bare(result["e_tag"] or "")
