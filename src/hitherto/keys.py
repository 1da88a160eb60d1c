"""The key of a sealed workspace, and its sources.

A key is 32 random bytes. `Key` holds them, never shows them, and remembers its source: after another process has
rotated the key, the same source is read again. There is no fallback anywhere. A key that cannot be fetched, or that
other users can read, is an error. It never leads to a new key, or to a store without one.

**Forms.** `to_file` and `to_keyring` write one line of text: `hitherto-key-1:`, then the 32 bytes in base64url without
padding (43 characters), then, in a file, a newline. A source may hold

- 32 raw bytes and nothing else (not in a keyring, which holds text),
- 64 hexadecimal digits,
- base64 or base64url of 32 bytes, with or without padding,
- the line that we write,

the last three with one newline, `\\n` or `\\r\\n`, or none. Everything else is refused after at most a few hundred
bytes.

**Tracebacks.** Error reporters send tracebacks with the values of local variables. So no function raises while a local
variable holds a secret: the functions below return a `Problem` instead, and `Key` raises when no frame holds the
secret, outside of any `except`, so that no other exception refers to it.
"""

import os
import re
import shlex
import stat
import sys
import threading
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final, NamedTuple, NoReturn, SupportsIndex, final

from ._system import own_files
from .errors import AlreadyExists, Hint, InvalidArgument, InvalidKey, KeyUnavailable, StorageError

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

__all__ = ["Key"]

_SIZE = 32  # bytes
_MOST = 256  # bytes that are read at most: more than any form has
_LONGEST = 66  # bytes of the longest form: hexadecimal digits and \r\n
_DERIVED_MOST = 255 * 32  # bytes: the limit of HKDF-SHA256
_GRACE_SECONDS = 1.0  # for a killed process to end

_POSIX = os.name == "posix"
# A key file may be reached through a link, as secrets are mounted into a container: the opened file is checked.
_TO_READ = own_files.TO_READ_THROUGH_LINKS

_OURS = "hitherto-key-1:"
# The last of 43 digits has two bits more than are needed: they are zero, or it is no base64 of 32 bytes.
_LAST = b"[AEIMQUYcgkosw048]"
_TEXT = re.compile(
    rb"(?:(?P<hex>[0-9A-Fa-f]{64})"
    rb"|hitherto-key-1:(?P<ours>[A-Za-z0-9_-]{42}" + _LAST + rb")"
    rb"|(?P<base64>(?:[A-Za-z0-9+/]{42}|[A-Za-z0-9_-]{42})" + _LAST + rb")=?"
    rb")(?:\r?\n)?"
)

_FORMS_HINT = (
    "a key is 32 raw bytes, 64 hexadecimal digits, or base64 of 32 bytes, and nothing beside it; what is already "
    "sealed needs its own key, restored from a backup"
)
_NO_PATH, _NO_PATH_HINT = "that is not the path of a key file", "give a path; the key itself is for Key(…)"
_MISSING_HINT = Hint(
    "no-key-there",
    "check the place; what is already sealed needs its own key: Key.generate() is for a new store only",
)

# The keyrings of operating systems, by module and class: they encrypt, and ask the user. Others that the library can be
# set to use write plain text, or remember nothing.
_REAL_KEYRINGS = frozenset(
    {
        ("keyring.backends.macOS", "Keyring"),  # the Keychain
        ("keyring.backends.Windows", "WinVaultKeyring"),  # the Credential Locker
        ("keyring.backends.SecretService", "Keyring"),  # GNOME Keyring, KeePassXC and others, over D-Bus
        ("keyring.backends.libsecret", "Keyring"),  # the same, through libsecret
        ("keyring.backends.kwallet", "DBusKeyring"),  # KWallet 5
        ("keyring.backends.kwallet", "DBusKeyringKWallet4"),
    }
)


class Problem(NamedTuple):
    """A problem and its hint, without the secret."""

    what: str
    hint: str


_TAKEN: Final = Problem("there is something already", "")
_Source = Callable[[], bytearray | Problem]


@final
class Key:
    """The key of a sealed workspace: 32 bytes, and their source.

    `Key.generate().to_file(path)` creates one, once; `Key.from_file(path)` fetches it from then on.

    It is not printed, pickled or copied. Keep a backup of it away from the data: without the key, a sealed store can
    never be read again.
    """

    __slots__ = ("__weakref__", "_id", "_secret", "_source")

    _id: str
    _secret: bytearray
    _source: _Source | None

    def __init__(self, secret: bytes | bytearray) -> None:
        self._id, self._source = "", None  # a traceback may show this object before it is complete
        problem = _find_problem(secret)
        if problem is not None:
            del secret
            raise InvalidKey(problem.what, hint=problem.hint or None)
        self._secret = bytearray(secret)
        del secret
        self._id = self._derive(b"", b"hitherto/1 key id", 8).hex()

    @property
    def id(self) -> str:
        """16 hexadecimal digits that identify the key without revealing it."""
        return self._id

    # -- sources of keys

    @classmethod
    def generate(cls) -> "Key":
        """A new key, from the operating system's source of randomness. Keep it: `to_file`, `to_keyring`."""
        from ._sealing.primitives import random_key  # noqa: PLC0415  # cryptography is loaded when something is sealed

        return cls(random_key())

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> "Key":
        """The key in a file that belongs to us or to root, and that no other user may read: `chmod 600`.

        Links are followed, because mounted secrets need it; the file at their end is checked. On Windows, where files
        have no such mode, the permissions are not checked.
        """
        where = _place(path)
        del path
        if where is None:
            raise InvalidArgument(_NO_PATH, hint=_NO_PATH_HINT)
        return cls._fetch(lambda: _read_file(where, "the key file", forbidden=0o077))

    @classmethod
    def from_command(cls, command: str | Sequence[str], *, timeout_seconds: float = 30.0) -> "Key":
        """The key that a command writes to its standard output: `"pass show hitherto"`, `["op", "read", "op://…"]`.

        There is no shell: a string is only split as a shell would split it (on Windows, where backslashes would count
        as escapes, give a list). Standard input is empty. The command inherits the environment and standard error; its
        messages there are never part of an error.
        """
        source = _command(command, timeout_seconds)
        del command  # its arguments may be secrets too
        if isinstance(source, Problem):
            raise InvalidArgument(source.what, hint=source.hint)
        return cls._fetch(source)

    @classmethod
    def from_credential(cls, name: str) -> "Key":
        """The key that systemd passed to this service under a name: `LoadCredential=`, `LoadCredentialEncrypted=`."""
        if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or os.sep in name:
            raise InvalidArgument(
                "not the name of a credential", hint="give the name alone, as it stands in LoadCredential=NAME:…"
            )
        directory = os.environ.get("CREDENTIALS_DIRECTORY")
        if not directory:
            raise KeyUnavailable(
                f"there is no credential {name!r}: systemd passed none to this process",
                hint="put LoadCredential= or LoadCredentialEncrypted= into the service's unit",
            )
        where = os.path.join(directory, name)
        # If possible, systemd gives the file to root and the service's user an ACL entry. The mask of that entry
        # appears in the group's bits, as 0440, so the group's right to read means nothing here.
        return cls._fetch(lambda: _read_file(where, "the credential", forbidden=0o037))

    @classmethod
    def from_keyring(cls, service: str, username: str = "hitherto") -> "Key":
        """The key in the keyring of the operating system, which may ask the user to unlock it.

        Only keyrings of operating systems are read, even if the `keyring` library is configured for others.
        """
        _check_entry(service, username)
        return cls._fetch(lambda: _from_keyring(service, username))

    @classmethod
    def _fetch(cls, source: _Source) -> "Key":
        from ._sealing import primitives  # noqa: F401, PLC0415  # if it cannot be loaded, it fails before this frame holds a secret

        found = source()
        if isinstance(found, Problem):
            raise KeyUnavailable(found.what, hint=found.hint)
        key = cls(found)
        found[:] = bytes(_SIZE)
        key._source = source
        return key

    def _can_change(self) -> bool:
        """Is there a source that can be read again?"""
        return self._source is not None

    def _again(self) -> "Key | None":
        """Read the source again. Returns its key if it has changed, and None if not."""
        self._reveal()
        if self._source is None:
            return None
        now = self._fetch(self._source)
        if now != self:
            return now
        now.wipe()
        return None

    # -- storing keys

    def to_file(self, path: str | os.PathLike[str]) -> None:
        """Write the key into a new file that only we may read (0600), durably. An existing file is never touched.

        If that fails, no file is left. A process that is killed in the middle may leave an empty one; it is not
        accepted as a key.
        """
        where = _place(path)
        del path
        if where is None:
            raise InvalidArgument(_NO_PATH, hint=_NO_PATH_HINT)
        problem = _write_new(where, self._text())
        if problem is _TAKEN:
            raise AlreadyExists("the file", where, hint="give another path; a key is never written over something else")
        if problem is not None:
            raise StorageError(problem.what, hint=problem.hint)

    def to_keyring(self, service: str, username: str = "hitherto") -> None:
        """Store the key in the keyring of the operating system. An existing entry of that name is never replaced; if it
        holds the same key, nothing is done."""
        _check_entry(service, username)
        problem = _into_keyring(service, username, self._text())
        if problem is _TAKEN:
            raise AlreadyExists(
                "the keyring entry",
                f"{username} for {service}",
                hint="give another service or username; remove the entry only if nothing is sealed with that key",
            )
        if problem is not None:
            raise KeyUnavailable(problem.what, hint=problem.hint)

    # -- use

    def _reveal(self) -> bytes:
        secret = bytes(self._secret)  # a copy: `wipe` may run in another thread
        if not any(secret):
            raise KeyUnavailable(f"the key {self._id} was wiped", hint="fetch the key again from where it is kept")
        return secret

    def _text(self) -> str:
        return _OURS + urlsafe_b64encode(self._reveal()).decode().rstrip("=")

    def _derive(self, salt: bytes, purpose: bytes, length: int = 32) -> bytes:
        """A key for one purpose: HKDF-SHA256."""
        from ._sealing.primitives import derive  # noqa: PLC0415  # see above

        # Checked here, because `derive` would fail in a frame that holds the secret.
        if not (isinstance(salt, bytes) and isinstance(purpose, bytes) and 0 < length <= _DERIVED_MOST):
            raise InvalidArgument(
                "a key is derived from a salt and a purpose, both bytes", hint="ask for 1 to 8,160 bytes"
            )
        return derive(self._reveal(), salt, purpose, length)

    def wipe(self) -> None:
        """Overwrite our copy of the key with zeros; from now on, using it raises `KeyUnavailable`.

        This does not guarantee that the key has left the memory. The caller wipes the bytes that the key was made from.
        Python and `cryptography` make short-lived copies while a key is read and used, and free them without
        overwriting. Keys derived from this one live as long as the store that uses them. Swap space and core dumps may
        keep copies.
        """
        self._secret[:] = bytes(_SIZE)
        self._source = None

    # -- no way to reveal the key by accident

    def __repr__(self) -> str:
        return f"<Key {self._id[:8]}…>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Key):
            return NotImplemented
        from ._sealing.primitives import same  # noqa: PLC0415  # see above

        return self is other or same(self._reveal(), other._reveal())

    def __hash__(self) -> int:
        return hash(self._id)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "a Key is not pickled or copied, so that it stays in one place: in another process, fetch it again from "
            "where it is kept"
        )


def _find_problem(secret: object) -> Problem | None:
    """The problem with a value that is no key; None if it is one. A problem without a hint has the usual hint."""
    if not isinstance(secret, bytes | bytearray):
        hint = "keys kept as text are read by Key.from_file, Key.from_command, Key.from_credential and Key.from_keyring"
        return Problem(f"a key is 32 bytes, not a {type(secret).__name__}", hint)
    if len(secret) != _SIZE:
        return Problem(f"a key has 32 bytes, not {len(secret)}", "")
    if not any(secret):
        return Problem("32 zeros are not a key", "")
    return None


def _parse(data: bytes, what: str, *, raw: bool = True) -> bytearray | Problem:
    """Parse the bytes of a source."""
    if raw and len(data) == _SIZE:
        secret = bytearray(data)
    elif (found := _TEXT.fullmatch(data)) is None:
        return Problem(f"{what} {_not_a_key(data)}", _FORMS_HINT)
    elif found["hex"]:
        secret = bytearray.fromhex(found["hex"].decode())
    else:
        digits: bytes = found["ours"] or found["base64"]
        secret = bytearray(urlsafe_b64decode(digits.replace(b"+", b"-").replace(b"/", b"_") + b"="))
    return secret if any(secret) else Problem(f"{what} holds 32 zeros, which are not a key", _FORMS_HINT)


def _not_a_key(data: bytes) -> str:
    """Describe bytes that are no key, without revealing them."""
    if not data:
        return "is empty"
    if len(data) > _LONGEST:
        return "holds more than a key"
    if len(data) == _SIZE + 1 and data.endswith(b"\n"):
        return "holds a newline after what may be 32 raw bytes: these must stand alone"
    return f"holds {len(data)} bytes that are no key in any form"


def _looks_like_a_key(text: str) -> bool:
    """Is this text a key, passed by mistake? Then it must not appear in an error."""
    return _TEXT.fullmatch(text.encode(errors="replace")) is not None


def _reason(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or "the system does not take that name"


# -- files


def _place(path: object) -> str | None:
    """The absolute path, so that a later read finds the same file. None if the value is no path."""
    given = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(given, str) or not given or _looks_like_a_key(given):
        return None
    given = os.path.expanduser(given)
    with suppress(OSError):  # the working directory was deleted: opening the file raises the error
        return os.path.abspath(given)
    return given


def _read_file(path: str, kind: str, *, forbidden: int) -> bytearray | Problem:
    """Read the key in a file. The opened descriptor is checked, because the name may lead to another file by then."""
    what = f"{kind} {path!r}"
    data = b""
    try:
        descriptor = os.open(path, _TO_READ)
        try:
            problem = _check_file(os.fstat(descriptor), what, path, forbidden)
            if problem is not None:
                return problem
            while piece := os.read(descriptor, _MOST + 1 - len(data)):
                data += piece
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        return Problem(f"{what} cannot be read: {_reason(error)}", _MISSING_HINT)
    return _parse(data, what)


def _check_file(info: os.stat_result, what: str, path: str, forbidden: int) -> Problem | None:
    """The problem with a file that must not hold a key; None if there is none."""
    if not stat.S_ISREG(info.st_mode):
        kind = "a directory" if stat.S_ISDIR(info.st_mode) else "not a regular file"
        return Problem(f"{what} is {kind}", "give the path of a regular file with the key in it")
    if not _POSIX:  # Windows has access lists, which Python does not show, and its mode means nothing
        return None
    if info.st_uid not in (0, os.geteuid()):
        hint = f"chown it to the user who runs this, if you know where it comes from: {shlex.quote(path)}"
        return Problem(f"{what} belongs to another user (uid {info.st_uid}), who may change it at will", hint)
    mode = stat.S_IMODE(info.st_mode)
    if mode & forbidden:
        hint = f"chmod 600 {shlex.quote(path)}; if others had the time to read it, change the key"
        return Problem(f"{what} has mode {mode:04o}: it is open to others", hint)
    return None


def _write_new(path: str, text: str) -> Problem | None:
    """Create the complete file durably, or no file at all."""
    try:
        descriptor = own_files.create(path)
    except FileExistsError:
        return _TAKEN
    except (OSError, ValueError) as error:
        return _write_problem(path, error)
    try:
        with open(descriptor, "wb") as file:
            file.write(text.encode() + b"\n")
            file.flush()
            os.fsync(descriptor)
        own_files.sync_names(os.path.dirname(path))
    except OSError as error:
        _remove(path)
        return _write_problem(path, error)
    except BaseException:  # an interruption
        del text
        _remove(path)
        raise
    return None


def _write_problem(path: str, error: OSError | ValueError) -> Problem:
    hint = "check that its directory is there, that you may write to it, and that there is space"
    return Problem(f"the key file {path!r} cannot be written: {_reason(error)}", hint)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


# -- commands


def _command(command: object, timeout_seconds: object) -> _Source | Problem:
    """A source that runs the command. Errors do not show its arguments."""
    words: object = command
    if isinstance(command, str):
        try:
            words = shlex.split(command)
        except ValueError:  # its message would show a part of the command
            return Problem("the key command has a quotation that does not end", "give a list of arguments instead")
    if not isinstance(words, Sequence) or isinstance(words, bytes | bytearray) or not words:
        return Problem("a key command is a str or a list of them", 'for instance ["pass", "show", "hitherto"]')
    if not all(isinstance(word, str) and "\0" not in word for word in words) or not words[0]:
        return Problem("a key command is a program and its arguments, all of them str", "leave out what is empty")
    if _looks_like_a_key(words[0]):
        return Problem("that is a key, not a command that says one", "the key itself is for Key(…)")
    if not isinstance(timeout_seconds, int | float) or not timeout_seconds > 0:
        return Problem("timeout_seconds is a number greater than zero", "leave it out for 30 seconds")
    arguments, timeout = list(words), float(min(timeout_seconds, threading.TIMEOUT_MAX))
    return lambda: _run(arguments, timeout)


def _run(arguments: list[str], timeout_seconds: float) -> bytearray | Problem:
    """Run a command and parse its output, if it succeeds in time."""
    import subprocess  # noqa: PLC0415  # only key commands need it

    what = f"the key command {arguments[0]!r}"
    output, deadline = bytearray(), time.monotonic() + timeout_seconds
    try:
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, bufsize=0)
    except (OSError, ValueError) as error:
        hint = "check that the program is installed and found on PATH; there is no shell, so no pipes and no $VARIABLES"
        return Problem(f"{what} cannot be started: {_reason(error)}", hint)
    try:
        # A thread, because Windows cannot wait for a pipe with a time limit in any other way.
        listener = threading.Thread(target=_listen, args=(process.stdout, output), daemon=True)
        listener.start()
        listener.join(timeout_seconds)
        is_complete = not listener.is_alive()
        if is_complete and len(output) <= _MOST:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        status = process.poll()
    except BaseException:  # an interruption
        del output  # not cleared: the thread may still add to it
        raise
    finally:
        with suppress(OSError):  # it may run as another user now, as under sudo
            process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)
    listener.join(_GRACE_SECONDS)  # it runs as long as a grandchild keeps the pipe open
    if len(output) > _MOST:
        return Problem(f"{what} says more than a key", _FORMS_HINT)
    if not is_complete or status is None:
        text = "it may wait for an answer that nobody can give; a larger timeout_seconds waits longer"
        hint = Hint("key-command-timeout", text)
        return Problem(f"{what} did not end within {timeout_seconds:g} seconds", hint)
    if status != 0:
        how = f"failed with exit status {status}" if status > 0 else f"was killed by signal {-status}"
        return Problem(f"{what} {how}", "run it by hand to see why; its own messages went to standard error")
    return _parse(bytes(output), f"the output of {what}")


def _listen(pipe: IO[bytes], output: bytearray) -> None:
    with pipe:
        while piece := pipe.read(_MOST + 1 - len(output)):
            output += piece


# -- keyrings


def _check_entry(service: object, username: object) -> None:
    for name, given in (("service", service), ("username", username)):
        if not isinstance(given, str) or not given:
            raise InvalidArgument(
                f"the {name} of a keyring entry is a str that is not empty", hint="for instance 'app'"
            )


def _from_keyring(service: str, username: str) -> bytearray | Problem:
    rings = real_keyrings()
    if isinstance(rings, Problem):
        return rings
    output = _ask(rings, service, username)
    if output is None:
        names = ", ".join(map(_class_of, rings))
        return Problem(f"there is no entry {username!r} for {service!r} in the keyring ({names})", _MISSING_HINT)
    return output if isinstance(output, Problem) else _parse_entry(output, service, username)


def _into_keyring(service: str, username: str, text: str) -> Problem | None:
    rings = real_keyrings()
    if isinstance(rings, Problem):
        return rings
    before = _ask(rings, service, username)
    if isinstance(before, Problem):
        return before
    wanted = _parse_entry(text, service, username)
    if before is not None:
        return None if _parse_entry(before, service, username) == wanted else _TAKEN
    try:
        rings[0].set_password(service, username, text)
    except Exception as error:  # noqa: BLE001  # see _ask
        return _describe_failure(rings[0], error)
    kept = _ask(rings, service, username)  # this may be the only copy, so it is checked now
    if isinstance(kept, str) and _parse_entry(kept, service, username) == wanted:
        return None
    return Problem(f"the keyring {_class_of(rings[0])} did not keep the key", "use Key.to_file until it does")


def _parse_entry(text: str, service: str, username: str) -> bytearray | Problem:
    return _parse(text.encode(errors="replace"), f"the keyring entry {username!r} for {service!r}", raw=False)


def real_keyrings() -> "list[KeyringBackend] | Problem":
    """The keyrings of the operating system among those that the library is set to use, the preferred one first."""
    try:
        import keyring  # noqa: PLC0415  # an extra
        from keyring.backends.chainer import ChainerBackend  # noqa: PLC0415  # see above
    except ImportError:
        return Problem("the keyring library is not installed", 'pip install "hitherto[keyring]"')
    try:
        ring = keyring.get_keyring()
        # A chain would answer from any of its members, and the last of them may be a file of plain text.
        members: list[KeyringBackend] = list(ring.backends) if type(ring) is ChainerBackend else [ring]
    except Exception as error:  # noqa: BLE001  # it loads any class that its configuration names
        hint = "check PYTHON_KEYRING_BACKEND and keyringrc.cfg; python -m keyring diagnose shows them"
        return Problem(f"the keyring library cannot be used here: {type(error).__name__}", hint)
    real = [member for member in members if _is_real(member)]
    if real:
        return real
    refused = ", ".join(map(_class_of, members)) or _class_of(ring)
    return Problem(
        f"{refused} is refused: not a keyring of the operating system, it may keep keys in plain text or not at all",
        Hint(
            "insecure-keyring",
            "use Key.from_file or Key.from_command, or run where there is a Keychain, a Secret Service or KWallet; "
            "python -m keyring --list-backends shows what there is",
        ),
    )


def _is_real(ring: object) -> bool:
    """Is this exactly one of the known classes? A class can claim any module, so it must be found in that module."""
    kind = type(ring)
    module, name = kind.__module__, kind.__qualname__
    return (module, name) in _REAL_KEYRINGS and getattr(sys.modules.get(module), name, None) is kind


def _class_of(ring: object) -> str:
    return f"{type(ring).__module__}.{type(ring).__qualname__}"


def _ask(rings: "list[KeyringBackend]", service: str, username: str) -> str | Problem | None:
    """The first entry of that name. A keyring that fails ends the search: the next one may hold an older key."""
    for ring in rings:
        try:
            output: object = ring.get_password(service, username)
        except Exception as error:  # noqa: BLE001  # D-Bus, GLib and Windows may raise anything, with secrets in it
            return _describe_failure(ring, error)
        if output is not None:
            return str(output)
    return None


def _describe_failure(ring: object, error: Exception) -> Problem:
    from keyring.errors import KeyringLocked  # noqa: PLC0415  # see above

    how = "is locked" if isinstance(error, KeyringLocked) else f"failed with {type(error).__name__}"
    return Problem(
        f"the keyring {_class_of(ring)} {how}",
        "unlock it and try again; a service without a desktop uses Key.from_file",
    )
