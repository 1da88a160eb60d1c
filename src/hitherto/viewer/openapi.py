"""The OpenAPI description of the JSON twins.

It is made from the values that they answer with, so it cannot say anything else.
"""

from typing import Any, NamedTuple

import msgspec

from .. import __version__
from .values import (
    BranchMap,
    Comparison,
    ConversationList,
    ConversationUsage,
    ConversationWindow,
    Found,
    Problem,
    Prompts,
    RetentionPlan,
    SearchResults,
    Skeleton,
    StoreUsage,
)

__all__ = ["TWINS", "Parameter", "Twin", "describe"]


class Parameter(NamedTuple):
    """A parameter of the query."""

    name: str
    about: str
    kind: str = "string"


class Twin(NamedTuple):
    """A page's JSON twin."""

    path: str
    value: type[msgspec.Struct]
    summary: str
    query: tuple[Parameter, ...] = ()


_WINDOW = (
    Parameter("from", "The position of the first message.", "integer"),
    Parameter("count", "How many messages, at most 100.", "integer"),
)
TWINS = (
    Twin(
        "/index.json",
        ConversationList,
        "Conversations, the most recently active first.",
        (
            Parameter("cursor", "The `next` of the page before."),
            Parameter("kind", "A kind other than chat."),
            Parameter("project", "Only conversations of this folder."),
            Parameter("label", "Only those with a message of this label."),
            Parameter("model", "Only those whose model has this in its name."),
            Parameter("source", "Only those that came from this program."),
            Parameter("since", "Only those that were active on this day or later."),
            Parameter("until", "Only those that were active on this day or before."),
            Parameter("forked", "Only those with branches, if it is 1."),
            Parameter("held", "Only those on hold, if it is 1."),
        ),
    ),
    Twin(
        "/search.json",
        SearchResults,
        "Messages that have these words.",
        (
            Parameter("q", "The words."),
            Parameter("best", "The best first, if it is 1."),
            Parameter("role", "Only messages of this role."),
            Parameter("offset", "How many hits to pass over.", "integer"),
        ),
    ),
    Twin("/c/{conversation}.json", ConversationWindow, "The path to the head of a conversation.", _WINDOW),
    Twin(
        "/c/{conversation}/map.json",
        BranchMap,
        "The tree of a conversation, stretches without forks as rows.",
        (
            Parameter("at", "A message on the path that is shown as active."),
            Parameter("all", "All sub-agents, if it is 1."),
        ),
    ),
    Twin(
        "/usage.json",
        StoreUsage,
        "The tokens of the last days and their cost, by day, model, project and source.",
        (Parameter("days", "How many days, today included.", "integer"),),
    ),
    Twin("/retention.json", RetentionPlan, "What the next sweep takes, and why."),
    Twin(
        "/c/{conversation}/usage.json",
        ConversationUsage,
        "The tokens of a path and of its tree.",
        (Parameter("at", "A message on the path."),),
    ),
    Twin(
        "/c/{conversation}/compare.json",
        Comparison,
        "Two paths, from where they part.",
        (
            Parameter("left", "A message of the one."),
            Parameter("right", "A message of the other."),
        ),
    ),
    Twin(
        "/c/{conversation}/m/{message}/find.json",
        Found,
        "The messages of a path that hold a text.",
        (Parameter("q", "The text, as it stands; letters of another case count as the same."),),
    ),
    Twin("/c/{conversation}/m/{message}/prompts.json", Prompts, "The prompts of a path, with their first words."),
    Twin("/c/{conversation}/m/{message}/skeleton.json", Skeleton, "The prompts and forks of a path."),
    Twin("/c/{conversation}/m/{message}.json", ConversationWindow, "The path through a message, around it.", _WINDOW),
)


def describe(base: str = "") -> dict[str, Any]:
    """Return the description."""
    kinds = [*dict.fromkeys(twin.value for twin in TWINS), Problem]
    schemas, components = msgspec.json.schema_components(
        kinds, schema_hook=lambda _: {"description": "Any JSON."}, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths = {twin.path: {"get": _operation(twin, schema_of[twin.value], schema_of[Problem])} for twin in TWINS}
    return {
        "openapi": "3.1.0",
        "info": {"title": "hitherto serve", "version": __version__, "description": (__doc__ or "").strip()},
        "servers": [{"url": base or "/"}],
        "paths": paths,
        "components": {"schemas": components},
    }


def _operation(twin: Twin, schema: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
    names = [part[1:-1] for part in twin.path.removesuffix(".json").split("/") if part.startswith("{")]
    given = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    given += [
        {"name": one.name, "in": "query", "description": one.about, "schema": {"type": one.kind}} for one in twin.query
    ]

    def answer(words: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"description": words, "content": {"application/json": {"schema": schema}}}

    return {
        "summary": twin.summary,
        "parameters": given,
        "responses": {"200": answer("The value.", schema), "default": answer("An error.", problem)},
    }
