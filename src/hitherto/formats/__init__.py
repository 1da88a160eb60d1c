"""Imports and exports conversations in our own file formats and those of other programs.

    report = hitherto.formats.load("chats.cpeconvo", store)
    hitherto.formats.save(store, "everything.jsonl")

`load` recognises a file by its content, not by its name. Each format is a module in one of the folders here, and
converts between a file and values; `_importing` puts the values into a store, for all formats alike. `register` adds a
format.
"""

import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from .._engine.engine import Engine
from ..backend import Where
from ..conversation import Conversation
from ..errors import Busy, Closed, Hint, HithertoError, InvalidArgument, NotExportable, NotFound, StorageError
from ..events import warn
from ..ids import parse_conversation_id, show_conversation_id
from ..keys import Key
from ..listing import ConversationInfo, Page, conversations, engine_of
from ..model import as_list, check, check_json
from ..snapshots import Unreadable
from ..store import Store, as_key
from ._atomic_file import WriteTo
from ._by_identity import read_records
from ._extract import Extracted, extract
from ._importing import check_tree
from ._loading import finished, import_into, load_files
from ._registry import PathLike, all_formats, find_format, names, path_of, register, sniff
from ._report import Loaded, Summary, holes
from ._types import (
    Format,
    PortableConversation,
    PortableMessage,
    PortablePartial,
    Source,
    SourceRecord,
    Waiting,
    not_written,
)
from .exports._sections import upto
from .exports._training import for_training, leaves

if TYPE_CHECKING:
    from ..aio import AsyncConversation, AsyncStore
    from ..sanitiser import Sanitiser

__all__ = [
    "Format",
    "Loaded",
    "PortableConversation",
    "PortableMessage",
    "PortablePartial",
    "Source",
    "SourceRecord",
    "Waiting",
    "copy",
    "load",
    "names",
    "read_records",
    "register",
    "save",
    "sniff",
    "training_threads",
]

_Whole = Conversation | ConversationInfo | PortableConversation


# -- in


def load(
    path: PathLike | IO[bytes],
    store: "Store | AsyncStore",
    *,
    key: Key | bytes | None = None,
    format: str | None = None,
    dry_run: bool = False,
    even_purged: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Loaded:
    """Import the conversations of a file, a folder, a zip or a binary stream into a store. Messages that the store has
    already are not added again.

    The format is recognised by the content, unless it is given. `key` is for sealed files. Each conversation is written
    whole or not at all. Those that cannot be read are left out; then `PartialImport` is raised at the end, with the
    report. With `dry_run` nothing is written, and the report says what a real import would do. Conversations that
    were purged here stay away, unless `even_purged`. `progress` is called with the number of
    messages read so far.
    """
    own = _store(store)
    own.engine.ensure_open()
    return load_files(
        own,
        cast("IO[bytes]", path) if hasattr(path, "read") else path_of(path),
        key=None if key is None else as_key(key),
        format=format,
        dry=dry_run,
        even_purged=even_purged,
        progress=progress,
    )


def copy(
    source: "Store | AsyncStore",
    target: "Store | AsyncStore",
    *,
    even_purged: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Loaded:
    """Copy all conversations of a store into another one. Messages that the target has already are not added again, so
    an interrupted copy can be repeated.

    The result is the same as that of `save` to lines and `load` from them. Each conversation is written whole or not at
    all. Those that cannot be read are left out; then `PartialImport` is raised at the end, with the report. Those that
    were purged in the target stay away, unless `even_purged`. `progress` is called with the number of messages read so
    far. If a conversation must not leave its store, `NotExportable` names
    it, and nothing is copied.
    """
    own, other = _store(source), _store(target)
    if _is_same(own, other):
        raise InvalidArgument("a store cannot be copied into itself", hint="give two stores, or two workspaces of one")
    sum_up = Summary("store", "it is a store", False)
    import_into(other, _out_of(own, outgoing(own)), sum_up, "jsonl", progress, even_purged=even_purged)
    return finished(sum_up)


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
    where = None if hasattr(path, "write") else path_of(path)
    if where is None and format is None:
        raise InvalidArgument("a stream has no name that tells the format", hint='format="jsonl", for example')
    chosen = find_format(format) if format is not None else _by_name(cast("Path", where))
    if not chosen.writes:
        raise not_written(chosen.name)
    talks = leaving(what)
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
    return _by_name(path_of(path)).name


def _by_name(path: Path) -> Format:
    fitting = [format for format in all_formats() if any(s and path.name.endswith(s) for s in format.suffixes)]
    if not fitting:
        known = ", ".join(suffix for format in all_formats() if format.writes for suffix in format.suffixes if suffix)
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


def leaving(what: object) -> Iterator[PortableConversation]:
    """Return the conversations to write, each read when its turn comes. Raises `NotExportable` at once if one of them
    must not leave its store. Also for the command line."""
    return _portables(_whole(what))


def _portables(whole: Iterable[PortableConversation | tuple[Engine, bytes]]) -> Iterator[PortableConversation]:
    for one in whole:
        portable = _leaving(*one).portable if isinstance(one, tuple) else _check_portable(one)
        for note in holes(portable.messages):
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


def _leaving(engine: Engine, id: bytes) -> Extracted:
    """Extract a conversation for export. Raises `NotExportable`: the flag was checked before, but may have been set
    since."""
    found = extract(engine, id)
    if found.kept_in:
        raise NotExportable(show_conversation_id(id))
    return found


def training_threads(
    talk: Conversation,
    *,
    branch: str = "all",
    tools: bool = False,
    thinking: bool = False,
    sanitiser: "Sanitiser | None" = None,
) -> Iterator[PortableConversation]:
    """Yield the threads of a conversation for fine-tuning, each as a conversation to `save`: one for each leaf of the
    main flow, or with `branch="current"` the one that ends where the handle stands.

    Calls of tools and their results come with `tools`, thoughts with `thinking`. The `sanitiser` cleans what leaves,
    beside what the store's own has cleaned. Control tokens of chat templates are neutralised. Raises `NotExportable`.
    """
    if branch not in ("all", "current"):
        raise InvalidArgument(f"no such branch: {branch!r:.40}", hint='"all" or "current"')
    redactor = None if sanitiser is None else talk.engine.make_redactor(sanitiser)
    found = thread_to(talk) if branch == "current" else _leaving(talk.engine, parse_conversation_id(talk.id)).portable
    for leaf in leaves(found):
        yield for_training(upto(found, leaf), redactor, tools=tools, thinking=thinking)


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
