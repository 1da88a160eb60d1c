"""The client of the `claude` program: against a small program that speaks its protocol and misbehaves on request, and
against the real one, with a provider on the loopback address.

Requirements: A1, A2, A9.
"""

import asyncio
import contextlib
import gc
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import hitherto
from hitherto import Block, Message
from hitherto.chat import (
    AsyncClaudeLocal,
    ClaudeLocal,
    Config,
    PersistentChatClient,
    Tool,
    _toolserver,
    new_async_client,
    new_client,
)
from hitherto.chat._toolserver import ToolCall, ToolServer
from hitherto.errors import (
    ChatError,
    InvalidAnswer,
    InvalidArgument,
    InvalidBaseURL,
    InvalidMessage,
    ProviderError,
    ToolLoopLimit,
    Unsupported,
)

ROOT = Path(__file__).resolve().parents[2]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

# Says what it was told in this conversation, and does what the last word of a prompt asks for.
STAND_IN = r"""
import json, os, subprocess, sys, time, urllib.request

def say(**event):
    sys.stdout.write(json.dumps({"parent_tool_use_id": None, **event}) + "\n")
    sys.stdout.flush()

def piece(text):
    say(type="stream_event", event={"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}})

def whole(*content, id="m", model="claude-x"):
    say(type="assistant", message={"id": id, "model": model, "content": list(content)})

def result(text, **more):
    say(type="result", **({"subtype": "success", "is_error": False, "result": text} | more))

def value(name):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None

def call(method, **params):
    server = json.load(open(value("--mcp-config")))["mcpServers"]["hitherto"]
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    with urllib.request.urlopen(urllib.request.Request(server["url"], body, server["headers"])) as answer:
        return json.load(answer)["result"]

def use(name, arguments, number=1):
    id = f"use{number}"
    whole({"type": "tool_use", "id": id, "name": f"mcp__hitherto__{name}", "input": arguments}, id=f"m{number}")
    return call("tools/call", name=name, arguments=arguments, _meta={"claudecode/toolUseId": id})

heard = []
for line in sys.stdin:
    event = json.loads(line)
    if event["type"] != "user":
        continue
    parts = event["message"]["content"]
    heard.append(" + ".join(part.get("text", part["type"]) for part in parts))
    word = heard[-1].split()[-1]
    say(type="system", subtype="init")
    if word == "crash":
        os.kill(os.getpid(), 9)
    elif word == "exit":
        sys.exit(3)
    elif word == "garbage":
        print("this is not JSON, but a secret")
        sys.stdout.flush()
    elif word == "list":
        print("[]")
        sys.stdout.flush()
    elif word == "deep":
        print("[" * 100000)
        sys.stdout.flush()
    elif word == "hang":
        time.sleep(600)
    elif word == "refuse":
        whole({"type": "text", "text": "a secret"}, model="<synthetic>")
        result("a secret", is_error=True, api_error_status=401)
    elif word == "fail":
        result(None, subtype="error_during_execution", is_error=True)
    elif word == "null":
        result(None)
    elif word == "slowly":
        piece("one ")
        assert json.loads(sys.stdin.readline())["request"]["subtype"] == "interrupt"
        result(None, subtype="error_during_execution", is_error=True)
    elif word == "ctrl-c":
        os.kill(os.getppid(), 2)
        sys.stdin.readline()
        result(None, subtype="error_during_execution", is_error=True)
    elif word == "stubbornly":
        piece("one ")
        time.sleep(600)
    elif word == "quietly":
        say(type="assistant", message={"id": "q", "content": None})
        say(type="stream_event", event=None)
        say(type="something-new", message=7)
        whole({"type": "text", "text": "in one piece"})
        result("in one piece")
    elif word == "spawn":
        result(str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid))
    elif word == "look":
        result(json.dumps({
            "arguments": sys.argv[1:], "environment": dict(os.environ), "here": os.listdir("."), "cwd": os.getcwd(),
            "system": open(value("--system-prompt-file"), encoding="utf-8").read(), "pid": os.getpid(),
        }))
    elif word == "tools":
        call("initialize", protocolVersion="2025-11-25")
        result(json.dumps(call("tools/list")["tools"]))
    elif word == "weather":
        result(json.dumps(use("weather", {"city": "Oslo"})))
    elif word == "loop":
        rounds = 0
        while "too many" not in json.dumps(use("weather", {"city": "Oslo"}, rounds)):
            rounds += 1
        sys.stdin.readline()
        result(f"{rounds} rounds")
    elif word == "how-many?":
        result(f"{rounds} rounds")
    elif "JSON schema" in heard[-1] or "Answer again" in heard[-1]:
        result(heard[0].split(" | ")[min(len(heard), 2)].split(" + ")[0])
    else:
        for text in ("I ", "heard: "):
            piece(text)
        piece("; ".join(heard))
        whole({"type": "text", "text": "I heard: " + "; ".join(heard)})
        result("I heard: " + "; ".join(heard))
"""


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    script = tmp_path_factory.mktemp("program") / "claude.py"
    script.write_text(STAND_IN, encoding="utf-8")
    return [sys.executable, str(script)]


Make = Callable[..., ClaudeLocal]


@pytest.fixture
def make(stand_in: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes clients, and closes them."""
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    made: list[ClaudeLocal] = []

    def make(tools: tuple[Tool, ...] = (), **settings: object) -> ClaudeLocal:
        settings = {"command": stand_in} | settings
        made.append(ClaudeLocal(Config(provider="claude-local", **settings)))  # type: ignore[arg-type]
        if tools:
            made[-1].set_tools(tools)
        return made[-1]

    yield make
    for client in made:
        client.close()


def weather(handler: Callable[..., object] | None) -> Tool:
    return Tool("weather", "How is the weather?", CITY, handler)


def gone(pid: int) -> bool:
    """Has that process ended? One that nobody has asked about yet counts, too."""
    for _ in range(500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def gone_now(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def pid_of(client: ClaudeLocal) -> int:
    assert client._program
    return client._program._process.pid


# -- talking


def test_the_program_remembers_while_it_lives(make: Make) -> None:
    client = make()
    assert client.chat("one") == "I heard: one"
    assert client.chat("two") == "I heard: one; two"


def test_an_answer_is_streamed_in_pieces(make: Make) -> None:
    assert list(make().stream("one")) == ["I ", "heard: ", "one"]


def test_a_program_that_does_not_send_pieces_is_heard_all_the_same(make: Make) -> None:
    client = make()
    assert list(client.stream("quietly")) == ["in one piece"]
    assert client.chat("quietly") == "in one piece"


def test_what_is_said_can_be_recorded_although_it_cannot_be_put_back(make: Make) -> None:
    with hitherto.open("memory:") as store:
        client = hitherto.record(make((weather(lambda city: f"rain in {city}"),), system_prompt="Be terse."), store)
        client.chat("one")
        client.chat("weather")
        talk = store.latest()
        assert talk is not None
        assert [(m.role, m.text) for m in talk.thread()] == [
            ("user", "one"),
            ("assistant", "I heard: one"),
            ("user", "weather"),
            ("assistant", ""),
            ("tool_result", "rain in Oslo"),
        ]
        assert (talk.provider, talk.system_prompt) == ("claude-local", "Be terse.")
        with pytest.raises(Unsupported):
            hitherto.resume(make(), store, talk)


def test_the_question_is_kept_before_the_program_is_asked(make: Make) -> None:
    with hitherto.open("memory:") as store:
        client = hitherto.record(make(), store)
        with pytest.raises(ProviderError):
            client.chat("crash")
        talk = store.latest()
        assert talk is not None
        assert [m.text for m in talk.thread()] == ["crash"]


def test_awaited_it_is_the_same(stand_in: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)

    async def main() -> None:
        client = new_async_client(Config("claude-local", command=stand_in))
        assert isinstance(client, AsyncClaudeLocal)
        assert not hasattr(client, "save")
        with hitherto.open("memory:") as store:
            async with hitherto.record(client, store):
                assert await client.chat("one") == "I heard: one"
                assert [piece async for piece in client.stream("two")] == ["I ", "heard: ", "one; two"]
            talk = store.latest()
            assert talk is not None
            assert [m.role for m in talk.thread()][:4] == ["user", "assistant", "user", "assistant"]

    asyncio.run(main())


def test_what_is_added_goes_with_the_next_prompt(make: Make) -> None:
    client = make()
    client.add("first this")
    client.add(Message.user("then this"))
    assert client.chat("now") == "I heard: first this + then this + now"
    assert client.chat("again") == "I heard: first this + then this + now; again"


def test_a_prompt_may_be_blocks(make: Make) -> None:
    picture = Block.image(b"\x89PNG", "image/png")
    assert make().chat(["look at this", picture]) == "I heard: look at this + image"
    assert make().chat(Block.text("hello")) == "I heard: hello"


def test_what_looks_like_a_command_is_something_said_all_the_same(make: Make) -> None:
    assert make().chat(["/clear", "a/b", "/cost"]) == "I heard:  /clear + a/b +  /cost"


def test_only_what_a_user_says_can_be_said(make: Make) -> None:
    client = make()
    for message in (Message.assistant("I said"), Message.tool_result("id", "found")):
        with pytest.raises(Unsupported):
            client.add(message)
    for nothing in ("", [""], Message.user("")):
        with pytest.raises(InvalidArgument):
            client.chat(nothing)
    with pytest.raises(InvalidArgument):
        client.chat(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage):
        client.chat("\ud800")
    assert client.chat("one") == "I heard: one"


def test_an_answer_that_fits_a_schema_is_read(make: Make) -> None:
    schema = {"type": "object", "required": ["a"]}
    assert make().ask('x | {"a": 1} | never', schema) == {"a": 1}
    assert make().ask('x | ```json\n{"a": 1}\n``` | never', schema) == {"a": 1}


@dataclass
class Point:
    x: int


def test_an_answer_is_read_as_a_type(make: Make) -> None:
    assert make().ask('x | {"x": 1} | never', Point) == Point(1)


def test_an_answer_that_does_not_fit_is_asked_for_once_more(make: Make) -> None:
    schema = {"type": "object", "required": ["a"]}
    assert make().ask('x | Of course! | {"a": 2}', schema) == {"a": 2}
    with pytest.raises(InvalidAnswer):
        make().ask("x | Of course! | {}", schema)


def test_it_cannot_save_and_says_so_beforehand(make: Make) -> None:
    client = make()
    assert not hasattr(client, "save")
    assert not hasattr(client, "restore")
    known: object = client
    assert not isinstance(known, PersistentChatClient)
    assert isinstance(new_client(Config(provider="claude-local", model="m")), ClaudeLocal)


def test_two_turns_at_once_are_refused(make: Make) -> None:
    client = make()
    running = client.stream("slowly")
    next(running)
    with pytest.raises(ChatError, match="running"):
        client.chat("two")
    running.close()
    assert client.chat("three") == "I heard: slowly; three"


# -- how it is started


def test_it_is_started_without_tools_settings_or_memory_of_its_own(make: Make) -> None:
    seen = json.loads(make(model="a-model", system_prompt="Be <brief>. ü").chat("look"))
    arguments = " ".join(seen["arguments"])
    for wanted in ("--print", "--no-session-persistence", "--strict-mcp-config", "--model a-model"):
        assert wanted in arguments
    for name in ("--tools", "--setting-sources"):
        assert seen["arguments"][seen["arguments"].index(name) + 1] == ""
    assert "--mcp-config" not in arguments
    assert seen["system"] == "Be <brief>. ü"
    assert "brief" not in arguments
    assert seen["cwd"] != str(Path.cwd())
    assert seen["here"] == ["system-prompt.txt"]
    assert seen["environment"]["DISABLE_AUTOUPDATER"] == "1"


def test_no_model_and_no_system_prompt_are_none(make: Make) -> None:
    seen = json.loads(make().chat("look"))
    assert "--model" not in seen["arguments"]
    assert seen["system"] == ""


def test_the_environment_is_added_to(make: Make) -> None:
    client = make(env={"OWN": "1"}, base_url="https://gateway.internal/v1", api_key="sesame", max_retries=2)
    seen = json.loads(client.chat("look"))["environment"]
    assert (seen["OWN"], seen["ANTHROPIC_API_KEY"], seen["CLAUDE_CODE_MAX_RETRIES"]) == ("1", "sesame", "2")
    assert seen["ANTHROPIC_BASE_URL"] == "https://gateway.internal/v1"
    assert seen["PATH"] == os.environ["PATH"]
    assert "sesame" not in repr(client)


def test_the_address_is_checked_wherever_it_comes_from(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for settings in ({"base_url": "http://h.com"}, {"base_url": ""}, {"env": {"ANTHROPIC_BASE_URL": "https://u:p@h"}}):
        with pytest.raises(InvalidBaseURL):
            make(**settings)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://example.com")
    with pytest.raises(InvalidBaseURL):
        make()
    make(base_url="http://127.0.0.1:9", allow_insecure_base_url=True)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "")
    make()


def test_the_host_is_logged_and_nothing_else(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hitherto"):
        make(base_url="https://gateway.internal:8443/team/sesame?key=sesame", api_key="sesame")
    assert [record.getMessage() for record in caplog.records] == ["provider claude-local at gateway.internal"]


def test_options_for_requests_are_refused_and_not_forgotten(make: Make) -> None:
    with pytest.raises(Unsupported):
        make(options={"temperature": 0})


# -- what goes wrong


def test_a_missing_program_is_named_with_what_installs_it(make: Make, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a program")
    for command in (str(tmp_path / "nothing"), "no-such-program-anywhere", str(tmp_path / "data"), [str(tmp_path)]):
        client = make(command=command)
        client.set_tools([weather(None)])
        with pytest.raises(ProviderError) as caught:
            client.chat("hello")
        assert "npm install" in (caught.value.hint or "")
        assert caught.value.provider == "claude-local"


def test_what_cannot_be_passed_to_a_program_is_refused(make: Make) -> None:
    wrong: list[dict[str, object]] = [{"command": []}, {"command": ""}, {"command": ["a", 7]}, {"command": "a\0b"}]
    wrong += [{"env": {"A": "\0"}}, {"env": {"A": 7}}, {"env": ["A"]}, {"model": "\0"}, {"system_prompt": "\ud800"}]
    for settings in wrong:
        with pytest.raises(InvalidArgument):
            make((weather(None),), **settings).chat("hello")


def test_a_program_that_is_installed_later_is_found(make: Make, tmp_path: Path, stand_in: list[str]) -> None:
    client = make(command=[str(tmp_path / "python"), stand_in[1]])
    with pytest.raises(ProviderError):
        client.chat("hello")
    (tmp_path / "python").symlink_to(sys.executable)
    assert client.chat("hello") == "I heard: hello"


@pytest.mark.parametrize(
    ("word", "said"),
    [("crash", "signal 9"), ("exit", "status 3"), ("garbage", "protocol"), ("list", "protocol"), ("deep", "protocol")],
)
def test_a_program_that_fails_ends_the_conversation_and_does_not_start_another(
    make: Make, word: str, said: str
) -> None:
    client = make()
    pid = json.loads(client.chat("look"))["pid"]
    with pytest.raises(ProviderError, match=said) as caught:
        client.chat(word)
    assert "secret" not in f"{caught.value} {caught.value.hint}"
    assert gone(pid)
    with pytest.raises(ProviderError, match="has ended") as caught:
        client.chat("do you remember?")
    assert "new client" in (caught.value.hint or "")


@pytest.mark.parametrize(("word", "status"), [("refuse", 401), ("fail", None), ("null", None)])
def test_an_error_that_the_program_reports_does_not_end_the_conversation(
    make: Make, word: str, status: int | None
) -> None:
    client = make()
    pieces = client.stream(word)
    with pytest.raises(ProviderError) as caught:
        list(pieces)
    assert caught.value.status == status
    assert "secret" not in f"{caught.value} {caught.value.hint}"
    assert client.chat("go on") == f"I heard: {word}; go on"


def test_a_program_that_is_silent_for_too_long_is_ended(make: Make) -> None:
    client = make(timeout_seconds=0.1)
    with pytest.raises(ProviderError, match=r"said nothing for 0\.1 seconds"):
        client.chat("hang")
    assert gone_now(pid_of(client))


def test_who_stops_reading_stops_the_answer(make: Make) -> None:
    client = make()
    for piece in client.stream("slowly"):
        assert piece == "one "
        break
    assert client.chat("and now") == "I heard: slowly; and now"


def test_a_program_that_does_not_stop_is_ended(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hitherto.chat._claude_local._STOP_SECONDS", 0.05)
    client = make()
    pieces = client.stream("stubbornly")
    next(pieces)
    pieces.close()
    with pytest.raises(ProviderError, match="has ended"):
        client.chat("and now")


def test_ctrl_c_stops_the_answer_and_not_the_conversation(make: Make) -> None:
    client = make()
    assert client.chat("one") == "I heard: one"
    gc.collect()  # Python drops an interrupt that meets a finaliser, as those of earlier tests
    with pytest.raises(KeyboardInterrupt):
        client.chat("ctrl-c")
    assert client.chat("two") == "I heard: one; ctrl-c; two"


# -- the end


def test_closing_ends_the_program_and_all_it_has_started(make: Make) -> None:
    client = make()
    child = int(client.chat("spawn"))
    seen = json.loads(client.chat("look"))
    assert not gone_now(child)
    client.close()
    client.close()
    assert gone(child)
    with pytest.raises(ProcessLookupError):
        os.kill(seen["pid"], 0)
    assert not Path(seen["cwd"]).exists()
    with pytest.raises(ChatError, match="closed"):
        client.chat("hello")


def test_a_with_block_closes(stand_in: list[str]) -> None:
    with ClaudeLocal(Config(provider="claude-local", command=stand_in)) as client:
        pid = json.loads(client.chat("look"))["pid"]
    assert gone_now(pid)


def test_a_client_that_nobody_closes_leaves_nothing_behind(stand_in: list[str]) -> None:
    client = ClaudeLocal(Config(provider="claude-local", command=stand_in))
    client.set_tools([weather(lambda city: city)])
    seen = json.loads(client.chat("look"))
    before = {thread.name for thread in threading.enumerate()}
    assert "hitherto-tools" in before
    del client
    assert gone_now(seen["pid"])
    assert not Path(seen["cwd"]).exists()
    assert not {t.name for t in threading.enumerate()} & {"hitherto-tools", "hitherto-claude"}


def test_a_process_that_ends_takes_the_program_with_it(stand_in: list[str]) -> None:
    code = f"""if True:
        from hitherto.chat import Config, new_client
        client = new_client(Config(provider="claude-local", command={stand_in!r}))
        print(client.chat("look"))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert gone(json.loads(done.stdout)["pid"])
    assert done.stderr == ""


def test_a_process_that_is_forked_does_not_end_the_program_of_its_parent(stand_in: list[str]) -> None:
    code = f"""if True:
        import os, sys
        from hitherto.chat import Config, Tool, new_client
        client = new_client(Config(provider="claude-local", command={stand_in!r}))
        client.set_tools([Tool("weather", handler=lambda city: city)])
        client.chat("one")
        if child := os.fork():
            os.waitpid(child, 0)
            print(client.chat("two"), client.chat("weather"))
        else:
            sys.exit()
    """
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("I heard: one; two")
    assert "Oslo" in done.stdout


# -- tools


def test_a_tool_is_offered_and_its_handler_runs_in_the_thread_that_waits(make: Make) -> None:
    threads: list[object] = []

    def handler(city: str) -> str:
        threads.append(threading.current_thread())
        return f"sunny in {city}"

    client = make((weather(handler),))
    (offered,) = json.loads(client.chat("tools"))
    assert (offered["name"], offered["description"], offered["inputSchema"]) == ("weather", "How is the weather?", CITY)
    told = json.loads(client.chat("weather"))
    assert told == {"content": [{"type": "text", "text": "sunny in Oslo"}], "isError": False}
    assert threads == [threading.current_thread()]


def test_the_token_of_the_tools_is_not_among_the_arguments(make: Make) -> None:
    seen = json.loads(make((weather(None),)).chat("look"))
    assert "mcp__hitherto" in seen["arguments"]
    assert "Bearer" not in " ".join(seen["arguments"])
    assert "127.0.0.1" in seen["environment"]["NO_PROXY"]
    assert Path(seen["cwd"]).name.startswith("hitherto-")


@pytest.mark.parametrize(
    ("returned", "content"),
    [
        (None, {"type": "text", "text": "done"}),
        ({"a": [1]}, {"type": "text", "text": '{"a":[1]}'}),
        (Block.image(b"\x89PNG", "image/png"), {"type": "image", "data": "iVBORw==", "mimeType": "image/png"}),
        (Block.video(b"1234", "video/mp4"), {"type": "text", "text": "[video/mp4, 4 bytes]"}),
    ],
)
def test_what_a_handler_returns_is_told(make: Make, returned: object, content: object) -> None:
    told = json.loads(make((weather(lambda **_: returned),)).chat("weather"))
    assert told == {"content": [content], "isError": False}


def test_what_a_handler_raises_is_told_as_an_error(make: Make) -> None:
    def handler(city: str) -> str:
        raise LookupError(city)

    for tool, said in ((weather(handler), "LookupError"), (weather(None), "not available")):
        told = json.loads(make((tool,)).chat("weather"))
        assert told["isError"]
        assert said in told["content"][0]["text"]


def test_a_tool_that_nobody_knows_gets_an_error(make: Make) -> None:
    told = json.loads(make((Tool("clock", handler=lambda: "late"),)).chat("weather"))
    assert told["isError"]


def test_a_result_that_the_program_would_put_into_a_file_is_refused(make: Make) -> None:
    for size, error in ((490_000, False), (500_001, True)):
        told = json.loads(make((weather(lambda **_: "x" * size),)).chat("weather"))  # noqa: B023  # called at once
        assert told["isError"] == error
        assert ("500,000" in told["content"][0]["text"]) == error


def test_ctrl_c_in_a_handler_stops_the_answer_and_not_the_conversation(make: Make) -> None:
    def handler(city: str) -> str:
        raise KeyboardInterrupt

    client = make((weather(handler),))
    with pytest.raises(KeyboardInterrupt):
        client.chat("weather")
    assert client.chat("two") == "I heard: weather; two"


@pytest.mark.parametrize("most", [0, 3])
def test_rounds_of_tools_are_bounded_and_what_happened_is_kept(make: Make, most: int) -> None:
    ran: list[str] = []

    def handler(city: str) -> None:
        ran.append(city)

    client = make((weather(handler),), max_tool_rounds=most)
    with pytest.raises(ToolLoopLimit) as caught:
        client.chat("loop")
    assert caught.value.rounds == most
    assert ran == ["Oslo"] * most
    assert client.chat("how-many?") == f"{most} rounds"


def test_tools_are_set_before_the_first_prompt_and_handlers_at_any_time(make: Make) -> None:
    client = make((weather(lambda **_: "sunny"),))
    assert "sunny" in client.chat("weather")
    client.set_tools([weather(lambda **_: "rainy")])
    assert "rainy" in client.chat("weather")
    for tools in ([], [weather(None), Tool("clock")], [Tool("weather", "Another", CITY)]):
        with pytest.raises(Unsupported):
            client.set_tools(tools)
    assert "rainy" in client.chat("weather")
    for wrong in ([7], [weather(None), weather(None)], weather(None)):
        with pytest.raises(InvalidArgument):
            client.set_tools(wrong)  # type: ignore[arg-type]


@dataclass
class Asked:
    status: int
    answer: object = None


@pytest.fixture
def tool_server() -> Iterator[tuple[ToolServer, list[ToolCall]]]:
    calls: list[ToolCall] = []
    server = ToolServer({"weather": weather(None)}, calls.append)
    yield server, calls
    server.close()


def post(server: ToolServer, body: bytes, *, path: str = "", token: str | None = None, method: str = "POST") -> Asked:
    headers = dict(server.config["headers"])  # type: ignore[call-overload]
    if token is not None:
        headers["Authorization"] = token
    request = urllib.request.Request(f"{server.config['url']}{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as found:
            return Asked(found.status, json.loads(found.read() or b"null"))
    except urllib.error.HTTPError as error:
        error.close()
        return Asked(error.code)


PING = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'


def test_nobody_without_the_token_is_answered(tool_server: tuple[ToolServer, list[ToolCall]]) -> None:
    server, calls = tool_server
    assert post(server, PING) == Asked(200, {"jsonrpc": "2.0", "id": 1, "result": {}})
    right = server.config["headers"]["Authorization"]  # type: ignore[index]
    for token in ("", "Bearer ", "Bearer x", right[:-1], right + "x", right.lower(), "Bearer \xff"):
        assert post(server, PING.replace(b"ping", b"tools/call"), token=token).status == 401
    assert calls == []
    assert str(server.config["url"]).startswith("http://127.0.0.1:")


def test_what_is_not_of_the_protocol_is_refused(tool_server: tuple[ToolServer, list[ToolCall]]) -> None:
    server, calls = tool_server
    assert post(server, b"nonsense").status == 400
    assert post(server, PING, path="/other").status == 400
    assert post(server, b"", method="GET").status == 405
    assert post(server, b"", method="DELETE").status == 405
    assert post(server, b'{"method": "notifications/initialized"}').status == 202
    for odd in (b"[]", b"7", b"{}", b'{"id": 1, "method": 7}', b"null"):
        answer = post(server, odd).answer
        assert isinstance(answer, dict)
        assert answer["error"]["code"] == -32600
    unknown = post(server, PING.replace(b"ping", b"resources/list")).answer
    assert isinstance(unknown, dict)
    assert unknown["error"]["code"] == -32601
    assert calls == []


def silent(server: ToolServer, count: int) -> list[socket.socket]:
    """Connections that say nothing, as any user of the machine can make them."""
    port = int(str(server.config["url"]).rsplit(":", 1)[1].split("/")[0])
    return [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]


def test_silent_connections_take_few_threads_and_keep_nobody_out(
    tool_server: tuple[ToolServer, list[ToolCall]],
) -> None:
    server, calls = tool_server
    before = threading.active_count()
    connections = silent(server, 200)
    try:
        for _ in range(5):
            assert post(server, PING).status == 200
            assert threading.active_count() - before <= _toolserver.MAX_STRANGERS + 2
        answers: list[Asked] = []
        thread = threading.Thread(
            target=lambda: answers.append(post(server, PING.replace(b"ping", b"tools/call"))), daemon=True
        )
        thread.start()
        deadline = time.monotonic() + 10
        while not calls and time.monotonic() < deadline:
            time.sleep(0.01)
        connections += silent(server, 200)  # a call that is being run is not closed by them
        assert post(server, PING).status == 200
        calls[0].answer([{"type": "text", "text": "sunny"}])
        thread.join(10)
        assert "sunny" in json.dumps(answers[0].answer)
    finally:
        for connection in connections:
            connection.close()


def test_without_the_bound_each_silent_connection_has_a_thread(
    tool_server: tuple[ToolServer, list[ToolCall]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the test above."""
    monkeypatch.setattr(_toolserver, "MAX_STRANGERS", 1000)
    monkeypatch.setattr(_toolserver, "MAX_CONNECTIONS", 1000)
    server, _ = tool_server
    before = threading.active_count()
    connections = silent(server, 60)
    try:
        assert post(server, PING).status == 200  # they were taken in, in this order
        assert threading.active_count() - before >= 60
    finally:
        for connection in connections:
            connection.close()


def test_a_stranger_who_says_nothing_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_toolserver._Requests, "timeout", 0.2)
    server = ToolServer({}, lambda _: None)
    try:
        (connection,) = silent(server, 1)
        connection.settimeout(10)
        connection.sendall(b"POST /mcp HTTP/1.1\r\nHost: x\r\n")  # the rest never comes
        with connection:
            assert connection.recv(100) == b""
    finally:
        server.close()


def test_closing_the_tools_ends_the_threads_of_open_connections() -> None:
    server = ToolServer({}, lambda _: None)
    before = threading.active_count()
    connections = silent(server, 10)
    assert post(server, PING).status == 200
    server.close()
    deadline = time.monotonic() + 5
    while threading.active_count() >= before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() < before
    for connection in connections:
        connection.close()


@pytest.mark.parametrize("has_token", [True, False])
def test_a_head_without_end_is_refused(tool_server: tuple[ToolServer, list[ToolCall]], has_token: bool) -> None:
    server, calls = tool_server
    (connection,) = silent(server, 1)
    token = server.config["headers"]["Authorization"] if has_token else "x"  # type: ignore[index]
    with connection:
        connection.settimeout(10)
        start = f"POST /mcp HTTP/1.1\r\nAuthorization: {token}\r\nContent-Length: 5\r\n"
        with contextlib.suppress(OSError):  # it is refused before all of it was sent
            connection.sendall(start.encode() + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 5000) for n in range(50)))
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100).split()[1:2] == [b"431" if has_token else b"401"]
    assert calls == []
    assert post(server, b"[" * 100_000).status == 400


def test_a_call_that_waits_when_the_tools_are_closed_gets_an_error() -> None:
    came = threading.Event()
    server = ToolServer({}, lambda _: came.set())
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(server.respond({"id": 1, "method": "tools/call"})))
    thread.start()
    assert came.wait(10)
    server.close()
    thread.join(10)
    assert "has ended" in json.dumps(answers)


# -- the real program


@pytest.fixture(scope="session")
def real_program() -> str:
    """The `claude` program: the one that is installed, or one that npm brings."""
    own = ROOT / ".tools" / "claude-code"
    installed = own / "node_modules" / ".bin" / "claude"
    if found := shutil.which("claude"):
        return found
    npm = shutil.which("npm")
    if not installed.exists() and npm:
        command = [npm, "install", "--prefix", str(own), "--no-audit", "--no-fund", "@anthropic-ai/claude-code"]
        try:
            subprocess.run(command, capture_output=True, timeout=240, check=True)
        except (subprocess.SubprocessError, OSError):
            pytest.skip("the claude program cannot be installed here")
    if not installed.exists():
        pytest.skip("no claude program and no npm here")
    return str(installed)


@dataclass
class Provider:
    """Anthropic's messages, on the loopback address: counts messages, calls a tool, refuses on request."""

    url: str = ""
    requests: list[dict[str, object]] = field(default_factory=list)


@pytest.fixture
def provider() -> Iterator[Provider]:
    found = Provider()

    class Requests(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or what follows a header waits until that is acknowledged

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.requests.append(body)
            if "refuse" in json.dumps(body["messages"][-1]):
                return self.reply(401, "application/json", b'{"type":"error","error":{"message":"sesame"}}')
            events = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in answer_events(body))
            return self.reply(200, "text/event-stream", events.encode())

        def reply(self, status: int, kind: str, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def answer_events(body: dict[str, list[dict[str, object]]]) -> Iterator[dict[str, object]]:
    """An answer as it is streamed: a call of the first tool, to whoever asks for the weather; else text."""
    last = json.dumps(body["messages"][-1])
    usage = {"input_tokens": 3, "output_tokens": 2}
    start = {
        "id": f"msg_{len(body['messages'])}",
        "type": "message",
        "role": "assistant",
        "content": [],
        "usage": usage,
    }
    yield {"type": "message_start", "message": {**start, "model": body["model"], "stop_reason": None}}
    if body.get("tools") and "weather" in last and "tool_result" not in last:
        use = {"type": "tool_use", "id": "toolu_1", "name": body["tools"][0]["name"], "input": {}}
        pieces = [{"type": "input_json_delta", "partial_json": '{"city": "Oslo"}'}]
    else:
        use = {"type": "text", "text": ""}
        pieces = [{"type": "text_delta", "text": text} for text in ("answer ", str(len(body["messages"])))]
    yield {"type": "content_block_start", "index": 0, "content_block": use}
    for piece in pieces:
        yield {"type": "content_block_delta", "index": 0, "delta": piece}
    yield {"type": "content_block_stop", "index": 0}
    reason = "tool_use" if use["type"] == "tool_use" else "end_turn"
    yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


@pytest.fixture
def real(make: Make, real_program: str, provider: Provider, tmp_path: Path) -> Make:
    env = {"HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}
    settings = {"command": real_program, "env": env, "base_url": provider.url, "api_key": "sk-none", "max_retries": 0}
    settings |= {"model": "claude-sonnet-4-5", "allow_insecure_base_url": True, "timeout_seconds": 60}
    return lambda tools=(), **more: make(tools, **(settings | more))


def test_the_real_program_answers_streams_and_remembers(real: Make, provider: Provider) -> None:
    client = real(system_prompt="Be brief, please.")
    assert client.chat("first question") == "answer 1"
    client.add("by the way")
    assert list(client.stream("second question")) == ["answer ", "3"]
    sent = provider.requests[-1]
    assert sent["model"] == "claude-sonnet-4-5"
    assert not sent.get("tools")
    assert json.dumps(sent["system"]).count("Be brief, please.") == 1
    for said in ("first question", "answer 1", "by the way", "second question"):
        assert json.dumps(sent["messages"]).count(said) == 1


def test_the_real_program_knows_nothing_of_the_project_or_the_user(
    real: Make, provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "claude").mkdir()
    for folder in (tmp_path, tmp_path / "claude"):
        (folder / "CLAUDE.md").write_text("sesame")
    monkeypatch.chdir(tmp_path)
    real().chat("hello")
    assert "sesame" not in json.dumps(provider.requests)
    assert not list(tmp_path.rglob("*.jsonl"))  # where it would keep the conversation


def test_the_real_program_runs_no_command_and_reads_no_file_that_a_prompt_names(
    real: Make, provider: Provider, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("open sesame")
    client = real()
    for prompt in ("/cost", f"@{secret} what is this?", f'look at @"{secret}"', "!echo sesame", ["hello", "/clear"]):
        assert client.chat(prompt).startswith("answer ")
        sent = json.dumps(provider.requests[-1]["messages"])
        assert json.dumps(prompt if isinstance(prompt, str) else prompt[-1])[1:-1] in sent
        assert "open sesame" not in sent
    assert len(provider.requests) == 5


def test_the_real_program_calls_our_tools(real: Make, provider: Provider, tmp_path: Path) -> None:
    asked: list[str] = []

    def handler(city: str) -> str:
        asked.append(city)
        return "sunny" * 90_000

    client = real((weather(handler),))
    assert client.chat("how is the weather?") == "answer 3"
    assert asked == ["Oslo"]
    assert [tool["name"] for tool in provider.requests[0]["tools"]] == ["mcp__hitherto__weather"]  # type: ignore[attr-defined]
    assert "sunny" * 90_000 in json.dumps(provider.requests[-1]["messages"])
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"sunny" in file.read_bytes()]


def test_the_real_program_is_stopped_at_the_bound_of_rounds(real: Make) -> None:
    client = real((weather(lambda **_: "sunny"),), max_tool_rounds=0)
    with pytest.raises(ToolLoopLimit):
        client.chat("how is the weather?")
    assert client.chat("never mind").startswith("answer ")


def test_the_real_program_reports_what_the_provider_refuses(real: Make) -> None:
    client = real()
    with pytest.raises(ProviderError) as caught:
        client.chat("refuse this")
    assert caught.value.status == 401
    assert "log in" in (caught.value.hint or "")
    assert "sesame" not in str(caught.value)


def test_the_real_program_is_gone_when_it_is_closed(real: Make) -> None:
    client = real()
    client.chat("hello")
    assert not gone_now(pid_of(client))
    client.close()
    assert gone_now(pid_of(client))
