"""From a thread to a snapshot and back: the provider's own words on one side, messages and a setup on the other.

A client, a store and a checkpoint all come here, so that they agree: what one of them writes, the others read as the
same conversation. The system prompt has a field of its own. Snapshots that other programs wrote carry it as the first
message as well: of OpenAI with a role that says so, of Gemini as a user's. It is lifted out when it is read, so that it
is sent once.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ..dialects import Dialect, Raw, dialect
from ..dialects._repair import repair
from ..errors import InvalidArgument, InvalidMessage
from ..events import warn
from ..model import Message, Setup
from ._snapshot import _ID, Snapshot

_DIALECTS = {
    "claude": "anthropic",
    "openai": "openai-chat",
    "openai-compatible": "openai-chat",
    "local": "openai-chat",
}
# The provider that a snapshot names for each dialect, if the setup names none.
_PROVIDERS = {"anthropic": "claude", "gemini": "gemini", "openai-chat": "openai", "openai-responses": "openai"}
# What the metadata of a snapshot says beside the conversation's own, which has this before such a name.
_OURS = ("dialect", "conversation", "head", "title", "checkpoint")
_OWN = "own."


def spoken_in(path: Sequence[Message], provider: str) -> str:
    """The name of the dialect that messages are written in; where they do not say, that of the provider. One that is
    not known here speaks as OpenAI's chat does: most do."""
    written = next((found for m in path if isinstance(found := (m.extra or {}).get("dialect"), str)), None)
    return written or (dialect_name(provider) if provider in (*_DIALECTS, *_PROVIDERS) else "openai-chat")


def dialect_name(name: str) -> str:
    """Return the dialect of a provider; any other name is returned as the name of a dialect."""
    return _DIALECTS.get(name, name)


def snapshot_of(
    path: Sequence[Message],
    setup: Setup,
    *,
    conversation: str,
    head: str,
    title: str = "",
    metadata: Mapping[str, str] | None = None,
    own: Mapping[str, str] | None = None,
) -> Snapshot:
    """Return the thread as a snapshot. A thread that a provider would refuse is repaired, as on resuming. `own` is the
    metadata of the conversation, `metadata` that of the snapshot."""
    spoken = dialect(spoken_in(path, setup.provider))
    about = {"dialect": spoken.name, "conversation": conversation, "head": head}
    mended = repair(path, spoken)
    for note in mended.notes:
        if note.kind == "missing-attachment" and conversation:
            warn(f"snapshot of conversation {conversation}: message {note.message_id}: an attachment is missing")
    return Snapshot.new(
        setup.provider or _PROVIDERS[spoken.name],
        setup.model,
        setup.system_prompt,
        spoken.history(mended.messages),
        setup.tools,
        {**_kept_apart(own or {}), **({"title": title} if title else {}), **(metadata or {}), **about},
    )


def _kept_apart(own: Mapping[str, str]) -> dict[str, str]:
    """Metadata of a conversation, with names that are not ours."""
    return {_OWN + name if _collides(name) else name: value for name, value in own.items()}


def _collides(name: str) -> bool:
    """Is it a name of ours, or one that would be taken for such a name kept apart?"""
    while name.startswith(_OWN):
        name = name.removeprefix(_OWN)
    return name in _OURS


def thread_of(snapshot: Snapshot) -> tuple[list[Message], Setup]:
    """Return the messages of a snapshot, and their setup."""
    if not isinstance(snapshot, Snapshot):
        raise InvalidArgument(f"a {type(snapshot).__name__} where a Snapshot is wanted")
    spoken = _spoken(snapshot)
    system_prompt, entries = lift_prompt(snapshot, spoken)
    messages = [_tag(_parse_entry(entry, spoken), spoken) for entry in entries]
    return messages, Setup(snapshot.provider, snapshot.model, system_prompt, tuple(snapshot.tools))


def _spoken(snapshot: Snapshot) -> Dialect:
    """The dialect that the metadata names. Where it names none, or other programs mean something else by the word, that
    of the provider."""
    try:
        return dialect(snapshot.metadata.get("dialect", ""))
    except InvalidArgument:
        return dialect(spoken_in((), snapshot.provider))


def _parse_entry(entry: Raw, spoken: Dialect) -> Message:
    """Parse one entry into a message. An entry that the dialect cannot parse is kept in an event: it is user data, and
    is exported unchanged."""
    try:
        return spoken.parse(entry)
    except InvalidMessage:
        return Message("event", raw=entry)


def _tag(message: Message, spoken: Dialect) -> Message:
    return replace(message, extra={**(message.extra or {}), "dialect": spoken.name})


def lift_prompt(snapshot: Snapshot, spoken: Dialect) -> tuple[str, list[Raw]]:
    """Return the system prompt, and the history without it."""
    entries = snapshot.messages
    found: list[str] = []
    while entries and entries[0].get("role") in ("system", "developer"):
        found.append(spoken.parse(entries.pop(0)).text)
    prompt = snapshot.system_prompt or "\n\n".join(found)
    return prompt, entries[1:] if spoken.name == "gemini" and _opens_with(prompt, entries) else entries


def _opens_with(prompt: str, entries: Sequence[Raw]) -> bool:
    """Return True if a history of Gemini begins with the system prompt as a user's entry. A user may say the same words
    as a question; then the model's answer follows."""
    is_answered = len(entries) > 1 and entries[1].get("role") == "model"
    return bool(prompt and entries) and not is_answered and entries[0] == {"role": "user", "parts": [{"text": prompt}]}


def about(snapshot: Snapshot) -> tuple[str, dict[str, str]]:
    """Title and metadata of the conversation that a snapshot becomes. It remembers which snapshot it came from, unless
    it says something else by that name."""
    kept = {
        name.removeprefix(_OWN) if _collides(name) else name: value
        for name, value in snapshot.metadata.items()
        if name not in _OURS
    }
    if _ID.fullmatch(kept.get("snapshot", snapshot.id)):
        kept["snapshot"] = snapshot.id
    return snapshot.metadata.get("title", ""), kept
