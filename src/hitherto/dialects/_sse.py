"""Server-sent events, as providers stream them: bytes in, JSON objects out.

Chunks may end anywhere, also inside a line or a character. So a line is decoded only when it is complete, its pieces
are kept in a list and joined once, and a line may end in any of the three ways that the standard allows. Only the
`data` field of an event is used: every provider names the kind of an event inside it.

Data that is not a JSON object is no error, because proxies and servers put all sorts of things into a stream. It is
kept in `unread`, so that the caller can report it.

OpenAI, and servers with the same API, end a stream with the data `[DONE]`. It is returned as an event, `DONE`: some
servers mark the end of an answer in no other way.
"""

import re

from ..errors import InvalidMessage
from ._json import decode_object

LARGEST = 256 * 1024 * 1024  # bytes of one event; no provider sends that much, and a broken server may never end a line
DONE: dict[str, object] = {"type": "[DONE]"}
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Events:
    """Decodes a stream of server-sent events, chunk by chunk.

    >>> events = Events()
    >>> events.feed(b'data: {"a": 1}\\n\\nda')
    [{'a': 1}]
    >>> events.feed(b'ta: {"a": 2}\\n\\n')
    [{'a': 2}]
    """

    def __init__(self, *, largest: int = LARGEST) -> None:
        self.unread: list[bytes] = []  # the data of events that was no JSON object
        self._largest = largest
        self._size = 0  # of the event that is under way
        self._line: list[bytes] = []  # the pieces of the line that is under way
        self._data: list[bytes] = []  # the data lines of the event that is under way
        self._after_cr = False  # the last chunk ended in CR: an LF that follows belongs to it
        self._first = True

    def feed(self, chunk: bytes) -> list[dict[str, object]]:
        """Add a chunk and return the events that are complete now. Raises `InvalidMessage` if one is too large; the
        decoder cannot be used after that."""
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
            if not chunk:
                return []
        self._after_cr = chunk.endswith(b"\r")
        *ended, rest = _LINE_END.split(chunk)
        found: list[dict[str, object]] = []
        for piece in ended:
            self._grow(piece)
            self._end_line(found)
        self._grow(rest)
        return found

    def finish(self) -> list[dict[str, object]]:
        """End the stream and return its last event, if it is complete. The empty line after it may be missing."""
        found: list[dict[str, object]] = []
        self._end_line(found)
        self._end_event(found)
        return found

    def _grow(self, piece: bytes) -> None:
        if not piece:
            return
        self._size += len(piece)
        if self._size > self._largest:
            self._line.clear()
            self._data.clear()
            raise InvalidMessage(f"an event of more than {self._largest:,} bytes in a stream", hint="read it anew")
        self._line.append(piece)

    def _end_line(self, found: list[dict[str, object]]) -> None:
        line = b"".join(self._line)
        self._line.clear()
        if self._first:
            self._first = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            self._end_event(found)
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        else:
            self._size -= len(line)  # comments that keep a connection alive make no event larger

    def _end_event(self, found: list[dict[str, object]]) -> None:
        self._size = 0
        if not self._data:
            return
        data = b"\n".join(self._data)
        self._data.clear()
        if data.strip() == b"[DONE]":
            found.append(dict(DONE))
        elif data.strip():
            try:
                found.append(decode_object(data))
            except ValueError:
                self.unread.append(data)
