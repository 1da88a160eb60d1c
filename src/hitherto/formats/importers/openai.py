"""Messages as OpenAI's APIs take them: for training, for evaluation, for other programs.

    {"messages": [{"role": "system", "content": "…"}, {"role": "user", "content": "…"}, …], "tools": […]}

Writing gives lines: one conversation each, the thread that ends at the head, with the system prompt first. Messages of
other providers are converted, and a thread that a provider would refuse is repaired, as on resuming.

Reading takes such lines, and arrays: of messages, or of such objects. The items of the Responses API and the messages
of Anthropic's are known by their content. Lists have no ids (`_message_lists`): one that has grown adds its tail, and
lines that begin with the same question and answer are branches of one conversation, as they are when a tree was
written leaf by leaf.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import IO

import msgspec
from msgspec.structs import replace

from ...dialects import dialect
from ...dialects._repair import repair
from ...errors import HithertoError, InvalidArgument, InvalidMessage
from ...keys import Key
from ...model import Setup
from ...snapshots import Unreadable
from .._atomic_file import new_file
from .._files import Files
from .._importer import Importer, decode_json, lines
from .._types import Found, PortableConversation, Source, Waiting
from ..exports._sections import setup_of, thread
from ._fields import Fields, Setups, objects, text
from ._message_lists import Entry, lists_in, read_list

_OBJECT = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"(?:messages|input)"\s*:\s*\[\s*\{')
_TOOLS = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"tools"\s*:\s*\[')
_ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*\{")
_ROLE = re.compile(rb'"role"\s*:\s*"(?:system|developer|user|assistant|tool)"')
_CHAT, _RESPONSES, _ANTHROPIC = "openai-chat", "openai-responses", "anthropic"
_PARTS = {_RESPONSES: {"input_text", "output_text", "input_image"}, _ANTHROPIC: {"tool_use", "tool_result", "thinking"}}
_SYSTEM = ("system", "developer")
_LOOKED_AT = 50  # entries that tell which API a list is for


class OpenAI(Importer):
    name = "openai"
    suffixes = (".openai.jsonl",)
    writes = True

    def write(self, talks: Iterable[PortableConversation], path: Path, key: Key | None) -> int:
        """Write a line for each conversation."""
        _refuse(key)
        with new_file(path) as file:
            return self.write_to(talks, file)

    def write_to(self, talks: Iterable[PortableConversation], file: IO[bytes]) -> int:
        """Write the same to an open file."""
        count = 0
        for talk in talks:
            file.write(msgspec.json.encode(_request(talk)) + b"\n")
            count += 1
        return count

    def recognises(self, source: Source) -> str | None:
        head = source.head
        if (_OBJECT.match(head) or _TOOLS.match(head)) and b'"role"' in head:
            return "its first line is JSON with a list of messages that have roles"
        if _ARRAY.match(head) and _ROLE.search(head) and b'"content"' in head:
            return "it is a list of messages that have roles"
        return None

    def read(self, path: Path, key: Key | None) -> Iterator[Found]:
        _refuse(key)
        yield from super().read(path, key)

    def read_files(self, files: Files, names: Sequence[str]) -> Iterator[Found]:
        for name in names:
            try:
                yield from _lines(files, name) if _is_lines(files, name) else _lists(files, name)
            except HithertoError as error:
                yield Unreadable(files.label(name), str(error))


FORMAT = OpenAI()


# -- out


def _request(talk: PortableConversation) -> dict[str, object]:
    spoken = dialect(_CHAT)
    try:
        history = spoken.history(repair([said.message for said in thread(talk)], spoken).messages)
        found = spoken.request(history, setup_of(talk), {})
    except HithertoError as error:
        raise InvalidArgument(f"conversation {talk.id:.40} cannot be told in OpenAI's words: {error}") from None
    return {what: found[what] for what in ("messages", "tools") if what in found}


def _refuse(key: Key | None) -> None:
    if key is not None:
        raise InvalidArgument("this format is in clear", hint="leave the key out; seal the file yourself")


# -- and in


def _is_lines(files: Files, name: str) -> bool:
    """Return True if the first line is a whole object: then each line is one."""
    with files.open(name) as file:
        line = b""
        while not line and (found := file.readline(1 << 27)):
            line = found.removeprefix(b"\xef\xbb\xbf").strip()
    try:
        return line.startswith(b"{") and isinstance(decode_json(line), dict)
    except InvalidMessage:
        return False


def _lines(files: Files, name: str) -> Iterator[Found]:
    for line in lines(files, name):
        if isinstance(line, Unreadable | Waiting):
            yield line
        else:
            yield from _body(line.record, f"{files.label(name)}, line {line.number}")


def _body(body: Fields, place: str) -> Iterator[Found]:
    listed = body.get("messages") if "messages" in body else body.get("input")
    if isinstance(listed, list):
        yield from _conversation(objects(listed), body, place)
    else:
        yield Unreadable(place, "it is no object with a list of messages")


def _lists(files: Files, name: str) -> Iterator[Found]:
    for found in lists_in(files, name, _is_entry):
        if isinstance(found, Unreadable):
            yield found
        else:
            place, listed, body = found
            yield from _conversation(listed, body, place)


def _is_entry(found: Fields) -> bool:
    return isinstance(found.get("role"), str) or (isinstance(found.get("type"), str) and "messages" not in found)


def _conversation(listed: Iterable[Fields | Unreadable], body: Fields, place: str) -> Iterator[Found]:
    found = iter(listed)
    first = list(islice(found, _LOOKED_AT))
    name = _dialect_of([one for one in first if isinstance(one, dict)])
    lead: list[Fields] = []
    for one in first:
        if not (isinstance(one, dict) and one.get("role") in _SYSTEM):
            break
        lead.append(one)
    setup = _setup(name, lead, body)
    problems: list[Unreadable] = []
    entries = _entries(chain(first[len(lead) :], found), name, place, problems)
    talk = PortableConversation(by_id=True, id="", metadata={"source": FORMAT.name}, setup=1)
    for part in read_list(talk, entries, Setups()):
        yield replace(part, setups=(setup,))
    yield from problems


def _entries(
    listed: Iterable[Fields | Unreadable], name: str, place: str, problems: list[Unreadable]
) -> Iterator[Entry]:
    for one in listed:
        if isinstance(one, Unreadable):
            problems.append(one)
            continue
        try:
            message = dialect(name).parse(one)
        except InvalidMessage as error:
            problems.append(Unreadable(place, str(error)))
            continue
        yield Entry(replace(message, extra={**(message.extra or {}), "dialect": name}), setup=1)


def _dialect_of(listed: Sequence[Fields]) -> str:
    """Return the dialect of a list: what only one API says decides."""
    kinds = {text(part.get("type")) for one in listed for part in objects(one.get("content"))}
    if kinds & _PARTS[_RESPONSES] or any("role" not in one and "type" in one for one in listed):
        return _RESPONSES
    return _ANTHROPIC if kinds & _PARTS[_ANTHROPIC] else _CHAT


def _setup(name: str, lead: Sequence[Fields], body: Fields) -> Setup:
    """Return the system prompt, the model and the tools of a list."""
    where = "input" if name == _RESPONSES else "messages"
    try:
        return dialect(name).parse_request({**body, where: list(lead)}).setup
    except InvalidMessage:
        return Setup()
