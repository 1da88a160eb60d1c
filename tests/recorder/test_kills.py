"""kill -9 at any point of a turn: nothing that was acknowledged is lost, and the conversation goes on.

Real processes, really killed, at points that the provider or the child itself reports: nothing here waits by the clock.
Requirements: C10, C11, D4.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple, TextIO

import pytest

import hitherto
from hitherto import Store
from hitherto.chat import Client, Config, new_client

from ..support.forked import Forked, Forker
from ..support.provider import Asked, Json, Provider, Reply, chat_answer, chat_events, provider

TWO_CALLS = chat_answer(None, calls=[("c1", "look", {}), ("c2", "look", {})])


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    """So that each child need not import everything again."""
    made = Forker(os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    yield made
    made.close()


class Talker(NamedTuple):
    process: Forked
    said: TextIO

    def wait(self) -> None:
        self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


Child = Callable[..., AbstractContextManager[Talker]]


@pytest.fixture
def child(forker: Forker) -> Child:
    """Makes a child, and kills it at the end."""

    @contextmanager
    def child(how: str, url: str, database: Path, tools: int = 0) -> Iterator[Talker]:
        arguments, here = [how, url, str(database), str(tools)], Path(__file__).parents[2]
        read, write = os.pipe()
        with open(read) as said, open(os.devnull, "rb") as nothing:
            streams = [nothing.fileno(), write, 2]
            process = forker.start(
                arguments, module="tests.support.chat_process", cwd=here, env=os.environ, streams=streams
            )
            os.close(write)
            talker = Talker(process, said)
            try:
                yield talker
            finally:
                talker.kill()

    return child


def line(talker: Talker) -> str:
    return talker.said.readline().strip()


def goes_on(store: Store, wanted: list[str]) -> None:
    """The conversation opens, has these roles, and can be gone on with."""
    assert store.verify().ok
    talk = store.latest()
    assert talk is not None
    assert [message.role for message in talk.thread()] == wanted

    def answer(asked: Asked) -> Json:
        calls = [call["id"] for m in asked.body["messages"] for call in m.get("tool_calls") or ()]
        results = [m["tool_call_id"] for m in asked.body["messages"] if m["role"] == "tool"]
        assert calls == results
        return chat_answer("went on")

    with provider(answer) as server:
        base = {"base_url": server.url + "/v1", "allow_insecure_base_url": True}
        client = new_client(Config("openai-compatible", "m", api_key="k", **base))  # type: ignore[arg-type]
        assert isinstance(client, Client)
        with client:
            assert hitherto.resume(client, store, talk).chat("go on") == "went on"
    assert store.conversation(talk.id).thread()[-1].text == "went on"


def test_killed_while_the_model_is_asked_the_question_is_there(child: Child, tmp_path: Path) -> None:
    def answer(asked: Asked) -> Json:
        talker.kill()
        return chat_answer("too late")

    with provider(answer) as server, child("turn", server.url, tmp_path / "c.db") as talker:
        talker.wait()
    with hitherto.open(tmp_path / "c.db") as store:
        goes_on(store, ["user"])


@pytest.mark.parametrize("finished", [0, 1])
def test_killed_inside_a_tool_the_paid_answer_and_the_results_so_far_are_there(
    finished: int, child: Child, tmp_path: Path
) -> None:
    with provider(lambda _: TWO_CALLS) as server, child("turn", server.url, tmp_path / "c.db", finished) as talker:
        for n in range(finished + 1):
            assert line(talker) == f"tool {n + 1}"
        talker.kill()
    with hitherto.open(tmp_path / "c.db") as store:
        goes_on(store, ["user", "assistant", *["tool_result"] * finished])


def test_a_recorder_that_saves_whole_turns_loses_the_paid_answer(child: Child, tmp_path: Path) -> None:
    """The negative control of the tests above."""
    with provider(lambda _: TWO_CALLS) as server, child("late", server.url, tmp_path / "c.db", 1) as talker:
        assert [line(talker), line(talker)] == ["tool 1", "tool 2"]
        talker.kill()
    with hitherto.open(tmp_path / "c.db") as store:
        assert store.latest() is None


@pytest.mark.parametrize("how", ["stream", "sdk-stream"])
def test_killed_while_the_answer_streams_what_came_is_offered(how: str, child: Child, tmp_path: Path) -> None:
    """D4: the part that came is kept beside the tree, at most 2 s old."""
    database = tmp_path / "c.db"

    def die() -> None:
        with hitherto.open(database) as store:
            talk = store.latest()
            assert talk is not None
            while not any("three" in partial.text for partial in talk.partials()):
                pass
        talker.kill()

    def answer(asked: Asked) -> Reply:
        return Reply(events=[*chat_events("one two three four five")[:4], die])

    with provider(answer) as server, child(how, server.url, database) as talker:
        talker.wait()
    with hitherto.open(database) as store:
        talk = store.latest()
        assert talk is not None
        (partial,) = talk.partials()
        assert partial.text == "one two three "
        assert partial.parent == talk.at
        goes_on(store, ["user"])
        assert talk.partials() == [partial]  # it is still offered, at its own place
        alone = talk.fork(at=partial.parent)
        alone.accept(partial)
        assert alone.thread()[-1].text == "one two three "


def test_killed_again_and_again_in_the_middle_no_acknowledged_turn_is_lost(child: Child, tmp_path: Path) -> None:
    """Each child chats as fast as it can until it is killed at a turn of chance."""
    chance = random.Random(5)
    lost = 0
    server: Provider
    with provider(lambda asked: chat_answer(f"a{len(asked.body['messages'])}")) as server:
        for round in range(10):
            database = tmp_path / f"{round}.db"
            with child("loop", server.url, database) as talker:
                lines = [line(talker) for _ in range(chance.randrange(1, 25))]
                talker.kill()
                lines += talker.said.read().split("\n")
            acknowledged = [text.strip() for text in lines if text.strip().startswith("done ") and " a" in text]
            with hitherto.open(database) as store:
                talk = store.latest()
                assert talk is not None
                thread = talk.thread()
                kept = [f"done {n} {m.text}" for n, m in enumerate(m for m in thread if m.role == "assistant")]
                lost += len(set(acknowledged) - set(kept))
                assert [m.role for m in thread] == (["user", "assistant"] * len(thread))[: len(thread)]
                assert len(list(store.messages())) == len(thread)
    assert lost == 0
