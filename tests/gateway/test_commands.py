"""`hitherto gateway` and `hitherto run` as processes: what they print and leave, and what survives their death.
Requirements: G1, A9, C16."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import hitherto

from ..support.command import PATIENCE, environment
from ..support.provider import anthropic_answer, anthropic_events
from ..support.waiting import until
from .running import ask
from .scripted import CHATS, SECRET, Scripted, as_events

COMMAND = [sys.executable, "-m", "hitherto"]
PATH, BODY = CHATS["anthropic"][:2]


class Place:
    """A folder with a store, and processes that use it."""

    def __init__(self, root: Path, upstream: Scripted) -> None:
        self.root, self.db, self.upstream = root, root / "chats.db", upstream
        self.env = environment() | {"HOME": str(root), "HITHERTO_STORE": str(self.db)}
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *given: str) -> tuple[subprocess.Popen[str], str]:
        """Start a gateway; its address."""
        leads = [f"--upstream={name}={self.upstream.url}" for name in ("anthropic", "openai", "gemini")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([*COMMAND, "gateway", *leads, *given], text=True, env=self.env, **pipes)  # type: ignore[call-overload]  # pipes
        self.processes.append(process)
        return process, process.stdout.readline().strip()

    def run(self, *given: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, "run", *given]
        return subprocess.run(
            command, capture_output=True, text=True, env=self.env | env, timeout=PATIENCE, check=False, cwd=self.root
        )

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def place(tmp_path: Path, upstream: Scripted) -> Iterator[Place]:
    made = Place(tmp_path, upstream)
    yield made
    made.end()


def test_it_begins_a_store_and_leaves_nothing_else_when_it_ends(place: Place) -> None:
    process, address = place.start("--port", "0")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
    place.upstream.say(anthropic_answer("hello there"))
    assert ask(address + PATH, BODY).status == 200
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in errors
    with hitherto.open(place.db) as store:
        talk = store.latest()
        assert talk is not None
        assert [m.text for m in talk.thread()] == ["hi", "hello there"]
    assert {path.name for path in place.root.iterdir()} <= {"chats.db", "chats.db-ballast"}
    with pytest.raises(OSError, match="refused"):
        ask(address + PATH, BODY)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_had_come_of_an_answer_survives_the_end_of_the_gateway(place: Place, how: signal.Signals) -> None:
    pieces = as_events(anthropic_events("one two three"))
    place.upstream.stream(*pieces[:-4], lambda: until(lambda: process.poll() is not None))
    process, address = place.start()
    with closing(HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE)) as connection:
        connection.request("POST", PATH, json.dumps(BODY).encode())
        got, seen = connection.getresponse(), b""
        while b"one" not in seen:
            seen += got.read1()
        with hitherto.open(place.db) as store:
            talk = store.latest()
            assert talk is not None
            if how == signal.SIGKILL:
                until(talk.partials)  # the gateway keeps it every second
            process.send_signal(how)
            process.communicate(timeout=PATIENCE)
            assert [m.text for m in talk.thread()] == ["hi"]
            assert talk.partials()[0].text.startswith("one")


def test_no_credential_is_in_any_file_or_output(place: Place) -> None:
    """The control: what was said is found by the same search."""
    process, address = place.start()
    headers = {"x-api-key": SECRET, "authorization": f"Bearer {SECRET}", "x-goog-api-key": SECRET, "cookie": SECRET}
    for name, (path, body, answer, events) in CHATS.items():
        place.upstream.say(answer)
        assert ask(address + path, body, headers).status == 200, name
        place.upstream.stream(*as_events(events), _cut)
        with pytest.raises(Exception, match="IncompleteRead"):
            ask(address + path + f"{'&' if '?' in path else '?'}key={SECRET}", {**body, "stream": True}, headers)
        place.upstream.status = 401
        place.upstream.say({"error": {"message": "wrong key"}})
        ask(address + path, body, headers)
        place.upstream.status = 200
    files = {path: path.read_bytes() for path in place.root.rglob("*") if path.is_file()}
    process.send_signal(signal.SIGINT)
    output = "".join(process.communicate(timeout=PATIENCE))
    files |= {path: path.read_bytes() for path in place.root.rglob("*") if path.is_file()}
    assert any(b"hello there" in data for data in files.values())
    assert [path for path, data in files.items() if SECRET.encode() in data] == []
    assert SECRET not in output


def _cut() -> None:
    raise ConnectionResetError


SCRIPT = """
import json, os, sys, urllib.request
body = json.dumps({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}).encode()
headers = {"content-type": "application/json", "x-api-key": "k"}
request = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body, headers)
print(json.load(urllib.request.urlopen(request))["content"][0]["text"])
sys.exit(7)
"""


def test_a_program_is_run_through_a_gateway_of_its_own(place: Place) -> None:
    place.upstream.say(anthropic_answer("hello there"))
    given = {"ANTHROPIC_BASE_URL": place.upstream.url + "/base", "HTTPS_PROXY": "http://127.0.0.1:9", "http_proxy": ""}
    done = place.run("--", sys.executable, "-c", SCRIPT, **given)
    assert (done.stdout, done.returncode) == ("hello there\n", 7), done.stderr
    assert place.upstream.seen[0].path == "/base/v1/messages"
    with hitherto.open(place.db) as store:
        talk = store.latest()
        assert talk is not None
        assert [m.text for m in talk.thread()] == ["hi", "hello there"]
        assert talk.project == str(place.root)


def test_the_program_gets_every_address_and_its_parent_none(place: Place) -> None:
    names = ["ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "OPENAI_API_BASE", "GOOGLE_GEMINI_BASE_URL", "NO_PROXY"]
    script = f"import os; print([os.environ.get(name) for name in {names}])"
    done = place.run(
        sys.executable, "-c", script, OPENAI_BASE_URL="https://models.ada.dev/v1", HTTPS_PROXY="http://x:1"
    )
    found = re.sub(r":\d{2,5}", ":PORT", done.stdout)
    address = "http://127.0.0.1:PORT"
    wanted = [
        f"{address}/anthropic",
        f"{address}/openai",
        f"{address}/openai",
        f"{address}/gemini",
        "127.0.0.1,localhost",
    ]
    assert found.strip() == str(wanted), done.stderr
    assert "ANTHROPIC_BASE_URL" not in os.environ


def test_codex_gets_the_address_as_options_without_websockets(place: Place, tmp_path: Path) -> None:
    codex = tmp_path / "codex"
    codex.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    codex.chmod(0o755)
    done = place.run("--", str(codex), "exec", "hi", OPENAI_API_KEY="sk-x")
    options = done.stdout.splitlines()
    assert options[:3:2] == ["-c", "-c"]
    assert re.search(r'base_url="http://127\.0\.0\.1:\d+/openai/v1"', options[3])
    assert "supports_websockets=false" in options[3]
    assert "sk-x" not in done.stdout
    assert options[4:] == ["exec", "hi"]


def test_a_program_that_is_not_there_or_is_killed_says_so_by_its_code(place: Place) -> None:
    assert "cannot be run" in place.run("--", "no-such-program").stderr
    assert place.run("--", "sh", "-c", "kill -9 $$").returncode == 137


def test_ctrl_c_is_the_programs_own(place: Place) -> None:
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, lambda *_: sys.exit(5)); print('up', flush=True); input()"
    )
    command = [*COMMAND, "run", "--", sys.executable, "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=place.env, text=True, start_new_session=True, **pipes)  # type: ignore[call-overload]  # pipes
    place.processes.append(process)
    assert process.stdout.readline() == "up\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    assert "Traceback" not in process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["gateway", "--upstream", "x=http://models.ada.dev"], "not https"),
        (["gateway", "--upstream", "x=https://ada:pw@models.ada.dev"], "user name"),
        (["gateway", "--upstream", "x=https://example.com"], "placeholder"),
        (["gateway", "--upstream", "x"], "name=https"),
        (["gateway", "--upstream", "../x=https://models.ada.dev"], "not the name"),
        (["gateway", "--upstream", "x=https://models.ada.dev?key=1"], "more than a path"),
        (["gateway", "--listen", "0.0.0.0"], "HITHERTO_GATEWAY_TOKEN"),
        (["gateway", "--store", "/dev/null/chats.db"], "error:"),
        (["run"], "COMMAND"),
    ],
)
def test_bad_input_is_an_error_and_nothing_runs(place: Place, given: list[str], said: str) -> None:
    done = subprocess.run(
        [*COMMAND, *given], capture_output=True, text=True, env=place.env, timeout=PATIENCE, check=False
    )
    assert done.returncode not in (0, None)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "pw" not in done.stderr
    assert done.stdout == ""
    assert not place.db.exists()


def test_without_the_extra_it_says_what_to_install(place: Place, tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ImportError(name='uvicorn')")
    env = place.env | {"PYTHONPATH": os.pathsep.join([str(tmp_path), place.env["PYTHONPATH"]])}
    done = subprocess.run([*COMMAND, "gateway"], env=env, capture_output=True, text=True, check=False)
    assert "hitherto[gateway]" in done.stderr
    assert "Traceback" not in done.stderr
