"""Files of other programs, and our own: conversations in and out.

    report = hitherto.formats.load("chats.cpeconvo", store)
    hitherto.formats.save(store, "everything.jsonl")

`load` looks at what a file holds, not at what it is called. Each format is a module of its own here that turns a file
into values and back; putting those into a store is the same for all of them. More can be added with `register`.
"""

import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from msgspec import Struct
from msgspec.structs import replace

from .._engine.engine import Engine
from ..backend import Where
from ..conversation import Conversation
from ..dialects._missing_attachments import holes_in
from ..errors import (
    Busy,
    Closed,
    Hint,
    HithertoError,
    InvalidArgument,
    NotExportable,
    NotFound,
    PartialImport,
    StorageError,
)
from ..events import warn
from ..ids import parse_conversation_id, show_conversation_id
from ..keys import Key
from ..listing import ConversationInfo, Page, conversations
from ..model import as_list, check, check_json
from ..snapshots import Unreadable
from ..store import Store, as_key
from ._atomic_file import WriteTo, of_files
from ._extract import Extracted, extract
from ._importing import Admitted, Plan, admit, check_tree, make_plan
from ._sections import upto
from ._types import HEAD, Format, PortableConversation, PortableMessage, PortablePartial, Source, not_written

if TYPE_CHECKING:
    from ..aio import AsyncConversation, AsyncStore

__all__ = [
    "Format",
    "Loaded",
    "PortableConversation",
    "PortableMessage",
    "PortablePartial",
    "Source",
    "copy",
    "load",
    "names",
    "register",
    "save",
    "sniff",
]

# Asked in this order; the last two are for people, and recognise nothing.
_OURS = ("jsonl", "cpeconvo", "cpeconvo_first", "vpconv", "gtb", "openai", "snapshot", "markdown", "html")
_added: dict[str, Format] = {}

PathLike = str | os.PathLike[str]
_Whole = Conversation | ConversationInfo | PortableConversation


class Loaded(Struct, frozen=True):
    """What came of loading a file. Going through it gives the conversations that something was added to."""

    format: str
    found: str  # what in the file shows its format
    added: tuple[Conversation, ...] = ()  # new ones, and those that have grown
    new: int = 0  # conversations that were not there
    unchanged: int = 0  # conversations in which everything was there already
    messages: int = 0  # that were added
    ids: dict[str, str] = {}  # conversation/message as the file names it: its id here, added now or there already
    renamed: dict[str, str] = {}  # conversations that have another id here than in the file
    notes: tuple[str, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    dry: bool = False  # nothing was written: this is what would be

    def __iter__(self) -> Iterator[Conversation]:
        return iter(self.added)

    def __len__(self) -> int:
        return len(self.added)

    def __bool__(self) -> bool:
        """There is always a report, also of nothing."""
        return True


# -- which format


def register(format: Format) -> None:
    """Know one more format from now on, in this process. It is asked before ours."""
    kinds = {"name": str, "suffixes": tuple, "writes": bool}
    verbs = ("recognises", "read", "write")
    if not all(isinstance(getattr(format, what, None), kind) for what, kind in kinds.items()) or not all(
        callable(getattr(format, verb, None)) for verb in verbs
    ):
        raise InvalidArgument(f"a format has {', '.join((*kinds, *verbs))}")
    _added[format.name] = format


def names(*, writable: bool = False) -> list[str]:
    """The formats that are known; only those that can be written, if that is asked."""
    return sorted(format.name for format in _all() if format.writes or not writable)


def sniff(path: PathLike) -> tuple[str, str]:
    """The format of a file or directory, and what in it shows that. `InvalidArgument` if it is none that is known."""
    source = _source(_path(path))
    for format in _all():
        found = format.recognises(source)
        if found is not None:
            return format.name, found
    raise InvalidArgument(f"{source.path.name!r:.100} is in no format that is known{_why(source)}", hint=_hint(source))


def _why(source: Source) -> str:
    if source.is_directory:
        return "" if any(source.path.iterdir()) else ": it is empty"
    return "" if source.head else ": it is empty"


def _hint(source: Source) -> str:
    if source.head.startswith(b"SQLite format 3"):
        return Hint("format-is-a-store", "a store is opened with hitherto.open(path), and saved from there")
    known = sorted(format.name for format in _all() if getattr(format, "reads", True))
    text = "known are {known}; load(…, format=…) takes one of them for granted"
    return Hint("unknown-format", text, known=", ".join(known))


def _all() -> list[Format]:
    return [*_added.values(), *(_find_format(name) for name in _OURS if name not in _added)]


def _find_format(name: str) -> Format:
    if not isinstance(name, str):
        raise InvalidArgument(f"a format is given by its name, not by a {type(name).__name__}")
    if name in _added:
        return _added[name]
    if name not in _OURS:
        raise InvalidArgument(f"no such format: {name!r:.40}", hint=f"known are {', '.join(names())}")
    module = import_module(f"{__name__}.{name}")
    return cast("Format", getattr(module, "FORMAT", module))


def _source(path: Path) -> Source:
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            return Source(path, True, b"")
        if not stat.S_ISREG(kind):  # a pipe would keep us waiting, a device has no end
            raise InvalidArgument(f"{path.name!r:.100} is neither a file nor a directory")
        with open(path, "rb") as file:
            return Source(path, False, file.read(HEAD))
    except OSError as error:
        raise of_files(error, path) from None


def _path(path: PathLike) -> Path:
    if not isinstance(path, (str, os.PathLike)) or "\0" in os.fsdecode(path):
        raise InvalidArgument(f"a file is given by its path, not by a {type(path).__name__}", hint=_ORDER)
    if "://" in os.fsdecode(path):
        hint = "formats are files; hitherto.snapshots.ObjectStore keeps snapshots in a bucket"
        raise InvalidArgument("this is an address, not the path of a file", hint=hint)
    try:
        os.fsencode(path)
        return Path(path).expanduser()
    except UnicodeEncodeError:
        raise InvalidArgument("a path that no file can have: it holds half of a surrogate pair") from None
    except RuntimeError:
        raise InvalidArgument("the home directory in this path is nobody's") from None


_ORDER = "load(path, store), and save(store, path)"


# -- in


def load(
    path: PathLike,
    store: "Store | AsyncStore",
    *,
    key: Key | bytes | None = None,
    format: str | None = None,
    dry_run: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Loaded:
    """Put what a file holds into a store. What is there already is not added again.

    The format is seen from the content, unless one is given. `key` is for files that are sealed. Each conversation is
    written whole or not at all; those that cannot be read are left out, and then `PartialImport` is raised at the end,
    with the report. With `dry_run` nothing is written, and the report says what would be. `progress` hears how many
    messages have been looked at.
    """
    own = _store(store)
    own.engine.ensure_open()
    where = _path(path)
    name, found = sniff(where) if format is None else (format, "it was given")
    opened = None if key is None else as_key(key)
    return _put(own, _find_format(name).read(where, opened), _Summing(name, found, dry_run), name, progress)


def copy(
    source: "Store | AsyncStore", target: "Store | AsyncStore", *, progress: Callable[[int], None] | None = None
) -> Loaded:
    """Put all conversations of a store into another one. What is there already is not added again, so that a copy that
    was stopped goes on where it was.

    It is as loading a file of lines that the first store was saved to, one conversation after the other: each is
    written whole or not at all, and those that cannot be read are left out, and then `PartialImport` is raised at the
    end, with the report. `progress` hears how many messages have been looked at. If one must not leave its store,
    `NotExportable` names it, and nothing is copied.
    """
    own, other = _store(source), _store(target)
    if _is_same(own, other):
        raise InvalidArgument("a store cannot be copied into itself", hint="give two stores, or two workspaces of one")
    return _put(other, _out_of(own, outgoing(own)), _Summing("store", "it is a store", False), "jsonl", progress)


def _is_same(source: Store, target: Store) -> bool:
    """Is it one workspace of one store? By the place: a copy of the file has the same ids."""
    ours, theirs = source.backend.info, target.backend.info
    for store in (source, target):
        store.engine.ensure_open()
    same = source.backend is target.backend
    if ours.durable and ours.location and theirs.location:
        same = same or os.path.realpath(ours.location) == os.path.realpath(theirs.location)
    return same and ours.workspace == theirs.workspace


def _out_of(store: Store, ids: Iterable[bytes]) -> Iterator[PortableConversation | Unreadable]:
    for id in ids:
        try:
            yield _leaving(store.engine, id).portable
        except NotFound:  # deleted meanwhile
            continue
        except (StorageError, Closed):
            raise
        except HithertoError as error:
            yield Unreadable(f"conversation {show_conversation_id(id)}", str(error))


def _put(
    store: Store,
    found: Iterator[PortableConversation | Unreadable],
    sum_up: "_Summing",
    format: str,
    progress: Callable[[int], None] | None,
) -> Loaded:
    """Take in what comes, and report."""
    try:
        for one in _each(found, sum_up):
            _take(store, one, sum_up, format)
            if progress is not None:
                progress(sum_up.seen)
    finally:
        getattr(found, "close", lambda: None)()  # a reader may have put something down on the disk
    report = sum_up.report()
    if report.unreadable:
        more = f" and {len(report.unreadable) - 1} more" if len(report.unreadable) > 1 else ""
        first = report.unreadable[0]
        raise PartialImport(f"not everything could be read: {first.name}: {first.reason}{more}", report)
    return report


def _take(store: Store, one: PortableConversation, sum_up: "_Summing", format: str) -> None:
    try:
        sum_up.take(one, make_plan(store, one, format) if sum_up.dry else admit(store, one, format))
    except (StorageError, Closed):
        raise
    except HithertoError as error:
        sum_up.unreadable.append(Unreadable(f"conversation {one.id:.40}", str(error)))


def _each(found: Iterator[PortableConversation | Unreadable], sum_up: "_Summing") -> Iterator[PortableConversation]:
    """The conversations, as far as the file can be read."""
    some = False
    while True:
        try:
            one = next(found)
        except StopIteration:
            return
        except HithertoError as error:
            if not some or isinstance(error, StorageError):
                raise
            sum_up.unreadable.append(Unreadable("the rest of it", str(error)))
            return
        some = True
        if isinstance(one, Unreadable):
            sum_up.unreadable.append(one)
        else:
            yield one


class _Summing:
    """A report that is being written."""

    def __init__(self, format: str, found: str, dry: bool) -> None:
        self._start = Loaded(format, found, dry=dry)
        self.dry = dry
        self.unreadable: list[Unreadable] = []
        self.seen = 0
        self._added: list[Conversation] = []
        self._new = self._unchanged = self._messages = 0
        self._ids: dict[str, str] = {}
        self._renamed: dict[str, str] = {}
        self._notes: list[str] = []

    def take(self, portable: PortableConversation, done: Admitted | Plan) -> None:
        plan = done.plan if isinstance(done, Admitted) else done
        self.seen += len(portable.messages)
        self._messages += len(plan.new)
        self._new += plan.there is None
        self._unchanged += plan.is_done
        if plan.id != portable.id:
            self._renamed[portable.id] = plan.id
        if plan.renamed:
            self._notes.append(f"conversation {portable.id:.40} has the id of another one, and is {plan.id} here")
        self._notes += [f"conversation {plan.id}: {note}" for note in plan.notes]
        self._notes += [f"conversation {plan.id}: {note}" for note in _holes(plan.new)]
        if isinstance(done, Admitted):
            names = done.conversation.engine.message_ids
            known = {id: names.id(number) for id, number in plan.known.items()}
            self._ids |= {f"{portable.id}/{id}": own for id, own in (known | done.ids).items()}
            if not plan.is_done:
                self._added.append(done.conversation)

    def report(self) -> Loaded:
        return replace(
            self._start,
            added=tuple(self._added),
            new=self._new,
            unchanged=self._unchanged,
            messages=self._messages,
            ids=self._ids,
            renamed=self._renamed,
            notes=tuple(self._notes),
            unreadable=tuple(self.unreadable),
        )


# -- and out


def save(
    what: "Store | AsyncStore | Conversation | AsyncConversation | Iterable[_Whole]",
    path: PathLike | IO[bytes],
    *,
    format: str | None = None,
    key: Key | bytes | None = None,
) -> int:
    """Write a new file with all conversations of a store, or with these. Returns how many.

    The format is seen from the name, unless one is given. Nothing is overwritten, and the file appears when it is
    complete. If one of them must not leave its store, `NotExportable` names it, and nothing is written. In place of a
    path, a binary file that is open to be written will do, for formats that are one stream of text: then `format` says
    which, and what goes wrong with the file is the file's own error.
    """
    if isinstance(path, io.TextIOBase):
        raise InvalidArgument("a stream is a binary file, and this one is of text", hint="sys.stdout.buffer, for one")
    where = None if hasattr(path, "write") else _path(path)
    if where is None and format is None:
        raise InvalidArgument("a stream has no name that tells the format", hint='format="jsonl", for example')
    chosen = _find_format(format) if format is not None else _by_name(cast("Path", where))
    if not chosen.writes:
        raise not_written(chosen.name)
    talks = _portables(_whole(what))
    opened = None if key is None else as_key(key)
    try:
        if where is None:
            return _write_stream(chosen, talks, cast("IO[bytes]", path), opened)
        return chosen.write(talks, where, opened)
    except NotFound:  # deleted while it was written
        hint = "try again; what is written while others delete has to be lucky"
        raise Busy("a conversation changed while it was written", hint=hint) from None


def _write_stream(format: Format, talks: Iterator[PortableConversation], stream: IO[bytes], key: Key | None) -> int:
    """Write to a file that is open. A format that can has `write_to` beside `write`."""
    write_to: WriteTo | None = getattr(format, "write_to", None)
    if write_to is None:
        raise InvalidArgument(f"the format {format.name} is not one stream of text", hint="give the path of a new file")
    if key is not None:
        raise InvalidArgument("a stream is written in clear", hint="leave the key out; seal what comes out yourself")
    return write_to(talks, stream)


def _by_name(path: Path) -> Format:
    fitting = [format for format in _all() if any(s and path.name.endswith(s) for s in format.suffixes)]
    if not fitting:
        known = ", ".join(suffix for format in _all() if format.writes for suffix in format.suffixes if suffix)
        hint = Hint("unknown-suffix", "a name that ends in {known}; or format=…", known=known)
        raise InvalidArgument(f"{path.name!r:.100} names no format", hint=hint)
    return max(fitting, key=lambda format: max(len(s) for s in format.suffixes if path.name.endswith(s)))


def _whole(what: object) -> list[PortableConversation | tuple[Engine, bytes]]:
    """What is to be written, in order. `NotExportable` before anything is."""
    found = getattr(what, "sync", what)
    if isinstance(found, Page):
        if found.next_cursor is not None:
            hint = "pass the store itself for everything, or a larger limit"
            raise InvalidArgument("this is one page of a listing, and there are more", hint=hint)
        found = found.items
    if isinstance(found, Store):
        found.engine.ensure_open()
        return [(found.engine, id) for id in outgoing(found)]
    handles = [found] if isinstance(found, (Conversation, ConversationInfo)) else as_list(found, "conversations")
    meant = [_meant(handle) for handle in handles]
    inside = [one for one in meant if isinstance(one, tuple) and _is_kept_in(*one)]
    if inside:
        raise NotExportable(*(show_conversation_id(id) for _, id in inside))
    return meant


def _meant(handle: object) -> PortableConversation | tuple[Engine, bytes]:
    talk = getattr(handle, "sync", handle)
    if isinstance(talk, PortableConversation):
        return talk
    if not isinstance(talk, (Conversation, ConversationInfo)):
        raise InvalidArgument(f"a {type(handle).__name__} where a conversation is wanted")
    return talk.engine, parse_conversation_id(talk.id)


def _is_kept_in(engine: Engine, id: bytes) -> bool:
    engine.ensure_open()
    return engine.state_of(engine.read_row(id)).meta.kept_in


def _portables(whole: Iterable[PortableConversation | tuple[Engine, bytes]]) -> Iterator[PortableConversation]:
    for one in whole:
        portable = _leaving(*one).portable if isinstance(one, tuple) else _check_portable(one)
        for note in _holes(portable.messages):
            warn(f"conversation {portable.id:.40}: {note}")
        yield portable


def _check_portable(portable: PortableConversation) -> PortableConversation:
    """A conversation that the caller made, if it is one that a store could hold."""
    check_tree(portable)
    for said in portable.messages:
        check(said.message)
    for setup in portable.setups:
        check_json(setup.raw, "a setup's raw")
        for tool in setup.tools:
            check_json(tool, "a tool")
    return portable


def _holes(messages: Iterable[PortableMessage]) -> Iterator[str]:
    """Which messages come without attachments that their store has lost, in words."""
    for said in messages:
        for hole in holes_in(said.message):
            yield f"message {said.id:.40}: an attachment of {hole.size:,} bytes is missing, and stays so"


def _leaving(engine: Engine, id: bytes) -> Extracted:
    """A conversation on its way out, if it may go now: it was looked at before, but others go on."""
    found = extract(engine, id)
    if found.kept_in:
        raise NotExportable(show_conversation_id(id))
    return found


def thread_to(talk: Conversation) -> PortableConversation:
    """The conversation with nothing but the thread that ends where this handle stands. For the command line."""
    found = _leaving(talk.engine, parse_conversation_id(talk.id))
    for id, number in found.numbers.items():
        if number == talk._sure:
            return upto(found.portable, id)
    raise NotFound("message", [talk.at or ""])


def outgoing(store: Store) -> list[bytes]:
    """All conversations in the order in which they were begun, wherever that was. `NotExportable` if one of them must
    not leave the store: who wants the others names them. For the command line, too."""
    births: list[tuple[int, bytes]] = []
    inside: list[str] = []
    for row in conversations(store.backend, Where(), oldest_first=True):
        meta = store.engine.state_of(row).meta
        births.append((meta.created or row.created_at, row.id))
        if meta.kept_in:
            inside.append(show_conversation_id(row.id))
    if inside:
        raise NotExportable(*inside)
    return [id for _, id in sorted(births)]


def _store(store: object) -> Store:
    found = getattr(store, "sync", store)
    if not isinstance(found, Store):
        raise InvalidArgument(f"a {type(store).__name__} where a store is wanted", hint="hitherto.open(…)")
    return found
