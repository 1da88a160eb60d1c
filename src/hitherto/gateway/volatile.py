"""Leave out of a request what differs from run to run: it is the same request tomorrow, and in another folder.

A request is what was said in it: words, calls and their results in their order, and the prompts around them. Programs
add what no answer depends on: ids, dates, the time that a command took, the folder of the run and the home. Such
passages are left out on both sides before they are compared. A folder is known by the passage that names it, and is
then the same word wherever it stands.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from ..dialects import Raw
from ..errors import InvalidArgument

__all__ = ["VOLATILE", "Volatile"]

VOLATILE = (
    # Claude Code
    r"Today's date is [0-9-]+",
    r"x-anthropic-billing-header:[^\n]*",
    r"(?<=/\.claude/projects/)[^/\s`]+",
    r"(?m:^ ?- (?:Is a git repository|Platform|OS Version|Shell): [^\n]*)",
    # Codex
    r"<(?:current_date|timezone|shell)>[^<]*</(?:current_date|timezone|shell)>",
    r"(?m:^Chunk ID: [0-9a-f]+$)",
    r"(?m:^Wall time: [0-9.]+ seconds$)",
    # the home, before a program's own folder
    r"[^\s`'\"<>(=]*(?=/\.(?:claude|codex|gemini)\b)",
)
_UUID = r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
_FOLDERS = re.compile(r"<cwd>([^<]+)</cwd>|(?:Primary w|W)orking directory: ([^\n]+)")
_FIELDS = ("id", "internal_chat_message_metadata_passthrough")  # of an entry; the program gives it a new one each time
_PLACE = "(the folder)"


class Volatile:
    """Removes passages from texts: `VOLATILE`, ids, and the expressions of the caller."""

    def __init__(self, ignore: Iterable[str] = ()) -> None:
        try:
            self._pattern = re.compile("|".join(f"(?:{one})" for one in (*VOLATILE, _UUID, *ignore)))
        except re.error as error:
            raise InvalidArgument(f"what is to be ignored is no regular expression: {error}") from None

    def strip(self, text: str, folders: Iterable[str] = ()) -> str:
        """Return a text without what differs."""
        for folder in folders:
            text = put(text, folder, _PLACE)
        return self._pattern.sub("", text)

    def strip_entry(self, raw: Raw, folders: Iterable[str] = ()) -> Raw:
        """Return an entry of a history without what differs."""
        kept = {name: value for name, value in raw.items() if name not in _FIELDS}
        found: Raw = map_texts(kept, lambda text: self.strip(text, folders))
        return found


def find_folders(texts: Iterable[str]) -> list[str]:
    """Return the folders that these texts say they work in, the longest first."""
    found = {(one or other).strip() for text in texts for one, other in _FOLDERS.findall(text)}
    return sorted((folder for folder in found if len(folder) > 1), key=len, reverse=True)


def put(text: str, folder: str, other: str) -> str:
    """Return a text with another folder in the place of this one, and of all below it."""
    return re.sub(rf"(?<![\w.-]){re.escape(folder)}(?![\w-])", lambda _: other, text) if folder in text else text


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value of JSON with every text in it changed. Names of fields stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: map_texts(item, change) for name, item in value.items()}
    return [map_texts(item, change) for item in value] if isinstance(value, list) else value


def texts_of(value: Any) -> Iterable[str]:
    """Give every text in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_of(item)
