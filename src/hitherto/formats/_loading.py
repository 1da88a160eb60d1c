"""Loading: from a path or a stream to the conversations in a store, and the report.

A file is read by its format. In a folder or a zip each file is recognised by itself, and all files of one format are
read together: programs spread a conversation over several files.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from ..errors import Closed, HithertoError, PartialImport, StorageError
from ..keys import Key
from ..snapshots import Unreadable
from ..store import Store
from ._by_identity import IdentityImport
from ._files import Files, StreamFiles, is_zip, open_files
from ._importer import Importer
from ._importing import admit, make_plan
from ._registry import Group, find_format, recognise, sort_by_format, source_of, unknown_format
from ._report import Loaded, Summary
from ._types import Format, Found, PortableConversation, Waiting

Progress = Callable[[int], None]


def load_files(
    store: Store,
    where: Path | IO[bytes],
    *,
    key: Key | None,
    format: str | None,
    dry: bool,
    even_purged: bool,
    progress: Progress | None,
) -> Loaded:
    """Import what is at a path or in a stream."""
    files = open_files(where) if isinstance(where, Path) else StreamFiles(where)
    try:
        groups, skipped, unreadable = _groups(files, where, format)
        name = ", ".join(group.format.name for group in groups)
        sum_up = Summary(name, groups[0].found, dry, skipped=skipped)
        sum_up.unreadable += unreadable
        for group in groups:
            import_into(store, _read(files, group, key), sum_up, group.format.name, progress, even_purged=even_purged)
    finally:
        files.close()
    return finished(sum_up)


def _groups(files: Files, where: Path | IO[bytes], format: str | None) -> tuple[list[Group], int, list[Unreadable]]:
    """Return the files by their formats."""
    if format is not None:
        return [Group(find_format(format), "it was given", list(files.names()), is_whole=True)], 0, []
    if not isinstance(where, Path):
        where = files.root / "stdin"
    source = source_of(where)
    found = recognise(source)
    if found is not None:
        return [Group(*found, list(files.names()), is_whole=True)], 0, []
    groups, skipped, unreadable = sort_by_format(files) if source.is_directory or is_zip(where) else ([], 0, [])
    if not groups:
        raise unknown_format(source)
    return groups, skipped, unreadable


def _read(files: Files, group: Group, key: Key | None) -> Iterator[Found]:
    """Yield what is in the files of one format."""
    reader: object = group.format
    if isinstance(reader, Importer):
        yield from reader.read_files(files, group.names)
    elif files.is_one or group.is_whole:
        yield from group.format.read(files.path, key)
    else:
        for name in group.names:
            yield from _read_one(files, name, group.format, key)


def _read_one(files: Files, name: str, format: Format, key: Key | None) -> Iterator[Found]:
    """Yield what is in one file of several. An error of it does not hide the others."""
    try:
        with files.local(name) as path:
            yield from format.read(path, key)
    except StorageError:
        raise
    except HithertoError as error:
        yield Unreadable(files.label(name), str(error))


def import_into(
    store: Store,
    found: Iterator[Found],
    sum_up: Summary,
    format: str,
    progress: Progress | None,
    *,
    even_purged: bool = False,
) -> None:
    """Import these conversations, and add them to the report."""
    by_identity = IdentityImport(store, format, dry=sum_up.dry, even_purged=even_purged)
    try:
        for one in _each(found, sum_up):
            _take(store, one, sum_up, format, by_identity, even_purged=even_purged)
            if progress is not None:
                progress(sum_up.seen)
    finally:
        getattr(found, "close", lambda: None)()  # a reader may have temporary files


def finished(sum_up: Summary) -> Loaded:
    """Return the report. Raises `PartialImport` if a part was unreadable."""
    report = sum_up.report()
    if report.unreadable:
        more = f" and {len(report.unreadable) - 1} more" if len(report.unreadable) > 1 else ""
        first = report.unreadable[0]
        raise PartialImport(f"not everything could be read: {first.name}: {first.reason}{more}", report)
    return report


def _take(
    store: Store,
    one: PortableConversation,
    sum_up: Summary,
    format: str,
    by_identity: IdentityImport,
    *,
    even_purged: bool,
) -> None:
    try:
        if one.by_id:
            sum_up.take_merged(one, by_identity.take(one))
        else:
            take = make_plan if sum_up.dry else admit
            sum_up.take(one, take(store, one, format, even_purged=even_purged))
    except (StorageError, Closed):
        raise
    except HithertoError as error:
        sum_up.unreadable.append(Unreadable(f"conversation {one.id:.40}", str(error)))


def _each(found: Iterator[Found], sum_up: Summary) -> Iterator[PortableConversation]:
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
        elif isinstance(one, Waiting):
            sum_up.waiting.append(one)
        else:
            yield one
