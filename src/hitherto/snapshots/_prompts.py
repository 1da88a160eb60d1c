"""The system prompt in files of the shared form.

A snapshot has its system prompt in a field, and never among its messages. Other programs that share the form expect it
in both places where the provider is OpenAI, because it is the first message of an OpenAI request: they send the
messages as they stand. So files of the shared form have it in front, and it is taken away again when they are read.
Only a message equal to the one that would be written is removed: any other first message belongs to the conversation.
"""

from msgspec.structs import replace

from ._json_text import parts, read, written
from ._snapshot import Snapshot

_PROVIDERS = ("openai", "openai-compatible")
_DIALECT = "openai-chat"


def with_prompt(snapshot: Snapshot) -> Snapshot:
    """The snapshot with its system prompt as the first message, if it belongs there and none stands there already."""
    first = _message(snapshot)
    if first is None or not snapshot.messages_json.startswith("["):
        return snapshot
    for _, text in parts(snapshot.messages_json):
        entry = read(text)
        if isinstance(entry, dict) and entry.get("role") in ("system", "developer"):
            return snapshot
        return replace(snapshot, messages_json=f"[{first},{snapshot.messages_json[1:]}")
    return replace(snapshot, messages_json=f"[{first}]")


def without_prompt(snapshot: Snapshot) -> Snapshot:
    """The snapshot without the first message that `with_prompt` adds, also if it stands there twice."""
    first = _message(snapshot)
    messages = snapshot.messages_json
    while first is not None and messages.startswith(f"[{first}"):
        messages = f"[{messages[len(first) + 1 :].removeprefix(',')}"
    return replace(snapshot, messages_json=messages)


def _message(snapshot: Snapshot) -> str | None:
    """The message that says the system prompt, as compact JSON; None if there is no place for one."""
    speaks_so = snapshot.metadata.get("dialect", _DIALECT) == _DIALECT
    if snapshot.provider not in _PROVIDERS or not snapshot.system_prompt or not speaks_so:
        return None
    return written({"role": "system", "content": snapshot.system_prompt}, "system_prompt")
