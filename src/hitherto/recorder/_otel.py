"""Answers that are recorded, for those who watch: what was asked of whom, how long it took, and what it cost.

By OpenTelemetry's conventions for GenAI. Of what was said nothing is told.
"""

import time
from typing import TYPE_CHECKING

from ..dialects import Answer
from ..model import Usage
from ..telemetry import Attributes, Instruments, measured

if TYPE_CHECKING:
    from ._recorder import Place

_PROVIDERS = {
    "claude": "anthropic",
    "claude-local": "anthropic",
    "gemini": "gcp.gemini",
}  # as the conventions name them


def watch(place: "Place", provider: str, answer: Answer) -> None:
    """An answer has come in."""
    seconds = time.perf_counter() - place.asked
    measured(lambda to: _chat(to, place, _PROVIDERS.get(provider, provider), answer, seconds))


def _chat(to: Instruments, place: "Place", provider: str, answer: Answer, seconds: float) -> None:
    """The span is made when the answer is there, and begins when it was asked for."""
    from opentelemetry.trace import SpanKind  # noqa: PLC0415  # it is loaded, or nobody would watch

    model = place.handle.model
    about: Attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider}
    about |= {"gen_ai.request.model": model} if model else {}
    extra = answer.messages[-1].extra or {}
    named = extra.get("model")
    about |= {"gen_ai.response.model": named} if isinstance(named, str) else {}
    to.record("gen_ai.client.operation.duration", seconds, about)
    more: Attributes = {"gen_ai.conversation.id": place.kept.talk.id}
    more |= {"gen_ai.response.id": answer.id} if answer.id else {}
    usage = sum((m.usage for m in answer.messages if m.usage is not None), Usage())
    for kind, tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
        if tokens:
            to.record("gen_ai.client.token.usage", tokens, about | {"gen_ai.token.type": kind})
            more[f"gen_ai.usage.{kind}_tokens"] = tokens
    now = time.time_ns()
    span = to.tracer.start_span(
        f"chat {model}".strip(),
        kind=SpanKind.CLIENT,
        attributes=about | more,
        start_time=now - int(seconds * 1e9),
    )
    span.end(now)
