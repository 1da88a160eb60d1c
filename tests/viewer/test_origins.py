"""Conversations of every origin (recorded, imported, made by an adapter) on every kind of store. Requirement: H1."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import hitherto
from hitherto import Store

from ..adapters.standins import openai_agents as standin
from ..support.provider import chat_answer, provider
from .asking import Client, follow_all_links

openai = pytest.importorskip("openai")
PROGRAM = Path(__file__).parents[1] / "data" / "programs" / "claude-code"


def record(store: Store) -> None:
    """A program talks to a model, and goes back once: a fork."""
    with provider(lambda asked: chat_answer(f"heard {asked.body['messages'][-1]['content']}")) as server:
        sdk: Any = hitherto.record(openai.OpenAI(base_url=server.url + "/v1", api_key="k"), store)
        said = [{"role": "user", "content": "recorded words"}]
        first = sdk.chat.completions.create(model="gpt-5", messages=said)
        said.append({"role": "assistant", "content": first.choices[0].message.content})
        for words in ("one way", "another way"):
            sdk.chat.completions.create(model="gpt-5", messages=[*said, {"role": "user", "content": words}])
        sdk.close()


def adapt(store: Store) -> None:
    """A framework keeps its session here."""
    from hitherto.adapters.openai_agents import Session  # the stand-in is installed first

    session = Session("user-42", store, title="Adapted")
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "read", "arguments": '{"path": "a.py"}'}
    answer = {"type": "output_text", "text": "adapted words", "annotations": []}
    items: list[Any] = [
        {"role": "user", "content": "Read it."},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "import os"},
        {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [answer]},
    ]
    asyncio.run(session.add_items(items))


@pytest.mark.parametrize("opened", ["sqlite", "sealed", "postgres", "sealed postgres"], indirect=True)
def test_conversations_of_every_origin_are_shown(opened: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = opened
    standin.install(monkeypatch)
    record(writer)
    adapt(writer)
    assert hitherto.formats.load(PROGRAM, writer).messages
    client = Client(reader)
    cards = client.get("/index.json").json()["conversations"]
    assert {card["source"] for card in cards} >= {"claude-code", None}
    by_prompt = {card["first_prompt"]: card for card in cards}
    assert by_prompt["recorded words"]["branches"] == 2
    assert by_prompt["recorded words"]["model"] == "gpt-5"
    adapted = next(card for card in cards if card["title"] == "Adapted")
    page = client.get(f"/c/{adapted['id']}").text
    assert "adapted words" in page
    assert 'class="tool' in page  # the call and its result are one card
    for words in ("recorded", "adapted"):
        hits = client.get(f"/search.json?q={words}").json()["hits"]
        assert hits
        for hit in hits:
            assert words in client.get(f"/c/{hit['conversation']}/m/{hit['message']}").text
    followed = follow_all_links(client)
    assert all(any(card["id"] in path for path in followed) for card in cards)
