"""How long the command line takes to start, and to show what is kept: whole processes, against `python -c pass`.

Python itself is in both, so that a ratio of one would be a command that costs nothing. Bytecode is compiled before, as
an installation does it.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from ._table import Bench, Row, at_most, ms, ratios

_CONVERSATIONS, _MESSAGES = 100, 20
_OTHERS = ("import click", "git log")


def _run(command: Sequence[str], environment: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def _fill(path: str) -> None:
    import hitherto  # the other measurements are to start without it
    from hitherto import Message

    with hitherto.open(path) as store:
        for number in range(_CONVERSATIONS):
            talk = store.start(title=f"Conversation {number}")
            talk.extend(Message.user(f"Question {n}, and a few words more") for n in range(_MESSAGES))


def _repository(path: str) -> str:
    """As many commits as a conversation has messages."""
    git = ["git", "-C", path, "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    for number in range(_MESSAGES):
        words = f"Question {number}, and a few words more"
        subprocess.run([*git, "commit", "-q", "--allow-empty", "--no-gpg-sign", "-m", words], check=True)
    return path


def commands(bench: Bench) -> list[Row]:
    place = f"{bench.place('commands')}/chats.db"
    _fill(place)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": bench.place("pycache"), "HITHERTO_STORE": place}
    ours = [sys.executable, "-m", "hitherto"]
    sides = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "import click": [sys.executable, "-c", "import click"],
        "--help": [*ours, "--help"],
        "where": [*ours, "where"],
        "search --help": [*ours, "search", "--help"],
        "log": [*ours, "log"],
        "conversation list": [*ours, "conversation", "list"],
        "list": [*ours, "list"],
    }
    if shutil.which("git") is not None:
        sides["git log"] = ["git", "-C", _repository(bench.place("git")), "log"]
    for command in sides.values():
        _run(command, environment)  # compiles
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(bench.pick(5, 15)):
        for name in bench.shuffled(sides):
            times[str(name)].append(min(_run(sides[str(name)], environment) for _ in range(3)))
    nothing = times.pop("python -c pass")
    goals = {"--help": 6.0}
    notes = {"conversation list": f"{_CONVERSATIONS * _MESSAGES} messages", "log": f"{_MESSAGES} messages"}
    return [
        at_most(
            f"{name if name in _OTHERS else f'hitherto {name}'} / python -c pass",
            ratios(values, nothing),
            goals.get(name),
            ", ".join(filter(None, [ms("ours", values), ms("python", nothing), notes.get(name)])),
        )
        for name, values in times.items()
    ]
