"""Imports and exports conversations in our own file formats and those of other programs.

    report = hitherto.formats.load("chats.cpeconvo", store)
    hitherto.formats.save(store, "everything.jsonl")

`load` recognises a file by its content, not by its name. Each format is a module here that converts between a file and
values; `_importing` puts the values into a store, for all formats alike. `register` adds a format.
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
from ..listing import ConversationInfo, Page, conversations, engine_of
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
    """The report of an import. Iterating over it yields the conversations that got new messages."""

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
        """Return True: a report is true even if nothing was added."""
        return True


# -- which format


def register(format: Format) -> None:
    """Add a format in this process. It is tried before ours."""
    kinds = {"name": str, "suffixes": tuple, "writes": bool}
    verbs = ("recognises", "read", "write")
    if not all(isinstance(getattr(format, what, None), kind) for what, kind in kinds.items()) or not all(
        callable(getattr(format, verb, None)) for verb in verbs
    ):
        raise InvalidArgument(f"a format has {', '.join((*kinds, *verbs))}")
    _added[format.name] = format


def names(*, writable: bool = False) -> list[str]:
    """Return the names of the known formats, or only of those that can be written."""
    return sorted(format.name for format in _all() if format.writes or not writable)


def sniff(path: PathLike) -> tuple[str, str]:
    """Return the format of a file or directory, and the evidence for it in words. Raises `InvalidArgument` if the
    format is unknown."""
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
    """Import the conversations of a file into a store. Messages that the store has already are not added again.

    The format is recognised by the content, unless it is given. `key` is for sealed files. Each conversation is written
    whole or not at all. Those that cannot be read are left out; then `PartialImport` is raised at the end, with the
    report. With `dry_run` nothing is written, and the report says what a real import would do. `progress` is called
    with the number of messages read so far.
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
    """Copy all conversations of a store into another one. Messages that the target has already are not added again, so
    an interrupted copy can be repeated.

    The result is the same as that of `save` to lines and `load` from them. Each conversation is written whole or not at
    all. Those that cannot be read are left out; then `PartialImport` is raised at the end, with the report. `progress`
    is called with the number of messages read so far. If a conversation must not leave its store, `NotExportable` names
    it, and nothing is copied.
    """
    own, other = _store(source), _store(target)
    if _is_same(own, other):
        raise InvalidArgument("a store cannot be copied into itself", hint="give two stores, or two workspaces of one")
    return _put(other, _out_of(own, outgoing(own)), _Summing("store", "it is a store", False), "jsonl", progress)


def _is_same(source: Store, target: Store) -> bool:
    """Return True if both are one workspace of one store. Their locations are compared: a copy of a file has the same
    ids."""
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
        except NotFound:  # deleted since the listing
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
    """Import the conversations, and return the report. Raises `PartialImport` if a part was unreadable."""
    try:
        for one in _each(found, sum_up):
            _take(store, one, sum_up, format)
            if progress is not None:
                progress(sum_up.seen)
    finally:
        getattr(found, "close", lambda: None)()  # a reader may have temporary files
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
    """Yield the conversations, as far as the file can be read. Unreadable parts go into the report."""
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
    """Builds the report of an import."""

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
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write a new file with all conversations of a store, or with the given ones. Returns their number. `progress` is
    called with the number of messages written so far.

    The format follows from the name, unless it is given. No file is overwritten, and the new file appears when it is
    complete. If a conversation must not leave its store, `NotExportable` names it, and nothing is written. Formats that
    are one stream of text can also be written to a binary file that is open for writing, in place of a path: then
    `format` is required, and errors of the file are raised as they are.
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
    if progress is not None:
        talks = _counted(talks, progress)
    opened = None if key is None else as_key(key)
    try:
        if where is None:
            return _write_stream(chosen, talks, cast("IO[bytes]", path), opened)
        return chosen.write(talks, where, opened)
    except NotFound:  # a conversation was deleted during the export
        hint = "try again; what is written while others delete has to be lucky"
        raise Busy("a conversation changed while it was written", hint=hint) from None


def _write_stream(format: Format, talks: Iterator[PortableConversation], stream: IO[bytes], key: Key | None) -> int:
    """Write to an open file. Only formats with a `write_to` beside `write` can do it."""
    write_to: WriteTo | None = getattr(format, "write_to", None)
    if write_to is None:
        raise InvalidArgument(f"the format {format.name} is not one stream of text", hint="give the path of a new file")
    if key is not None:
        raise InvalidArgument("a stream is written in clear", hint="leave the key out; seal what comes out yourself")
    return write_to(talks, stream)


def format_for(path: PathLike) -> str:
    """Return the name of the format that the end of a path names. Raise `InvalidArgument` if it names none."""
    return _by_name(_path(path)).name


def _by_name(path: Path) -> Format:
    fitting = [format for format in _all() if any(s and path.name.endswith(s) for s in format.suffixes)]
    if not fitting:
        known = ", ".join(suffix for format in _all() if format.writes for suffix in format.suffixes if suffix)
        hint = Hint("unknown-suffix", "a name that ends in {known}; or format=…", known=known)
        raise InvalidArgument(f"{path.name!r:.100} names no format", hint=hint)
    return max(fitting, key=lambda format: max(len(s) for s in format.suffixes if path.name.endswith(s)))


def _whole(what: object) -> list[PortableConversation | tuple[Engine, bytes]]:
    """Return the conversations to write, in order. Raises `NotExportable` before the first byte is written."""
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
    engine = engine_of(talk) if isinstance(talk, ConversationInfo) else talk.engine
    return engine, parse_conversation_id(talk.id)


def _is_kept_in(engine: Engine, id: bytes) -> bool:
    engine.ensure_open()
    return engine.state_of(engine.read_row(id)).meta.kept_in


def _portables(whole: Iterable[PortableConversation | tuple[Engine, bytes]]) -> Iterator[PortableConversation]:
    for one in whole:
        portable = _leaving(*one).portable if isinstance(one, tuple) else _check_portable(one)
        for note in _holes(portable.messages):
            warn(f"conversation {portable.id:.40}: {note}")
        yield portable


def _counted(talks: Iterator[PortableConversation], progress: Callable[[int], None]) -> Iterator[PortableConversation]:
    """Yield these conversations, and tell how many messages were written when the next one is wanted."""
    written = 0
    for talk in talks:
        yield talk
        written += len(talk.messages)
        progress(written)


def _check_portable(portable: PortableConversation) -> PortableConversation:
    """Check a conversation that the caller made: a store must be able to hold it."""
    check_tree(portable)
    for said in portable.messages:
        check(said.message)
    for setup in portable.setups:
        check_json(setup.raw, "a setup's raw")
        for tool in setup.tools:
            check_json(tool, "a tool")
    return portable


def _holes(messages: Iterable[PortableMessage]) -> Iterator[str]:
    """Describe, for the report, the attachments that the source store has lost."""
    for said in messages:
        for hole in holes_in(said.message):
            yield f"message {said.id:.40}: an attachment of {hole.size:,} bytes is missing, and stays so"


def _leaving(engine: Engine, id: bytes) -> Extracted:
    """Extract a conversation for export. Raises `NotExportable`: the flag was checked before, but may have been set
    since."""
    found = extract(engine, id)
    if found.kept_in:
        raise NotExportable(show_conversation_id(id))
    return found


def thread_to(talk: Conversation) -> PortableConversation:
    """Return the conversation with only the thread that ends at this handle's position. For the command line."""
    found = _leaving(talk.engine, parse_conversation_id(talk.id))
    for id, number in found.numbers.items():
        if number == talk.position.at:
            return upto(found.portable, id)
    raise NotFound("message", [talk.at or ""])


def outgoing(store: Store) -> list[bytes]:
    """Return the ids of all conversations, in the order of their original creation. Raises `NotExportable` if one of
    them must not leave the store: the others can be exported by name. Also for the command line."""
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
