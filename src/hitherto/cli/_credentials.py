"""The keys of providers that `hitherto login` keeps: in the keyring of the operating system, or in a private file.

The file `keys.json` lies in the user's configuration folder, outside all projects. It says of each provider where its
key is, and holds the key itself only where there is no keyring. So the keyring is asked only for a provider that has a
key in it. A file that other users can read is an error: the keys in it may be known by now.

No error and no message here holds a key.
"""

import json
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from .._system import own_files
from ..errors import CannotOpen, Denied, Hint, HithertoError, StorageError
from ..keys import Problem, real_keyrings

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

_SERVICE = "hitherto"  # in the keyring; the user name there is the provider
_LARGEST = 100_000  # bytes
_IN_KEYRING = "keyring"
_HINT = "hitherto login keeps it again"


def path() -> str:
    """Return the path of the file, whether it exists or not."""
    import platformdirs  # noqa: PLC0415  # only kept keys need it

    return os.path.join(platformdirs.user_config_dir("hitherto", appauthor=False), "keys.json")


def find_kept() -> dict[str, str]:
    """Return the providers with a kept key, each with the place of the key."""
    return {name: "the keyring" if "in" in entry else path() for name, entry in _load().items()}


def fetch(provider: str) -> str | None:
    """Return the kept key of a provider; None if there is none."""
    entry = _load().get(provider)
    if entry is None:
        return None
    if "in" not in entry:
        return entry.get("key")
    key = _ask_keyring(provider)
    if key is None:
        raise Denied(f"the key of {provider} is not in the keyring any more", hint=_HINT)
    return key


def find_keyring() -> "KeyringBackend | Problem":
    """Return the keyring of the operating system, or the reason why none can be used."""
    rings = real_keyrings()
    return rings if isinstance(rings, Problem) else rings[0]


def keep(provider: str, key: str, ring: "KeyringBackend | None") -> None:
    """Keep a key in the keyring, or without one in the file."""
    if ring is None:
        _write(_load() | {provider: {"key": key}})
        return
    failure: StorageError | None = None
    try:
        ring.set_password(_SERVICE, provider, key)
    except Exception as error:  # noqa: BLE001  # D-Bus, GLib and Windows may raise anything, with secrets in it
        failure = _failure(error)
    if failure is not None:
        raise failure
    _write(_load() | {provider: {"in": _IN_KEYRING}})


def forget(provider: str) -> bool:
    """Remove a kept key. Return False if there is none."""
    entries = _load()
    entry = entries.pop(provider, None)
    if entry is None:
        return False
    if "in" in entry:
        _delete_from_keyring(provider)
    _write(entries)
    return True


# -- the keyring


def _ask_keyring(provider: str) -> str | None:
    ring = find_keyring()
    if isinstance(ring, Problem):
        raise Denied(f"the key of {provider} is in the keyring, and there is none here: {ring.what}", hint=_HINT)
    try:
        found: str | None = ring.get_password(_SERVICE, provider)
    except Exception as error:  # noqa: BLE001  # as above
        failure = _failure(error)
    else:
        return found
    raise failure


def _delete_from_keyring(provider: str) -> None:
    if _ask_keyring(provider) is None:  # removed by other means
        return
    ring = find_keyring()
    assert not isinstance(ring, Problem)
    try:
        ring.delete_password(_SERVICE, provider)
    except Exception as error:  # noqa: BLE001  # as above
        failure = _failure(error)
    else:
        return
    raise failure


def _failure(error: Exception) -> StorageError:
    return StorageError(f"the keyring failed with {type(error).__name__}", hint="unlock it, and try again")


# -- the file


def _load() -> dict[str, dict[str, str]]:
    where = path()
    try:
        with own_files.open_descriptor(where, own_files.TO_READ_THROUGH_LINKS) as descriptor:
            problem = _find_problem(os.fstat(descriptor))
            data = b"" if problem is not None else os.read(descriptor, _LARGEST)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise CannotOpen(f"{where} cannot be read: {error.strerror}") from None
    if problem is not None:
        raise Denied(f"{where} {problem}", hint=Hint("keys-open-to-others", f"chmod 600 {where}, and change the keys"))
    return _parse(data, where)


def _parse(data: bytes, where: str) -> dict[str, dict[str, str]]:
    with suppress(ValueError):
        found = json.loads(data)
        if isinstance(found, dict) and all(isinstance(entry, dict) for entry in found.values()):
            return found
    # Outside of the block: the error of the parser would hold the text.
    raise HithertoError(f"{where} is damaged", hint="remove it, and log in again: hitherto login NAME")


def _find_problem(found: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return f"is {own_files.describe_kind(found.st_mode)}"
    if os.name != "posix":  # access lists there, which Python does not show
        return None
    if found.st_uid != os.geteuid():
        return f"belongs to another user (uid {found.st_uid})"
    return "can be read by others" if found.st_mode & 0o077 else None


def _write(entries: dict[str, dict[str, str]]) -> None:
    """Replace the file as a whole; remove it with the last entry."""
    where = os.path.realpath(path())
    text = json.dumps(entries, indent=1) + "\n"
    try:
        if entries:
            os.makedirs(os.path.dirname(where), mode=0o700, exist_ok=True)
            own_files.replace_with(where, text.encode())
        else:
            with suppress(FileNotFoundError):
                os.unlink(where)
    except OSError as error:
        raise CannotOpen(f"{where} cannot be written: {error.strerror}") from None
