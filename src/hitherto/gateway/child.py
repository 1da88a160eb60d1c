"""Run a program whose requests go through the gateway.

The program gets the addresses in its environment, and nothing else changes for it: its terminal, its signals, its exit
code. Codex reads no such variable, and gets the address as options.
"""

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from types import FrameType

from ..chat import validate_base_url
from ..chat._urls import is_loopback
from ..errors import InvalidArgument
from .upstreams import DEFAULTS, Upstream, parse_upstreams

__all__ = ["child_arguments", "child_environment", "child_upstreams", "run_child"]

# The variables by which programs find each provider. The address of OpenAI mostly ends in its version.
VARIABLES = {
    "anthropic": ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"),
    "openai": ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
    "gemini": ("GOOGLE_GEMINI_BASE_URL",),
}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_LOCAL = "127.0.0.1,localhost"


def child_upstreams(given: Sequence[str], environ: Mapping[str, str]) -> dict[str, Upstream]:
    """Return the providers behind the gateway of a program: those that are given, and where its environment names
    another address of a provider than the usual one, that address."""
    found = {}
    for name, variables in VARIABLES.items():
        url = next((environ[variable] for variable in variables if environ.get(variable)), None)
        if url is not None:
            validate_base_url(url, allow_insecure=is_loopback(url))
            found[name] = url
    return parse_upstreams([*(f"{name}={url}" for name, url in found.items()), *given])


def child_addresses(address: str, upstreams: Mapping[str, Upstream]) -> dict[str, str]:
    """Return the base URL of each provider, as a program expects it."""
    found = {name: f"{address}/{name}" for name in upstreams}
    if not upstreams["openai"].path:
        found["openai"] += "/v1"
    return found


def child_environment(address: str, upstreams: Mapping[str, Upstream], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the program."""
    addresses = child_addresses(address, upstreams)
    changed = {variable: addresses[name] for name in DEFAULTS for variable in VARIABLES[name]}
    if any(environ.get(name) or environ.get(name.upper()) for name in _PROXIES):  # what is local needs no proxy
        before = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
        changed |= dict.fromkeys(("no_proxy", "NO_PROXY"), f"{before},{_LOCAL}" if before else _LOCAL)
    return {**environ, **changed}


def child_arguments(
    command: Sequence[str], address: str, upstreams: Mapping[str, Upstream], environ: Mapping[str, str]
) -> list[str]:
    """Return the command line of the program. Codex gets a provider of ours, without WebSockets."""
    program, *rest = command
    if PurePath(program).stem != "codex":
        return list(command)
    key = 'env_key="OPENAI_API_KEY"' if environ.get("OPENAI_API_KEY") else "requires_openai_auth=true"
    url = json.dumps(child_addresses(address, upstreams)["openai"])
    provider = f'{{name="OpenAI",base_url={url},wire_api="responses",{key},supports_websockets=false}}'
    return [program, "-c", 'model_provider="hitherto"', "-c", f"model_providers.hitherto={provider}", *rest]


def run_child(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a program to its end, and return its exit code; 128 and the signal that ended it, as shells do.

    Ctrl+C is the program's own: it has the terminal. Other signals to stop are passed on to it.
    """
    try:
        process = subprocess.Popen(command, env=dict(environ))
    except OSError as error:
        what = f"{command[0]} cannot be run: {error.strerror or type(error).__name__}"
        raise InvalidArgument(what, hint="give the command as you would type it, behind --") from None
    with _signals_for(process):
        code = process.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _signals_for(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    def pass_on(number: int, _frame: FrameType | None) -> None:
        if process.poll() is None:
            process.send_signal(number)

    stopping = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, pass_on) for number in stopping}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)  # the terminal sends it to both
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
