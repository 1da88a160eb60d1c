"""`hitherto export` and `hitherto import`: conversations out of the store, and into it.

Nothing is overwritten. An export to standard output is written while it is read, without a temporary file. Several
files are imported one by one; an unreadable file does not stop the others.
"""

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import IO, TYPE_CHECKING, cast

import click

from .. import errors
from .._system.terminal_text import escape_control_characters
from ._completion import complete_ids
from ._exit_codes import PARTIAL, exit_code_of
from ._hints import hint_of
from ._ids import find_or_newest, is_message
from ._output import Meter, count_of, print_json
from ._search import Moment
from ._store_options import SANITISED, Place, key_from, with_place
from ._terminal import is_terminal, line, print_error, say

if TYPE_CHECKING:
    from datetime import datetime

    from ..conversation import Conversation
    from ..formats import Loaded, PortableConversation
    from ..formats._atomic_file import OnlyWritten
    from ..keys import Key
    from ..store import Store

FORMATS = (  # the writable ones
    *("chatml", "cpeconvo", "cpeconvo_first", "gtb", "html", "jsonl", "markdown", "openai", "sharegpt", "snapshot"),
)
_STREAMED = ("chatml", "html", "jsonl", "markdown", "openai", "sharegpt", "snapshot")
_MOST = 20  # notes to print for one file
STDIN = "-"
_FEW = 3  # changed ids to print for one file
_WIDE = 100  # characters of a foreign id
_LARGE = 1 << 28  # bytes of a file whose lines are not counted beforehand
_THREADS = ("chatml", "html", "markdown", "openai", "sharegpt", "snapshot")
_TRAINING = ("chatml", "openai", "sharegpt")
_REDACTED = ("html", "jsonl", "markdown")


# -- out


@click.command(short_help="Write conversations to a file, or to standard output.")
@click.argument("ids", metavar="[ID]...", nargs=-1, shell_complete=complete_ids)
@click.option("--all", "everything", is_flag=True, help="All conversations of the workspace.")
@click.option(
    "--format", type=click.Choice(FORMATS), help="The format to write.  [default: by the name of FILE; else jsonl]"
)
@click.option("-o", "--output", metavar="FILE", help="To a new file, readable by you alone; nothing is overwritten.")
@click.option(
    "--branch",
    metavar="WHICH",
    help="For training, a record for each: current, all (branches), or leaf:ID of a message.",
)
@click.option("--with-tools", is_flag=True, help="For training, also calls of tools and their results.")
@click.option("--with-thinking", is_flag=True, help="For training, also thoughts.")
@click.option(
    "--sanitise",
    type=click.Choice(SANITISED),
    default="secrets",
    show_default=True,
    help="What is taken out of what is exported for training.",
)
@click.option("--redact", is_flag=True, help="Take secrets and personal data out of html, markdown or jsonl.")
@click.option("--between", nargs=2, type=Moment(), metavar="FROM TO", help="With --manifest: those of that time.")
@click.option("--manifest", is_flag=True, help="With --between and -o: a folder with digests, to be checked later.")
@with_place
def export(
    place: Place,
    ids: tuple[str, ...],
    everything: bool,
    format: str | None,
    output: str | None,
    branch: str | None,
    with_tools: bool,
    with_thinking: bool,
    sanitise: str,
    redact: bool,
    between: "tuple[datetime, datetime] | None",
    manifest: bool,
) -> int:
    """Write conversations in clear: the newest of this folder, those that are named, or all.

    jsonl has everything, and comes back with import; cpeconvo is for CPE; snapshot is one thread, gtb a folder of them;
    openai is a line of messages per conversation; markdown and html are for people. The id of a message means its
    conversation, but for snapshot, openai, markdown and html the thread up to that message.

    sharegpt, chatml, and openai with --branch are for training: a record for each thread, without secrets, and without
    control tokens of chat templates. --redact makes a file to hand to somebody: texts, tool calls and notes lose
    secrets and personal data, and names of places are left out. Nothing looks into images and sound.

    --between FROM TO --manifest writes the conversations of a period, of every kind, into a new folder: from FROM on,
    and before TO. hitherto verify --bundle checks it. Those that must not leave the store stay, and are counted.
    """
    output = None if output == "-" else output
    if manifest or between:
        if not (manifest and between and output) or ids or everything or format or branch:
            raise click.UsageError("a bundle takes --between FROM TO, --manifest and -o FOLDER, and may take --redact")
        from ._bundle import write_bundle  # noqa: PLC0415  # help needs none

        return write_bundle(place, output, between, redact=redact)
    if ids and everything:
        raise click.UsageError("give IDs or --all, not both")
    if output is None and format not in (None, *_STREAMED):
        raise click.UsageError(f"{format} cannot be written to standard output: -o names a file")
    from .. import formats  # noqa: PLC0415  # help needs none

    wanted = format or (formats.format_for(output) if output is not None else "jsonl")
    if branch is not None and wanted not in _TRAINING:
        raise click.UsageError(f"--branch is for {', '.join(_TRAINING)}")
    if redact and wanted not in _REDACTED:
        raise click.UsageError(f"--redact is for {', '.join(_REDACTED)}")
    if wanted in _TRAINING and (branch is not None or wanted != "openai"):
        asked = Training(branch or "current", with_tools, with_thinking, sanitise)
        with open_for_long_read(place) if everything else place.read() as store:
            asked.write(store, ids, everything, wanted, output)
        return 0
    with open_for_long_read(place) if everything else place.read() as store:
        talks = _select(store, ids, everything, wanted)
        if redact:
            _write(_redacted(store, talks), wanted, output)
            return 0
        if output is not None:
            with Meter("writing", "message") as meter:
                formats.save(talks, output, format=wanted, progress=meter)
            return 0
        with _open_stdout() as stream, Meter("writing", "message") as meter:
            progress = None if is_terminal(sys.stdout) else meter  # it would stand between the lines
            formats.save(talks, stream, format=wanted, progress=progress)
    return 0


def _select(
    store: "Store", ids: Sequence[str], everything: bool, format: str
) -> "Store | list[Conversation | PortableConversation]":
    """Find the conversations to export, before the first byte is written."""
    if everything:
        return store
    from ..formats import thread_to  # noqa: PLC0415  # help needs none

    found: dict[tuple[str, str | None], Conversation | PortableConversation] = {}
    for id in ids or (None,):
        talk = find_or_newest(store, id)
        thread = format in _THREADS and id is not None and is_message(id, talk)
        found[talk.id, talk.at if thread else None] = thread_to(talk) if thread else talk
    return list(found.values())


@dataclass(frozen=True)
class Training:
    """An export for training: a record for each thread."""

    branch: str
    tools: bool
    thinking: bool
    sanitise: str

    def write(self, store: "Store", ids: Sequence[str], everything: bool, format: str, output: str | None) -> None:
        """Write the records to a new file, or to standard output."""
        from ..formats import outgoing  # noqa: PLC0415  # help needs none
        from ..ids import show_conversation_id  # noqa: PLC0415  # as above

        leaf = self.branch.removeprefix("leaf:") if self.branch.startswith("leaf:") else None
        if leaf is not None and (ids or everything):
            raise click.UsageError("leaf:ID names a thread by itself: leave out IDs and --all")
        if leaf is None and self.branch not in ("current", "all"):
            raise click.UsageError("--branch is current, all, or leaf: and the id of a message")
        if everything:
            talks = (store.conversation(show_conversation_id(id)) for id in outgoing(store))
        else:
            talks = (find_or_newest(store, id) for id in ((leaf,) if leaf else ids or (None,)))
        _write(self._records(talks), format, output)

    def _records(self, talks: "Iterable[Conversation]") -> "Iterator[PortableConversation]":
        from ..formats import training_threads  # noqa: PLC0415  # help needs none
        from ..sanitiser import Sanitiser  # noqa: PLC0415  # as above

        rules: Sanitiser | None = None if self.sanitise == "off" else getattr(Sanitiser, self.sanitise)()
        branch = "all" if self.branch == "all" else "current"
        for talk in talks:
            yield from training_threads(talk, branch=branch, tools=self.tools, thinking=self.thinking, sanitiser=rules)


def _redacted(
    store: "Store", talks: "Store | list[Conversation | PortableConversation]"
) -> "Iterator[PortableConversation]":
    """Return the conversations without secrets and personal data, each when it is written. Raises `NotExportable`
    before the first one."""
    from ..formats import leaving  # noqa: PLC0415  # help needs none
    from ..formats.exports._redaction import redact  # noqa: PLC0415  # as above
    from ..sanitiser import Sanitiser  # noqa: PLC0415  # as above

    redactor = store.engine.make_redactor(Sanitiser.everything())
    return (redact(talk, redactor) for talk in leaving(talks))


def _write(talks: "Iterable[PortableConversation]", format: str, output: str | None) -> None:
    """Write conversations to a new file, or to standard output, one after the other."""
    from ..formats._registry import find_format  # noqa: PLC0415  # help needs none
    from ..formats._registry import path_of as checked_path  # noqa: PLC0415  # as above

    writer = cast("OnlyWritten", find_format(format))
    if output is not None:
        writer.write(talks, checked_path(output), None)
        return
    with _open_stdout() as stream:
        writer.write_to(talks, stream)


class _Guarded:
    """Standard output on a terminal: control characters are shown as signs. Each write is whole text."""

    def write(self, data: bytes) -> int:
        sys.stdout.write(escape_control_characters(data.decode(errors="replace")))
        return len(data)


@contextmanager
def _open_stdout() -> Iterator[IO[bytes]]:
    yield cast("IO[bytes]", _Guarded()) if is_terminal(sys.stdout) else sys.stdout.buffer
    sys.stdout.flush()


def open_for_long_read(place: Place) -> "Store":
    """Open the store to read it while other processes write.

    On a file a read-only store may have to start again when another process writes, so it is opened for writing if
    possible. Nothing is made, such as a misspelt workspace. A server's readers do not disturb its writers."""
    if place.is_server:
        return place.read()
    with suppress(errors.Busy):  # another process writes
        place.read().close()
    try:
        return place.open()
    except (errors.ReadOnly, errors.CannotOpen):
        return place.read()


# -- in


@click.command("import", short_help="Import conversations from files of many programs.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option("--format", metavar="NAME", help="Assume this format, instead of detecting each file's.")
@click.option("--explain", is_flag=True, help="Only report each file's format, the evidence, and the content.")
@click.option("--dry-run", is_flag=True, help="Only report what would be added.")
@click.option("--even-purged", is_flag=True, help="Also what was purged or deleted here, which stays away otherwise.")
@click.option("--key-of-file", metavar="SOURCE", help="Where the key of sealed files comes from, as with --key.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per file.")
@with_place
def import_(
    place: Place,
    files: tuple[str, ...],
    format: str | None,
    explain: bool,
    dry_run: bool,
    even_purged: bool,
    key_of_file: str | None,
    as_json: bool,
) -> int:
    """Put what files, folders and zips hold into the store. Each is recognised by its content, not by its name; - is
    standard input.

    Formats: jsonl, snapshot, gtb, cpeconvo, vpconv, openai; chatgpt, claude-code, codex, and others of other programs.

    The ids of the conversations that something was added to are printed. A message that the store has already is not
    added again. Each conversation is taken whole or not at all. If some cannot be read, the others are taken, and the
    exit code is 8; if a file cannot be read at all, the others are, and the exit code is that of the first such file.
    """
    key = None if key_of_file is None else key_from(key_of_file)
    dry = dry_run or explain
    with ExitStack() as stack:
        stdin = _copy_stdin(stack) if STDIN in files else ""
        nothing = not any(_is_known(stdin if file == STDIN else file, format) for file in files)  # no store is made
        store = stack.enter_context(_open_target(place, dry=dry or nothing, alone=explain or nothing))
        importing = _Importing(store, format, key, explain, dry, as_json, even_purged, stdin)
        try:
            codes = [importing.take(file) for file in files]
        except (KeyboardInterrupt, errors.StorageFull):
            say("the imported conversations stay; the same command goes on")
            raise
    return next((code for code in codes if code not in (0, PARTIAL)), max(codes))


def _copy_stdin(stack: ExitStack) -> str:
    """Return the path of a private copy of standard input, which is removed with the stack."""
    from ..formats._files import StreamFiles  # noqa: PLC0415  # help needs none

    files = StreamFiles(sys.stdin.buffer)
    stack.callback(files.close)
    return str(files.path)


def _is_known(file: str, format: str | None) -> bool:
    """Return True if the file exists and its format can be read."""
    from ..formats import names, sniff  # noqa: PLC0415  # help needs none

    if format is not None:
        return format in names() and os.path.exists(os.path.expanduser(file))
    try:
        sniff(file)
    except errors.HithertoError:  # its turn comes, and reports the error
        return False
    return True


def _open_target(place: Place, *, dry: bool, alone: bool) -> "Store":
    """Open the store to import into. A dry run opens it read-only, or opens an empty one in memory."""
    if not dry:
        return place.open(create=True)
    nothing = Place("memory:", "", "default", None)
    if place.is_server and not alone:
        try:
            return place.read()
        except (errors.NotFound, errors.CannotOpen) as error:
            if isinstance(error, errors.CannotOpen) and not error.missing:
                raise
    path = place.path
    if alone or path is None or not os.path.exists(path):
        return nothing.open(create=True)
    return place.read()


@dataclass(frozen=True)
class _Importing:
    """Imports files, and reports on each."""

    store: "Store"
    format: str | None
    key: "Key | None"
    explain: bool
    dry: bool
    as_json: bool
    even_purged: bool
    stdin: str  # the path of the copy of standard input

    def take(self, file: str) -> int:
        """Import one file and return its exit code."""
        from ..formats import load  # noqa: PLC0415  # help needs none

        report: Loaded | None = None
        code, failed = 0, None
        try:
            with Meter(os.path.basename(file), "message", _lines(file)) as meter:
                report = load(
                    self.stdin if file == STDIN else file,
                    self.store,
                    format=self.format,
                    key=self.key,
                    dry_run=self.dry,
                    even_purged=self.even_purged,
                    progress=meter,
                )
        except errors.PartialImport as error:
            report, code = cast("Loaded", error.report), PARTIAL
        except errors.StorageFull:
            raise  # the next file would fail, too
        except errors.HithertoError as error:
            code, failed = exit_code_of(error), str(error)
            locked = isinstance(error, errors.KeyUnavailable)
            hint = "--key-of-file says where the key of the file comes from" if locked else hint_of(error)
            print_error(str(error) if os.path.basename(file) in str(error) else f"{file}: {error}", hint)
        if self.as_json:
            print_json(self._record(file, report, failed))
        if report is not None:
            self._tell(file, report)
        return code

    def _record(self, file: str, report: "Loaded | None", failed: str | None) -> dict[str, object]:
        def of(name: str) -> object:
            return getattr(report, name) if report is not None else None

        return {
            "file": os.fsencode(file).decode(errors="replace"),
            "format": of("format"),
            "found": of("found"),
            "new": of("new"),
            "unchanged": of("unchanged"),
            "messages": of("messages"),
            "known": of("known"),
            "amended": of("amended"),
            "purged": of("purged"),
            "unknown": of("unknown") or {},
            "bookkeeping": of("bookkeeping") or {},
            "waiting": [{"name": w.name, "reason": w.reason} for w in (report.waiting if report else ())],
            "leaves": of("leaves"),
            "subagents": of("subagents"),
            "skipped": of("skipped"),
            "conversations": [talk.id for talk in report or ()],
            "renamed": of("renamed") or {},
            "ids": of("ids") or {},
            "notes": of("notes") or (),
            "unreadable": [{"name": u.name, "reason": u.reason} for u in (report.unreadable if report else ())],
            "dry_run": self.dry,
            "error": failed,
        }

    def _tell(self, file: str, report: "Loaded") -> None:
        """Report in words. Standard output gets the explanation, or the ids of the imported conversations."""
        if not self.as_json:
            for talk in report:
                click.echo(talk.id)
            if self.explain:
                found = f"{count_of(report.new, 'conversation')}, {count_of(report.messages, 'message')}"
                click.echo(escape_control_characters(f"{file}: {report.format} ({report.found}): {found}"))
        if not self.explain:
            say(f"{file}: {summarise(report)}")
        if not self.as_json:
            self._tell_ids(file, report)
        for said in details(report):
            say(f"{file}: {said}")
        for note in report.notes[:_MOST]:
            say(f"{file}: {note}")
        print_unreadable(report, f"{file}: ")

    def _tell_ids(self, file: str, report: "Loaded") -> None:
        """Name the ids that were changed on import, the first few of each kind."""
        added = {talk.id for talk in report}
        renamed = {theirs: ours for theirs, ours in report.renamed.items() if ours in added}
        for what, ids in (("conversation", renamed), ("message", report.ids if added else {})):
            for theirs, ours in islice(ids.items(), _FEW):
                talk, _, id = theirs.rpartition("/") if what == "message" else ("", "", theirs)
                where = f" of {line(talk, _WIDE)}" if talk else ""
                say(f"{file}: {what} {line(id, _WIDE)}{where} is {ours} here")
            if len(ids) > _FEW:
                say(f"{file}: and {count_of(len(ids) - _FEW, what)} more; --json names all of them")


def print_unreadable(report: "Loaded", where: str = "") -> None:
    """Print the parts of a file that could not be read, with the reasons."""
    for one in report.unreadable[:_MOST]:
        print_error(f"{where}{one.name}: {one.reason}")
    if len(report.unreadable) > _MOST:
        print_error(f"{where}and {count_of(len(report.unreadable) - _MOST, 'part')} more cannot be read")


def summarise(report: "Loaded") -> str:
    count = report.new if report.dry else len(report.added)
    unchanged = f"{report.unchanged} unchanged"
    if not report.messages and not count:
        return f"nothing {'would be' if report.dry else 'was'} added, {unchanged}"
    would = "would be added" if report.dry else "added"
    return f"{count_of(count, 'conversation')}, {count_of(report.messages, 'message')} {would}, {unchanged}"


def details(report: "Loaded", *, branches: bool = True) -> Iterator[str]:
    """Yield what else there is to say of files of other programs, each as one line."""
    if branches and (report.leaves > len(report.added) or report.subagents):
        yield f"{count_of(report.leaves, 'end')} of branches, {count_of(report.subagents, 'sub-agent')}"
    if report.amended:
        yield f"{count_of(report.amended, 'message')} had grown"
    if report.purged:
        gone = count_of(report.purged, "conversation")
        yield f"{gone} purged or deleted here stay away; --even-purged brings them back"
    if report.unknown:
        kinds = ", ".join(f"{line(kind, _WIDE)} ({count:,})" for kind, count in sorted(report.unknown.items())[:_MOST])
        yield f"records of unknown types are kept beside the conversations: {kinds}"
    if report.bookkeeping:
        yield f"{count_of(sum(report.bookkeeping.values()), 'record')} beside the messages"
    for one in report.waiting[:_MOST]:
        yield f"{line(one.name, _WIDE)}: {one.reason}; the next import takes it"
    if report.skipped:
        yield f"{count_of(report.skipped, 'file')} in no format that is known"


def _lines(file: str) -> int:
    """Return about how many messages a file of lines has, for the progress. Return 0 for any other file, and for a
    large one, which takes long to read."""
    with suppress(OSError, ValueError):
        path = os.path.expanduser(file)
        about = os.stat(path)
        if stat.S_ISREG(about.st_mode) and about.st_size < _LARGE:  # opening a pipe would wait for its other end
            with open(path, "rb") as lines:
                if lines.read(1) == b"{":
                    return sum(piece.count(b"\n") for piece in iter(lambda: lines.read(1 << 20), b""))
    return 0
