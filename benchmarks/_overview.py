"""What is asked of a whole store: how much it holds, what was said lately, what a sweep would do, which setups a long
conversation had. A million messages, in conversations of a hundred, and one long conversation more. Then how much
memory a search takes that has all but a tenth of them to take in, and `verify`: each in a process of its own."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hitherto
from hitherto import Message, RetentionPolicy

from ._table import Bench, Row, at_most

_EACH = 100  # messages of a conversation
_SAID = [Message.user("Why does the build fail?"), Message.assistant("An unused import breaks the lint step.")]
_ROUNDS = 3
_MOST_MS = 100.0
_MOST_MB = 50.0


def overview(bench: Bench) -> list[Row]:
    messages, long = bench.pick(20_000, 1_000_000), bench.pick(2_000, 100_000)
    path = Path(bench.place("overview")) / "store.db"
    with hitherto.open(path, maintenance=False) as store:
        for number in range(messages // _EACH):
            if number == messages // _EACH // 10:
                store.search("build", limit=1)
            store.save(_SAID * (_EACH // 2))
        talk = store.start(model="small")
        for _ in range(long // 1000):
            talk.extend(_SAID * 500)
        asked: dict[str, Callable[[], object]] = {
            "stats": store.stats,
            "activity of 30 days": store.activity,
            "plan of a sweep": lambda: store.plan_sweep(RetentionPolicy()),
            f"setups of {long:,} messages": talk.setups,
        }
        name = f"{messages:,} messages"
        rows = [at_most(f"{name}: {what}, ms", _times(ask), _MOST_MS) for what, ask in asked.items()]
    asked_alone = {"search": "search('build')", "verify": "verify()", "maintain": "maintain()"}
    memory = {what: [_memory(str(path), ask)] for what, ask in asked_alone.items()}
    return rows + [at_most(f"{name}: memory of {what}, MB", most, _MOST_MB) for what, most in memory.items()]


def _memory(path: str, ask: str) -> float:
    """The most that a process had in memory that asked a store this, as Linux tells. (`ru_maxrss` begins with what the
    parent had.)"""
    program = (
        "import re, sys, hitherto\n"
        f"with hitherto.open(sys.argv[1], maintenance=False) as store: store.{ask}\n"
        "print(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])"
    )
    done = subprocess.run([sys.executable, "-c", program, path], check=True, capture_output=True, text=True)
    return int(done.stdout) / (1 << 10)


def _times(ask: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        ask()
        found.append(1e3 * (time.perf_counter() - began))
    return found
