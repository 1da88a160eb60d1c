"""A session: a chat that can be taken out as plain JSON, and put back in elsewhere.

What comes out is what the model saw, in the provider's own form and without the system prompt; what goes in is both
what the user sees and what the model sees. So the next request of a session that was put back is the same, to the byte
of its JSON, as that of one that got there by itself.
"""

from collections.abc import Iterator, Sequence

from ..dialects import Raw
from ..errors import InvalidArgument
from ..model import Message
from ._clients import Client
from ._turn import Prompt


class Session:
    """A chat through one client, which belongs to it from now on."""

    def __init__(self, client: Client, initial_history: Sequence[Raw] | None = None, *, repair: bool = False) -> None:
        """`initial_history` is what `export_history` gave: the provider's own messages, without a system prompt. One
        that stops between a tool call and its result is refused; with `repair`, the result is made up and says so."""
        if not isinstance(client, Client):
            raise InvalidArgument(f"a session needs a client that keeps its history, not a {type(client).__name__}")
        self.client = client
        if initial_history is not None:
            client._replace(client.parse_history(initial_history, mend=repair))

    def send(self, prompt: Prompt) -> str:
        """Say something, and get the answer's text."""
        return self.client.chat(prompt)

    def stream(self, prompt: Prompt) -> Iterator[str]:
        return self.client.stream(prompt)

    def export_history(self) -> list[Raw]:
        """Everything said so far, as JSON: a deep copy. Safe while a turn runs in another thread: whole messages."""
        return self.client.export_history()

    @property
    def messages(self) -> list[Message]:
        """Everything said so far, as messages to be shown."""
        return self.client.messages
