"""Conversations for tests of a store, and trouble to put them through.

`interrupt_call` and `interrupt_commit` let another writer act at the worst moment; `visible` collects everything that a
reader can see of a conversation.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ...attachment import CHUNK
from ...backend import (
    Backend,
    ConversationRow,
)
from ...conversation import Conversation
from ...model import Block, Message, Saved, Usage
from ...store import Store


def texts(messages: list[Saved]) -> list[str]:
    return [message.text for message in messages]


def fill(talk: Conversation, turns: int) -> list[Saved]:
    """So many turns: a question and an answer each."""
    return [m for n in range(turns) for m in talk.extend([Message.user(f"q{n}"), Message.assistant(f"a{n}")])]


def id_bytes(talk: Conversation) -> bytes:
    return bytes.fromhex(talk.id.replace("-", ""))


def row_of(backend: Backend, talk: Conversation) -> ConversationRow:
    return backend.lookup(ids=[id_bytes(talk)])[0]


def noise(size: int) -> bytes:
    """Bytes that do not get smaller, the same ones for the same size."""
    return random.Random(size).randbytes(size)


def pack_all(store: Store) -> None:
    """Pack all there is, however contrary the backend."""
    for _ in range(100):
        store.maintain()
        if not any(store.backend.loose(full=full, limit=1) for full in (True, False)):
            return
    raise AssertionError("a store that cannot be packed")


def grown(store: Store) -> Conversation:
    """A conversation with a bit of everything, over several runs."""
    talk = store.start(title="T", system_prompt="one", metadata={"a": "b"})
    path = fill(talk, 25)
    talk.configure(system_prompt="two", model="m")
    talk.extend([Message.user(f"k{n}", key=f"k{n}", label="keyed") for n in range(30)])
    talk.append(Message(role="event", blocks=[Block.text("something happened")]))
    talk.append(Message.assistant("x" * 3000, usage=Usage(10, 20), raw={"a": [1, None]}, extra={"e": 0.5}))
    fork = talk.fork(at=path[20])
    fill(fork, 18)
    fork.label("here")
    fill(talk.subagent("review", "r1", call=path[3]), 17)
    talk.compact("gist")
    fill(talk, 17)
    return talk


def visible(store: Store, talk: Conversation) -> list[object]:
    """All that anybody can see of a conversation."""
    talk = store.conversation(talk.id)
    info = store.conversations().items[0]
    found: list[object] = [talk.thread(), talk.thread(full=True), talk.branches(), talk.usage(), talk.setup]
    found += [talk.at, talk.head, talk.count, talk.title, talk.metadata, talk.active_at, talk.created_at]
    found += [info.id, info.count, info.size, info.head, info.active_at, info.approximate_tokens]
    everything = list(store.messages(newest_first=False))
    found += [everything, list(store.messages()), list(store.messages(conversation=talk)), store.get(everything)]
    found += [list(store.messages(label=label)) for label in ("keyed", "here", "subagent:review:r1", "compaction")]
    found += [list(store.messages(subagent="review"))]
    for message in everything[::9]:
        at = store.conversation(message.id)
        found += [store.message(message), at.at, at.thread(full=True), at.setup, store.thread(message)]
    stats = store.stats()
    return [*found, stats.messages, stats.content_bytes, stats.newest, store.verify()]


def interrupt_call(
    call: Callable[..., Any], meanwhile: Callable[[], object], *, before: bool = False
) -> Callable[..., Any]:
    """The same call, and the first time something else happens right after it, or right before."""
    rest = [meanwhile]

    def run(*args: Any, **keywords: Any) -> Any:
        other = rest.pop() if rest else None
        if other is not None and before:
            other()
        result = call(*args, **keywords)
        if other is not None and not before:
            other()
        return result

    return run


def interrupt_commit(patch: pytest.MonkeyPatch, backend: Backend, meanwhile: Callable[[], object]) -> None:
    """Let something happen right before the next commit, by whichever verb it comes."""
    rest = [meanwhile]

    def first(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if rest:
                rest.pop()()
            return call(*args)

        return run

    for verb in ("commit", "commit_queued") if backend.info.can_queue else ("commit",):
        patch.setattr(backend, verb, first(getattr(backend, verb)))


class Changing:
    """Content that is another one when it is read for the second time."""

    def __init__(self, first: bytes, second: bytes) -> None:
        self._contents = first, second
        self.reads = 0

    def __call__(self) -> Iterator[bytes]:
        self.reads += 1
        content = self._contents[min(self.reads, 2) - 1]
        return iter([content[start : start + CHUNK] for start in range(0, len(content), CHUNK)])
