"""Lines of JSON as OpenAI's chat completions take them: for training, for evaluation, for other programs.

    {"messages": [{"role": "system", "content": "…"}, {"role": "user", "content": "…"}, …], "tools": […]}

One line is one conversation: the thread that ends at its head, with the system prompt first. What was said by models of
other providers is put into OpenAI's words on the way, and what a provider would refuse is mended, as when one resumes.
It is written, not read.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import msgspec

from ..dialects import dialect
from ..dialects._repair import repair
from ..errors import HithertoError, InvalidArgument
from ..keys import Key
from ..snapshots import Unreadable
from ._sections import setup_of, thread
from ._shape import Portable, Source, not_read
from ._writing import write_plain

name = "openai"
suffixes = (".openai.jsonl",)
writes, reads = True, False


def recognises(source: Source) -> str | None:  # noqa: ARG001  # the shape of a format
    return None


def read(path: Path, key: Key | None) -> Iterator[Portable | Unreadable]:  # noqa: ARG001  # as above
    raise not_read(name)


def write(talks: Iterable[Portable], path: Path, key: Key | None) -> int:
    return write_plain(write_to, talks, path, key)


def write_to(talks: Iterable[Portable], file: IO[bytes]) -> int:
    count = 0
    for talk in talks:
        file.write(msgspec.json.encode(_request(talk)) + b"\n")
        count += 1
    return count


def _request(talk: Portable) -> dict[str, object]:
    spoken = dialect("openai-chat")
    try:
        history = spoken.history(repair([said.message for said in thread(talk)], spoken).messages)
        found = spoken.request(history, setup_of(talk), {})
    except HithertoError as error:
        raise InvalidArgument(f"conversation {talk.id:.40} cannot be told in OpenAI's words: {error}") from None
    return {what: found[what] for what in ("messages", "tools") if what in found}
