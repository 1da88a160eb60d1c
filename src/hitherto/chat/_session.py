"""A session: a chat whose history can be exported as plain JSON, and imported elsewhere.

The export is the history that the model saw, in the provider's own form and without the system prompt. The import is
both the history shown to the user and the history sent to the model. So the next request of an imported session has the
same JSON, byte for byte, as that of the original session.
"""

from collections.abc import Iterator, Sequence

from ..dialects import Raw
from ..errors import InvalidArgument
from ..model import Message
from ._clients import Client
from ._turn import Prompt


class Session:
    """A chat through one client. The session owns the client from now on."""

    def __init__(self, client: Client, initial_history: Sequence[Raw] | None = None, *, repair: bool = False) -> None:
        """`initial_history` is the result of `export_history`: the provider's own messages, without a system
        prompt. A history that stops between a tool call and its result is refused. With `repair`, a result that
        says so is added."""
        if not isinstance(client, Client):
            raise InvalidArgument(f"a session needs a client that keeps its history, not a {type(client).__name__}")
        self.client = client
        if initial_history is not None:
            client.replace_history(client.parse_history(initial_history, mend=repair))

    def send(self, prompt: Prompt) -> str:
        """Send a prompt and return the answer's text."""
        return self.client.chat(prompt)

    def stream(self, prompt: Prompt) -> Iterator[str]:
        return self.client.stream(prompt)

    def export_history(self) -> list[Raw]:
        """Return the history as JSON, deeply copied. May be called while a turn runs in another thread: it returns
        whole messages only."""
        return self.client.export_history()

    @property
    def messages(self) -> list[Message]:
        """The history as messages for display."""
        return self.client.messages
