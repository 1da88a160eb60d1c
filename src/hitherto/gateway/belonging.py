"""Which conversation a request belongs to, by what its program says of itself.

Our own headers come first. Coding agents name their session in a header, and with it a sub-agent's run; beside the
conversation they ask for titles, checks and summaries, under the same name. Such side calls are told by what they lack:
tools of the program's own. A request that says nothing is matched by its history, as the recorder does for every SDK.
"""

import re
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from .._http_hooks import Sent

__all__ = ["CONVERSATION", "USER", "Belonging", "find_belonging"]

CONVERSATION, USER = "x-hitherto-conversation", "x-hitherto-user"  # headers of ours; they are not passed on
_PLAIN = re.compile(r"[A-Za-z0-9_.@+-]{1,128}")
_TURNS = ("turn", "compaction")  # kinds of requests of Codex that are a part of its conversation


class Belonging(Struct, frozen=True):
    """The conversation of a request, and its place beside or in it."""

    user: str = ""
    key: str | None = None  # of the conversation; None: the history tells
    run: tuple[str, str] | None = None  # the name of a sub-agent and its run; a side call is a run of its own
    is_main: bool = False  # the program says that it belongs to the main flow, whatever its history


class _Request(Struct):
    """The fields of a request by which a side call is told."""

    tools: list[dict[str, Any]] | None = None


_read = msgspec.json.Decoder(_Request).decode


def find_belonging(sent: Sent) -> Belonging:
    """Return where a request belongs."""
    headers = sent.headers
    user, name = headers.get(USER, ""), headers.get(CONVERSATION, "")
    if name:
        return Belonging(user, _key(user, "", name))
    if session := headers.get("x-claude-code-session-id", ""):
        return _of_claude_code(sent, user, _key(user, "claude-code", session))
    if session := headers.get("session-id") or headers.get("session_id", ""):
        return _of_codex(sent, user, session)
    return Belonging(user)


def _of_claude_code(sent: Sent, user: str, key: str) -> Belonging:
    agent = sent.headers.get("x-claude-code-agent-id", "")
    if agent:
        return Belonging(user, key, ("agent", _plain(agent)))
    if _has_own_tools(sent.body):
        return Belonging(user, key, is_main=True)
    return Belonging(user, key, _side_call(sent))


def _of_codex(sent: Sent, user: str, session: str) -> Belonging:
    key, thread = _key(user, "codex", session), sent.headers.get("thread-id", "")
    kind = sent.headers.get("x-openai-subagent", "")
    if thread and thread != session:
        return Belonging(user, key, (_plain(kind or "agent"), _plain(thread)))
    if kind or _kind_of_codex(sent.headers.get("x-codex-turn-metadata", "")) not in _TURNS:
        return Belonging(user, key, _side_call(sent))
    return Belonging(user, key, is_main=True)


def _kind_of_codex(metadata: str) -> str:
    try:
        found = msgspec.json.decode(metadata.encode(), type=dict[str, Any]).get("request_kind", "turn")
    except msgspec.MsgspecError:
        return "turn"
    return found if isinstance(found, str) else "turn"


def _has_own_tools(body: bytes) -> bool:
    """Has the request tools that the program runs? Tools of the provider's have a type of their own."""
    try:
        tools = _read(body).tools or ()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return any("input_schema" in tool for tool in tools)


def _side_call(sent: Sent) -> tuple[str, str]:
    """The run of a side call. The same request again, after an error, is the same run."""
    return "side-call", blake2b(sent.body, digest_size=6).hexdigest()


def _key(user: str, program: str, name: str) -> str:
    """The key of a conversation; users with the same name for theirs have one each."""
    return "/".join(part for part in (user and _plain(user), program, _plain(name) if program else name) if part)


def _plain(name: str) -> str:
    """A name as a part of a key or a label, where some characters have a meaning."""
    return name if _PLAIN.fullmatch(name) else blake2b(name.encode(), digest_size=16).hexdigest()
