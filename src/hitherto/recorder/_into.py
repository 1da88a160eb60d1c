"""`into`: a block of code that names the conversation for its requests.

A context variable holds the conversation, so tasks and threads that copy the context use it too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

from ..conversation import Conversation
from ..errors import InvalidArgument

if TYPE_CHECKING:
    from ..aio import AsyncConversation

Talk = TypeVar("Talk", bound="Conversation | AsyncConversation")

_into: ContextVar[Conversation | None] = ContextVar("hitherto_into", default=None)


@contextmanager
def into(conversation: Talk) -> Iterator[Talk]:
    """Record into this conversation within the block, and in every task that is started in it. The handle moves along.

        with hitherto.into(store.ensure(f"user-{user.id}")) as talk:
            sdk.chat.completions.create(model=…, messages=[*hitherto.history(talk), …])

    For programs that serve many users through one SDK client. A request that does not continue the conversation (one
    that asks for a title, or checks a message) is kept beside it, as `record` says.
    """
    found: object = getattr(conversation, "sync", conversation)
    if not isinstance(found, Conversation):
        raise InvalidArgument(f"a {type(conversation).__name__} where a conversation is wanted")
    token = _into.set(found)
    try:
        yield conversation
    finally:
        _into.reset(token)


def current_conversation() -> Conversation | None:
    """The conversation of the innermost `into` block."""
    return _into.get()
