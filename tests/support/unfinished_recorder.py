"""A process that records, and never comes to its end: what a child of the recovery tests does.

    python -m tests.support.unfinished_recorder HOW URL DATABASE [KEY IN HEX]

It talks through a client of ours, or through an SDK, with the usual pauses between what it keeps of an answer on its
way. `closed` ends its recording before it waits to be killed.
"""

import sys
import threading
from typing import Any

import hitherto
from hitherto.chat import Client, Config, new_client


def main() -> None:
    how, url, database, *key = sys.argv[1:]
    with hitherto.open(database, key=bytes.fromhex(key[0]) if key else None) as store:
        if how == "sdk":
            import openai

            sdk = hitherto.record(openai.OpenAI(base_url=url + "/v1", api_key="k"), store)
            asked: Any = [{"role": "user", "content": "tell me"}]
            for _ in sdk.chat.completions.create(model="m", messages=asked, stream=True):
                pass
            return
        base = {"base_url": url + "/v1", "allow_insecure_base_url": True}
        client = new_client(Config("openai-compatible", "m", api_key="k", **base))  # type: ignore[arg-type]
        assert isinstance(client, Client)
        hitherto.record(client, store)
        if how == "own":
            for _ in client.stream("tell me"):
                pass
            return
        client.chat("tell me")
        if how == "closed":
            recording = hitherto.recording(client)
            assert recording is not None
            recording.close()
        print("waiting", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
