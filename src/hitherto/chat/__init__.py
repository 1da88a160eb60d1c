"""Talking to language models, through the providers' official SDKs.

    from hitherto.chat import Config, new_client

    client = new_client(Config(provider="claude", model="claude-sonnet-4-5", system_prompt="Be terse."))
    print(client.chat("What fails?"))

A client keeps the history; `client.save()` returns it as a snapshot and `client.restore()` takes one back. Nothing here
depends on a store: `hitherto.record(client, store)` connects the two. An SDK is imported when a client that needs it is
made.
"""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._claude_local import ClaudeLocal
    from ._clients import (
        AsyncClaudeLocal,
        AsyncClient,
        ChatClient,
        Client,
        PersistentChatClient,
        new_async_client,
        new_client,
    )
    from ._config import PROVIDERS, Config, Tool
    from ._session import Session
    from ._turn import Restored
    from ._urls import MAX_BASE_URL_LENGTH, validate_base_url

__all__ = [
    "MAX_BASE_URL_LENGTH",
    "PROVIDERS",
    "AsyncClaudeLocal",
    "AsyncClient",
    "ChatClient",
    "ClaudeLocal",
    "Client",
    "Config",
    "PersistentChatClient",
    "Restored",
    "Session",
    "Tool",
    "new_async_client",
    "new_client",
    "validate_base_url",
]

_MODULES = {
    "_claude_local": ("ClaudeLocal",),
    "_clients": (
        "AsyncClaudeLocal",
        "AsyncClient",
        "ChatClient",
        "Client",
        "PersistentChatClient",
        "new_async_client",
        "new_client",
    ),
    "_config": ("PROVIDERS", "Config", "Tool"),
    "_session": ("Session",),
    "_turn": ("Restored",),
    "_urls": ("MAX_BASE_URL_LENGTH", "validate_base_url"),
}
_WHERE = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _WHERE:
        value: object = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
