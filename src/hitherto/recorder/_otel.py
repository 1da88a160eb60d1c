"""Spans and metrics of the answers that are recorded: provider, model, duration and tokens.

They follow OpenTelemetry's conventions for GenAI. They hold no text of messages.
"""

import time
from typing import TYPE_CHECKING

from ..dialects import Answer
from ..model import Usage
from ..telemetry import Attributes, Instruments, measure

if TYPE_CHECKING:
    from ._recorded_conversation import Place

_PROVIDERS = {
    "claude": "anthropic",
    "claude-local": "anthropic",
    "gemini": "gcp.gemini",
}  # as the conventions name them


def observe_answer(place: "Place", provider: str, answer: Answer) -> None:
    """Record a span and the metrics of an answer that has just arrived."""
    seconds = time.perf_counter() - place.asked
    measure(lambda to: _chat(to, place, _PROVIDERS.get(provider, provider), answer, seconds))


def _chat(to: Instruments, place: "Place", provider: str, answer: Answer, seconds: float) -> None:
    """Record the answer. The span is made now, with the time of the question as its beginning."""
    from opentelemetry.trace import SpanKind  # noqa: PLC0415  # the program has loaded it already

    model = place.handle.model
    about: Attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider}
    about |= {"gen_ai.request.model": model} if model else {}
    extra = answer.messages[-1].extra or {}
    named = extra.get("model")
    about |= {"gen_ai.response.model": named} if isinstance(named, str) else {}
    to.record("gen_ai.client.operation.duration", seconds, about)
    more: Attributes = {"gen_ai.conversation.id": place.recorded.talk.id}
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
