"""Lines of JSON as OpenAI's chat completions take them: for training, for evaluation, for other programs.

    {"messages": [{"role": "system", "content": "…"}, {"role": "user", "content": "…"}, …], "tools": […]}

One line is one conversation: the thread that ends at its head, with the system prompt first. What was said by models of
other providers is put into OpenAI's words on the way, and what a provider would refuse is mended, as when one resumes.
It is written, not read.
"""

from collections.abc import Iterable
from typing import IO

import msgspec

from ..dialects import dialect
from ..dialects._repair import repair
from ..errors import HithertoError, InvalidArgument
from ._sections import setup_of, thread
from ._shape import Portable
from ._writing import OnlyWritten


def write_to(talks: Iterable[Portable], file: IO[bytes]) -> int:
    count = 0
    for talk in talks:
        file.write(msgspec.json.encode(_request(talk)) + b"\n")
        count += 1
    return count


FORMAT = OnlyWritten("openai", (".openai.jsonl",), write_to)


def _request(talk: Portable) -> dict[str, object]:
    spoken = dialect("openai-chat")
    try:
        history = spoken.history(repair([said.message for said in thread(talk)], spoken).messages)
        found = spoken.request(history, setup_of(talk), {})
    except HithertoError as error:
        raise InvalidArgument(f"conversation {talk.id:.40} cannot be told in OpenAI's words: {error}") from None
    return {what: found[what] for what in ("messages", "tools") if what in found}
