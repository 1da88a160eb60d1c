"""The known formats: their names, and which one a file is in.

A file is recognised by its content, not by its name. The formats are asked in the order of `OURS`; one that was
registered is asked first.
"""

import os
import stat
from importlib import import_module
from pathlib import Path
from typing import cast

from msgspec import Struct

from ..errors import Hint, HithertoError, InvalidArgument
from ..snapshots import Unreadable
from ._atomic_file import of_files
from ._files import Files, is_zip, open_files
from ._sqlite_file import MAGIC, tables_in
from ._types import HEAD, Format, Source

# The folder of each format. They are asked in this order; the last four are only written.
OURS = {
    **dict.fromkeys(("jsonl", "cpeconvo", "cpeconvo_first", "vpconv", "gtb"), "own"),
    **dict.fromkeys(("chatgpt", "claude-code", "claude.ai", "codex", "gemini-cli", "langchain"), "importers"),
    **dict.fromkeys(("langgraph", "librechat", "llm", "open-webui", "openai-agents", "pydantic-ai"), "importers"),
    **dict.fromkeys(("adk", "strands", "openai"), "importers"),
    "snapshot": "own",
    **dict.fromkeys(("markdown", "html", "sharegpt", "chatml"), "exports"),
}
_MODULES = str.maketrans("-.", "__")  # in the names of formats
_added: dict[str, Format] = {}

PathLike = str | os.PathLike[str]


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
    return sorted(format.name for format in all_formats() if format.writes or not writable)


def sniff(path: PathLike) -> tuple[str, str]:
    """Return the format of a file or directory, and the evidence for it in words. Raises `InvalidArgument` if the
    format is unknown. A folder or a zip may hold several: then it is the first of them."""
    where = path_of(path)
    source = source_of(where)
    found = recognise(source)
    if found is not None:
        return found[0].name, found[1]
    if source.is_directory or is_zip(where):
        files = open_files(where)
        try:
            for group in sort_by_format(files)[0]:
                return group.format.name, group.found
        finally:
            files.close()
    raise unknown_format(source)


class Group(Struct, frozen=True):
    """The files of one format in a folder or a zip."""

    format: Format
    found: str  # what in the first of them shows it
    names: list[str]
    is_whole: bool = False  # the folder or file as a whole is in this format


def recognise(source: Source) -> tuple[Format, str] | None:
    """Return the format of a file, with the evidence, or None."""
    for format in all_formats():
        found = format.recognises(source)
        if found is not None:
            return format, found
    return None


def sort_by_format(files: Files) -> tuple[list[Group], int, list[Unreadable]]:
    """Return the files of a folder or a zip by their formats, how many have none that is known, and those that cannot
    be read."""
    groups: dict[str, Group] = {}
    unreadable: list[Unreadable] = []
    skipped = 0
    for name in files.names():
        try:
            found = recognise(files.source(name))
        except HithertoError as error:
            unreadable.append(Unreadable(files.label(name), str(error)))
            continue
        if found is None:
            skipped += 1
        else:
            groups.setdefault(found[0].name, Group(*found, [])).names.append(name)
    return list(groups.values()), skipped, unreadable


def unknown_format(source: Source) -> InvalidArgument:
    """Return the error for a file or a folder in no known format."""
    return InvalidArgument(f"{source.path.name!r:.100} is in no format that is known{_why(source)}", hint=_hint(source))


def _why(source: Source) -> str:
    if source.is_directory:
        return "" if any(source.path.iterdir()) else ": it is empty"
    return "" if source.head else ": it is empty"


def _hint(source: Source) -> str:
    if source.head.startswith(b"SQLite format 3"):
        return Hint("format-is-a-store", "a store is opened with hitherto.open(path), and saved from there")
    if source.head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "it is text in UTF-16: save it in UTF-8"
    text = "hitherto.formats.names() lists those that are known; load(…, format=…) takes one of them for granted"
    return Hint("unknown-format", text)


def all_formats() -> list[Format]:
    return [*_added.values(), *(find_format(name) for name in OURS if name not in _added)]


def find_format(name: str) -> Format:
    if not isinstance(name, str):
        raise InvalidArgument(f"a format is given by its name, not by a {type(name).__name__}")
    if name in _added:
        return _added[name]
    if name not in OURS:
        raise InvalidArgument(f"no such format: {name!r:.40}", hint=f"known are {', '.join(names())}")
    module = import_module(f"{__package__}.{OURS[name]}.{name.translate(_MODULES)}")
    return cast("Format", getattr(module, "FORMAT", module))


def source_of(path: Path) -> Source:
    try:
        kind = path.stat().st_mode
        if stat.S_ISDIR(kind):
            return Source(path, True, b"")
        if not stat.S_ISREG(kind):  # a pipe would keep us waiting, a device has no end
            hint = "load takes an open binary file as well; hitherto import - reads standard input"
            raise InvalidArgument(f"{path.name!r:.100} is neither a file nor a directory", hint=hint)
        with open(path, "rb") as file:
            head = file.read(HEAD)
        return Source(path, False, head, tables_in(path) if head.startswith(MAGIC) else frozenset())
    except OSError as error:
        raise of_files(error, path) from None


def path_of(path: PathLike) -> Path:
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
