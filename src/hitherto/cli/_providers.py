"""The providers as data: the variables of their keys, and the models that `hitherto chat` takes if none is named.

Names of models grow old, so the table has a date. It is a list of defaults, not of all that a provider has: any other
name is passed on as it is.
"""

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import NamedTuple

import click

ADDRESS = "base_url"  # in the metadata of a conversation: the server that it was held with
AS_OF = "2026-11"  # when these models were the ones to begin with


class Provider(NamedTuple):
    """A provider: where its key stands in the environment, and its models, the default one first."""

    variables: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    address: str | None = None  # the variable with its address, which its SDK reads


# A test compares the names with the library's.
PROVIDERS: Mapping[str, Provider] = {
    "claude": Provider(
        ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
        ("claude-sonnet-5", "claude-opus-5", "claude-haiku-4-5"),
        "ANTHROPIC_BASE_URL",
    ),
    "openai": Provider(("OPENAI_API_KEY",), ("gpt-5", "gpt-5-mini", "gpt-5-nano"), "OPENAI_BASE_URL"),
    "openai-compatible": Provider(address="OPENAI_BASE_URL"),
    "gemini": Provider(
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        ("gemini-2.5-flash", "gemini-2.5-pro", "gemini-2.5-flash-lite"),
        "GOOGLE_GEMINI_BASE_URL",
    ),
    "claude-local": Provider(),
    "local": Provider(),
}

OTHER_NAMES = {"anthropic": "claude", "google": "gemini", "chatgpt": "openai", "gpt": "openai"}
SERVERS = {  # on this machine, where they listen unless told otherwise
    "ollama": "http://127.0.0.1:11434/v1",
    "lmstudio": "http://127.0.0.1:1234/v1",
    "llamacpp": "http://127.0.0.1:8080/v1",
    "llamaserver": "http://127.0.0.1:8080/v1",
}


def find_keys(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the providers whose key is in the environment, each with the name of the variable."""
    environment = os.environ if environment is None else environment
    found = {}
    for name, provider in PROVIDERS.items():
        variable = next((v for v in provider.variables if environment.get(v, "").strip()), None)
        if variable is not None:
            found[name] = variable
    return found


def find_near(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelt one probably means.

    >>> find_near("opnai", PROVIDERS), find_near("Claude", PROVIDERS), find_near("zebra", PROVIDERS)
    ('openai', 'claude', None)
    """
    names = {one.lower(): one for one in known}
    return next((names[found] for found in get_close_matches(name.lower(), names, n=1)), None)


def say_known(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown name: the one that was probably meant, and all that there are."""
    known = list(known)
    near = find_near(name, known)
    return f"did you mean {near}? Known are {', '.join(known)}" if near else f"known are {', '.join(known)}"


def say_providers(name: str) -> str:
    """Return a hint for an unknown provider. A server on this machine is a provider with an address.

    >>> say_providers("Ollama")
    'it is openai-compatible, with the address http://127.0.0.1:11434/v1'
    """
    plain = "".join(filter(str.isalnum, name.lower()))
    if plain in SERVERS:
        return f"it is openai-compatible, with the address {SERVERS[plain]}"
    return say_known(OTHER_NAMES.get(plain, name), PROVIDERS)


class ProviderName(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """The name of a provider."""

    name = "name"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        given = str(value)
        if given not in PROVIDERS:
            self.fail(f"there is no provider {given!r:.40}; {say_providers(given)}", param, ctx)
        return given

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list:  # type: ignore[type-arg]  # noqa: ARG002  # click's own signature
        from click.shell_completion import CompletionItem  # noqa: PLC0415  # only completion needs it

        return [CompletionItem(name) for name in PROVIDERS if name.startswith(incomplete)]
