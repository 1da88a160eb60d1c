"""Answer from a kept conversation in the place of a provider: without a network, and without a bill.

A request is compared as the recorder compares histories: every message of it has to be in the conversation, one below
the other, and its system prompt the one that was in force there. Then the answer that was given there is sent; of
several answers to the same request, one after the other. Any other request misses: the program gets an error that says
where it differs first, and the miss is reported.

Passages that differ from run to run (ids, dates, folders) are left out on both sides; `volatile` has them. In
an answer the folder of the kept run is replaced by that of the request, so that a call that was kept works here, too.
"""

import json
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from ..conversation import Conversation
from ..dialects import Dialect, ParsedRequest
from ..dialects import dialect as find_dialect
from ..dialects._lossless import own_raw
from ..errors import HithertoError
from ..listing import MessageListing, scan
from ..model import Message, Saved
from ..recorder._history_match import Tree, steps
from ..recorder._responses import decode_request
from ..recorder._sdk import dialect_of_path
from .answers import Body, write_answer
from .decoding import CannotDecode, decode
from .passing import Receive, Scope, Send, refuse
from .volatile import Volatile, find_folders, map_texts, put, texts_of

__all__ = ["Replay", "Replaying"]

_CONTEXT = 60  # characters that are shown around a difference


class Miss(Exception):
    """A request that was not kept. Its text says where it differs."""


class Replay:
    """The answers of one conversation, all branches, sub-agents and side calls included."""

    def __init__(self, talk: Conversation, *, ignore: Iterable[str] = ()) -> None:
        self._talk = talk
        self._volatile = Volatile(ignore)
        self._messages: dict[str, Saved] = {}
        self._below: dict[str | None, list[Saved]] = {}
        rows = scan(talk.engine.backend, talk.state.id, newest_first=False)
        for message in MessageListing(talk.engine, rows, ""):
            self._messages[message.id] = message
            self._below.setdefault(message.parent, []).append(message)
        self._folders = find_folders(
            text for one in self._messages.values() for text in (one.text, *texts_of(one.raw))
        ) or find_folders([talk.setup.system_prompt])
        self._lock = threading.Lock()
        self._trees: dict[str, Tree] = {}
        self._served: dict[str, int] = {}  # how often the answers to a question were served
        self.misses: list[str] = []

    def answer(self, path: str, data: bytes) -> Body:
        """Return the answer to a request. Raises `Miss` if it was not kept, and remembers that."""
        try:
            return self._answer(path, data)
        except (Miss, HithertoError) as error:
            miss = f"{path}: {error}"
            with self._lock:
                if miss not in self.misses:  # programs try again
                    self.misses.append(miss)
            raise Miss(str(error)) from None

    def _answer(self, path: str, data: bytes) -> Body:
        name = dialect_of_path(path)
        if name is None:
            raise Miss("only chats are replayed")
        body = decode_request(data)
        spoken = find_dialect(name)
        request = spoken.parse_request(body)
        folders = find_folders(texts_of(body))
        with self._lock:
            question = self._find_question(spoken, request, folders)
            answer = self._choose(question)
        raws = [own_raw(message, name) or raw for message in answer for raw in (spoken.build(message).raws or [{}])[:1]]
        if len(folders) == len(self._folders) == 1:
            raws = map_texts(raws, lambda text: put(text, self._folders[0], folders[0]))
        return write_answer(name, answer, raws, body, path)

    # -- finding the question

    def _find_question(self, spoken: Dialect, request: ParsedRequest, folders: Sequence[str]) -> str:
        """The last message of a request in the conversation."""
        asked = [self._clean(spoken, message, folders) for message in request.messages]
        history = steps(spoken, asked)
        tree = self._tree(spoken)
        found = tree.follow(history)
        if found.count < len(history) or found.at is None:
            raise Miss(self._describe_difference(spoken, asked, found.count, found.at))
        kept = self._volatile.strip(self._talk.fork(at=found.at).setup.system_prompt, self._folders)
        prompt = self._volatile.strip(request.setup.system_prompt, folders)
        if kept != prompt:
            raise Miss(f"the system prompt differs: {_compare(kept, prompt)}")
        if not self._answers_to(found.at):
            raise Miss("the request was kept, but no answer to it")
        return found.at

    def _tree(self, spoken: Dialect) -> Tree:
        if spoken.name not in self._trees:
            tree = self._trees[spoken.name] = Tree(spoken)
            for message in self._messages.values():
                tree.add(self._clean(spoken, message, self._folders))
        return self._trees[spoken.name]

    def _clean(self, spoken: Dialect, message: Any, folders: Sequence[str]) -> Any:
        """A message without what differs from run to run, for comparing."""
        raw = own_raw(message, spoken.name)
        return message if raw is None else replace(message, raw=self._volatile.strip_entry(raw, folders), extra=None)

    def _describe_difference(self, spoken: Dialect, asked: Sequence[Message], count: int, at: str | None) -> str:
        one = asked[count] if count < len(asked) else Message("", ())
        where = f"message {count + 1} of {len(asked)} ({one.role}) was not kept"
        expected = [
            self._clean(spoken, other, self._folders) for other in self._below.get(at, ()) if other.role == one.role
        ]
        if not expected:
            return f"{where}: nothing of that role follows there; asked: {_shorten(one.text)}"
        return f"{where}: {_compare_messages(spoken, expected[0], one)}"

    # -- choosing the answer

    def _answers_to(self, question: str) -> list[Saved]:
        return [one for one in self._below.get(question, ()) if one.role == "assistant"]

    def _choose(self, question: str) -> Sequence[Saved]:
        """The next answer to a question, whose items may be several messages."""
        answers = self._answers_to(question)
        turn = self._served.get(question, 0)
        self._served[question] = turn + 1
        found = [answers[min(turn, len(answers) - 1)]]
        while below := [one for one in self._answers_to(found[-1].id) if _is_same_answer(found[0], one)]:
            found.append(below[0])
        return found


def _compare_messages(spoken: Dialect, kept: Message, asked: Message) -> str:
    """Two messages around their first difference: in their text, or else in anything that is compared."""
    texts = [_text(spoken, message) for message in (kept, asked)]
    if texts[0] == texts[1]:
        texts = [json.dumps(message.raw, ensure_ascii=False, sort_keys=True) for message in (kept, asked)]
    return _compare(*texts)


def _text(spoken: Dialect, message: Message) -> str:
    raw = own_raw(message, spoken.name)
    return message.text if raw is None else spoken.parse(raw).text


def _is_same_answer(first: Saved, other: Saved) -> bool:
    id = (first.extra or {}).get("response_id")
    return id is not None and (other.extra or {}).get("response_id") == id


def _compare(kept: str, asked: str) -> str:
    """Both texts around their first difference."""
    at = next((i for i, (a, b) in enumerate(zip(kept, asked, strict=False)) if a != b), min(len(kept), len(asked)))
    begin = max(0, at - _CONTEXT // 3)
    if kept == asked:
        return f"the texts are the same, and something beside them differs: {_shorten(asked)}"
    return f"kept {_shorten(kept[begin:])}, asked {_shorten(asked[begin:])} (from character {at + 1} on)"


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _CONTEXT else text[:_CONTEXT] + "…")


class Replaying:
    """The application that answers from a conversation. The first part of a path names a provider, as in a gateway."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["type"] != "http":
            return
        path = "/" + scope["raw_path"].decode("latin-1").removeprefix("/").partition("/")[2]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if "upgrade" in headers:
            await refuse(send, 426, "a replay speaks HTTP/1.1, and no WebSockets: send the request without an upgrade")
        elif scope["method"] == "POST" and path.endswith("/count_tokens"):
            await _send(send, Body("application/json", b'{"input_tokens": 0}'))
        elif scope["method"] != "POST" or dialect_of_path(path) is None:
            await refuse(send, 404, "a replay answers chats alone")
        else:
            try:
                data = decode(await _read(receive), headers.get("content-encoding", ""))
                await _send(send, self._replay.answer(path, data))
            except (Miss, CannotDecode) as error:
                await refuse(send, 400, f"replay: {error}")


async def _read(receive: Receive) -> bytes:
    pieces, more = [], True
    while more:
        message = await receive()
        pieces.append(message.get("body", b""))
        more = message.get("more_body", False)
    return b"".join(pieces)


async def _send(send: Send, body: Body) -> None:
    headers = [(b"content-type", body.content_type.encode()), (b"content-length", b"%d" % len(body.data))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body.data, "more_body": False})
