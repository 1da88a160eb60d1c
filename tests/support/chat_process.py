"""Processes that talk and are killed: what a child of the kill tests does.

    python -m tests.support.chat_process HOW URL DATABASE

It prints one line for everything that was acknowledged to it, and never ends by itself in the middle of a turn.
"""

import sys
import threading
from typing import Any

import hitherto
from hitherto.chat import Client, Config, Tool, new_client

FOREVER = threading.Event()


def say(line: str) -> None:
    print(line, flush=True)


def own(url: str, store: hitherto.Store, *, late: bool = False) -> Client:
    """A recorded client of ours whose second tool call never returns."""
    runs: list[str] = []

    def look(**_: object) -> str:
        runs.append("")
        say(f"tool {len(runs)}")
        if len(runs) > int(sys.argv[4]):
            FOREVER.wait()
        return f"seen {len(runs)}"

    base = {"base_url": url + "/v1", "allow_insecure_base_url": True}
    client = new_client(Config("openai-compatible", "m", api_key="k", **base))  # type: ignore[arg-type]
    assert isinstance(client, Client)
    client.set_tools([Tool("look", handler=look)])
    hitherto.record(client, store, partial_seconds=0.05)
    if late:
        _keep_only_whole_turns(client)
    return client


def _keep_only_whole_turns(client: Client) -> None:
    """The negative control: a recorder that saves when the turn is over, as others do."""
    listener: Any = client.listener
    keep = listener.keep

    def keep_at_the_end(history: Any, setup: Any, *, answered: bool) -> None:
        if answered and not any(block.type == "tool_call" for block in history[-1].blocks):
            keep(history, setup, answered=answered)

    listener.keep = keep_at_the_end


def main() -> None:
    how, url, database = sys.argv[1:4]
    with hitherto.open(database) as store:
        if how == "sdk-stream":
            import openai

            sdk = hitherto.record(openai.OpenAI(base_url=url + "/v1", api_key="k"), store, partial_seconds=0.05)
            for _ in sdk.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "tell me"}], stream=True
            ):
                pass
            return
        client = own(url, store, late=how == "late")
        if how == "stream":
            for _ in client.stream("tell me"):
                pass
        elif how == "loop":
            for n in range(10_000):
                say(f"done {n} {client.chat(f'q{n}')}")
        else:
            say(client.chat("go"))


if __name__ == "__main__":
    main()
