"""The documented calls, as people write them, without a cast: `make lint` checks the types, and the test runs them."""

import asyncio
from pathlib import Path

import anthropic
import httpx2
import openai
from google import genai
from google.genai import types

import hitherto

from ..support.provider import Provider, provider
from .test_recorder import speak


def through_openai(url: str, store: hitherto.Store) -> None:
    with hitherto.record(openai.OpenAI(base_url=url + "/v1", api_key="k"), store, title="Build") as sdk:
        talk = store.ensure("user-42", system_prompt="Be terse.")
        with hitherto.into(talk):
            sdk.chat.completions.create(
                model="m", messages=[*hitherto.history(talk), {"role": "user", "content": "Why?"}]
            )
        with hitherto.recording(sdk) as recording:
            sdk.responses.create(
                model="m",
                instructions=talk.system_prompt,
                input=[*hitherto.history(talk, "openai-responses"), {"role": "user", "content": "Why?"}],
            )
            assert recording.pending == 0


def through_anthropic(url: str, store: hitherto.Store) -> None:
    talk = store.start(system_prompt="Be terse.", provider="claude")
    with hitherto.resume(anthropic.Anthropic(base_url=url, api_key="k"), store, talk) as client:
        client.messages.create(
            model="m",
            max_tokens=9,
            system=talk.system_prompt,
            messages=[*hitherto.history(talk), {"role": "user", "content": "Why?"}],
        )
    assert len(talk.thread()) == 2


def through_google(url: str, store: hitherto.Store) -> None:
    talk = store.start(system_prompt="Be terse.", provider="gemini")
    client = hitherto.record(
        genai.Client(api_key="k", http_options=types.HttpOptions(base_url=url)), store, conversation=talk
    )
    client.models.generate_content(
        model="m",
        contents=[*hitherto.history(talk), types.Content(role="user", parts=[types.Part(text="Why?")])],
        config=types.GenerateContentConfig(system_instruction=talk.system_prompt),
    )
    client.close()
    assert len(talk.thread()) == 2


def through_http(url: str, store: hitherto.Store) -> None:
    with hitherto.record(httpx2.Client(), store, dialect="openai-chat") as http:
        http.post(url + "/v1/chat/completions", json={"model": "m", "messages": [{"role": "user", "content": "Hi"}]})


async def awaited(url: str, path: Path) -> None:
    async with hitherto.open_async(path) as store:
        talk = await store.ensure("user-42", system_prompt="Be terse.")
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="k") as sdk:
            hitherto.record(sdk, store)
            with hitherto.into(talk):
                await sdk.chat.completions.create(
                    model="m", messages=[*hitherto.history(talk), {"role": "user", "content": "Why?"}]
                )
            async with hitherto.recording(sdk):
                assert talk.system_prompt == "Be terse."
                assert (talk.provider, talk.model) == ("openai", "m")


def test_the_documented_calls_run_as_they_are_typed(tmp_path: Path) -> None:
    with provider(lambda asked: speak(asked, "ok")) as server, hitherto.open("memory:") as store:
        _run_all(server, store, tmp_path)
        assert store.stats().messages == 12  # the history that was sent in the words of another API is a new one there


def _run_all(server: Provider, store: hitherto.Store, path: Path) -> None:
    for run in (through_openai, through_anthropic, through_google, through_http):
        run(server.url, store)
    asyncio.run(awaited(server.url, path / "a.db"))
