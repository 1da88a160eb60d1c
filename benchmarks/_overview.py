"""What is asked of a whole store: how much it holds, what was said lately, what a sweep would do, which setups a long
conversation had. A million messages, in conversations of a hundred, and one long conversation more."""

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


def overview(bench: Bench) -> list[Row]:
    messages, long = bench.pick(20_000, 1_000_000), bench.pick(2_000, 100_000)
    path = Path(bench.place("overview")) / "store.db"
    with hitherto.open(path, maintenance=False) as store:
        for _ in range(messages // _EACH):
            store.save(_SAID * (_EACH // 2))
        talk = store.start()
        for _ in range(long // 1000):
            talk.extend(_SAID * 500)
        asked: dict[str, Callable[[], object]] = {
            "stats": store.stats,
            "activity of 30 days": store.activity,
            "plan of a sweep": lambda: store.plan_sweep(RetentionPolicy()),
            f"setups of {long:,} messages": talk.setups,
        }
        name = f"{messages:,} messages"
        return [at_most(f"{name}: {what}, ms", _times(ask), _MOST_MS) for what, ask in asked.items()]


def _times(ask: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        ask()
        found.append(1e3 * (time.perf_counter() - began))
    return found
