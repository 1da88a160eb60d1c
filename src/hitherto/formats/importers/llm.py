"""llm: the `logs.db` of simonw's llm, in both of its generations.

Before 0.32 a row of `responses` is a question and its answer, and a conversation is a line of them. Since then messages
are a tree by content (`messages`, `parts`), threads are names for a place in it, and turns say which answer cost what.
Both lie in one file, and a conversation that was continued with the newer program is told twice: the tree begins with
the messages of the older rows. Those are matched, and each is taken once.

A thread is a conversation here, together with what was forked from it. Two threads that were never forked may share
messages in the tree, because they begin with the same words; they stay apart.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from ...dialects._json import encode
from ...errors import HithertoError
from ...model import Block, Message, Usage
from ...snapshots import Unreadable
from .._files import Files
from .._importer import Importer, clean_text, injected, parts, storable, time_us
from .._types import Found, PortableConversation, PortableMessage, Source
from ._fields import Fields, Setups, count, fields, objects, text, without
from ._foreign_tree import circle_records, order_tree
from ._llm_file import LlmFile, Row, decoded

_ROLES = {"user": "user", "assistant": "assistant", "tool": "tool_result"}
_OF_RESPONSES = ("prompt", "system", "prompt_json", "response", "reasoning", "conversation_id")  # told otherwise
_OF_TURNS = ("thread_id", "parent_message_hash", "tip_message_hash")


class LLM(Importer):
    name = "llm"
    title = "llm"
    suffixes = (".db",)

    def places(self, env: Mapping[str, str], home: Path) -> Iterator[Path]:
        """Yield the places where llm may keep its logs."""
        folders = [home / ".config", home / "Library" / "Application Support", home / "AppData" / "Roaming"]
        own = env.get("LLM_USER_PATH")
        yield from [Path(own) / "logs.db"] if own else [folder / "io.datasette.llm" / "logs.db" for folder in folders]

    def retention_days(self, env: Mapping[str, str], home: Path) -> int | None:  # noqa: ARG002  # as other programs
        """Return None: llm deletes nothing."""
        return None

    def recognises(self, source: Source) -> str | None:
        if {"threads", "turns", "parts"} <= source.tables:
            return "tables of llm: threads, turns and parts"
        if {"responses", "conversations", "_llm_migrations"} <= source.tables:
            return "tables of llm: responses and conversations"
        return None

    def read_files(self, files: Files, names: Sequence[str]) -> Iterator[Found]:
        for name in names:
            try:
                with files.local(name) as path, LlmFile.open(path) as file:
                    yield from _Logs(file).read()
            except HithertoError as error:
                yield Unreadable(files.label(name), str(error))


FORMAT = LLM()


class _Logs:
    """Finds the conversations in a file. It holds ids and places; the content is read conversation by conversation."""

    def __init__(self, file: LlmFile) -> None:
        self._file = file
        rows = file.columns("messages", "hash", "parent_hash")
        self._tree = {text(hash): text(parent) or None for hash, parent in rows}
        self._names: dict[str, tuple[str, str]] = {}  # of threads and conversations: title and time
        self._tips: dict[str, list[str]] = {}  # of threads: the messages that they have, or had, as their ends
        self._older: dict[str, list[str]] = {}  # of conversations: responses, oldest first
        self._above: dict[str, str] = {}  # the thread that a thread was forked from
        self._loose: dict[str, list[str]] = {}  # turns without a thread, by the message that they ended with
        self._read_places()

    def _read_places(self) -> None:
        for id, name in self._file.columns("conversations", "id", "name"):
            self._names[text(id)] = text(name), ""
        rows = self._file.columns("responses", "datetime_utc", "id", "conversation_id")
        for _, id, conversation in sorted([[text(cell) for cell in row] for row in rows]):
            self._older.setdefault(conversation or id, []).append(id)
        for id, name, tip, above, at in self._file.columns(
            "threads", "id", "name", "tip_message_hash", "forked_from", "datetime_utc"
        ):
            first = self._names.get(text(id), ("", ""))[0]
            self._names[text(id)] = first or text(name), text(at)
            self._tips.setdefault(text(id), []).append(text(tip))
            if text(above):
                self._above[text(id)] = text(above)
        for id, thread, asked, tip in self._file.columns(
            "turns", "id", "thread_id", "parent_message_hash", "tip_message_hash"
        ):
            if text(thread) in self._tips:
                self._tips[text(thread)] += (text(asked), text(tip))
            else:
                self._loose.setdefault(text(tip), []).append(text(id))

    def read(self) -> Iterator[Found]:
        groups = list(self._groups())
        owners: dict[str, str] = {}  # the first thread of the group that a message belongs to
        for members in groups:
            for hash in self._collect(members):
                owners.setdefault(hash, members[0])
        lost: dict[str, set[str]] = {}
        for hash in self._tree.keys() - owners.keys():  # messages that no thread leads to any more
            lost.setdefault(self._owner(hash, owners), set()).add(hash)
        for members in groups:
            hashes = self._collect(members) | lost.pop(members[0], set())
            yield from self._read(hashes, members)
        for first in sorted(lost):
            yield from self._read(lost[first], [first])

    def _read(self, hashes: set[str], members: Sequence[str]) -> Iterator[Found]:
        loose = [id for hash in hashes & self._loose.keys() for id in self._loose[hash]]
        conversation = _Conversation(self._file, {hash: self._tree[hash] for hash in sorted(hashes)}, sorted(loose))
        yield from conversation.read(members, self._names, self._older)

    def _owner(self, hash: str, owners: Mapping[str, str]) -> str:
        """Return the thread whose messages stand above this one; else the root above it, or what stands for one in a
        circle of parents."""
        walked: dict[str, None] = {}
        while hash not in walked:
            if hash in owners:
                return owners[hash]
            walked[hash] = None
            above = self._tree.get(hash)
            if above is None or above not in self._tree:
                return hash
            hash = above
        members = list(walked)
        return min(members[members.index(hash) :])

    def _groups(self) -> Iterator[list[str]]:
        """Yield the threads that were forked from each other, the first one first."""
        groups: dict[str, list[str]] = {}
        for id in sorted({*self._tips, *self._older}):
            at, walked = id, {id}
            while (above := self._above.get(at)) is not None and above not in walked:
                walked.add(above)
                at = above
            groups.setdefault(at if at in self._tips or at in self._older else id, []).append(id)
        for first, ids in groups.items():
            yield [first, *(id for id in ids if id != first)]

    def _collect(self, members: Sequence[str]) -> set[str]:
        """Return all messages that lead to the ends of these threads."""
        found: set[str] = set()
        for tip in (tip for id in members for tip in self._tips.get(id, ())):
            at: str | None = tip
            while at is not None and at in self._tree and at not in found:
                found.add(at)
                at = self._tree[at]
        return found


class _Conversation:
    """Reads one conversation: older responses in a line, then messages of the tree."""

    def __init__(self, file: LlmFile, above: dict[str, str | None], loose: Sequence[str]) -> None:
        """`above` has the messages of the tree and their parents; `loose` are turns that are of no thread."""
        self._file, self._above, self._loose = file, above, loose
        self._setups = Setups()
        self._systems: dict[str | None, str] = {}  # the system prompt at a message
        self._told: dict[tuple[str, str, str], str] = {}  # older messages by parent, role and text
        self._same: dict[str, str] = {}  # messages of the tree that an older response has told
        self._times: dict[str, int] = {}
        self._turns: dict[str, list[Row]] = {}  # by the message that they ended with

    def read(
        self, members: Sequence[str], names: Mapping[str, tuple[str, str]], responses: Mapping[str, Sequence[str]]
    ) -> Iterator[Found]:
        first = members[0]
        title, at = names.get(first, ("", ""))
        older = [said for id in members for said in self._older(responses.get(id, ()))]
        self._read_turns(members)
        self._told = {(said.parent or "", said.message.role, said.message.text): said.id for said in older}
        order = order_tree(self._above, self._times)
        newer = [said for hash in order.parents if (said := self._newer(hash)) is not None]
        conversation = PortableConversation(
            by_id=True,
            id=clean_text(first),
            aliases=tuple(clean_text(id) for id in members[1:]),
            title=clean_text(title),
            metadata={"source": FORMAT.name},
            setups=self._setups.all,
            created_us=time_us(at) or next((said.created_us for said in (*older, *newer) if said.created_us), 0),
        )
        yield from parts(conversation, (*older, *newer, *circle_records(order, self._above)))

    # -- older responses

    def _older(self, responses: Sequence[str]) -> Iterator[PortableMessage]:
        above: str | None = None
        system = ""
        for id in responses:
            row = self._file.row("responses", "id", id)
            fragments = [*self._file.fragments("system_fragments", id), text(row.get("system"))]
            system = "\n\n".join(part for part in fragments if part) or system
            setup = self._setups.number("", text(row.get("resolved_model")) or text(row.get("model")), system)
            at = time_us(row.get("datetime_utc"))
            for own, message in self._of_response(clean_text(id), row):
                answers = setup if message.role == "assistant" else 0
                yield PortableMessage(id=own, parent=above, message=message, created_us=at, setup=answers)
                above = own

    def _of_response(self, id: str, row: Row) -> Iterator[tuple[str, Message]]:
        for number, result in enumerate(self._file.rows("tool_results", "response_id", row["id"], "id"), 1):
            yield f"{id}/result/{number}", self._result(result)
        pieces = [*self._file.fragments("prompt_fragments", row["id"]), text(row.get("prompt"))]
        said = "\n".join(piece for piece in pieces if piece)
        blocks = [*_text(said), *self._file.attachments("prompt_attachments", "response_id", row["id"])]
        if blocks:
            yield f"{id}/prompt", Message.user(blocks)
        reasoning = clean_text(row.get("reasoning"))
        answer = [*([Block.thinking(reasoning)] if reasoning else ()), *_text(text(row.get("response")))]
        for call in self._file.rows("tool_calls", "response_id", row["id"], "id"):
            name = clean_text(call.get("tool_call_id")) or f"{id}/{call.get('id')}"
            answer.append(Block.tool_call(name, clean_text(call.get("name")), decoded(call.get("arguments"))))
        native = {name: decoded(value) if name.endswith("_json") else value for name, value in row.items()}
        extra = {"native": storable(without(native, _OF_RESPONSES))}
        yield id, Message.assistant(answer, extra=extra, usage=_usage(row))

    def _result(self, row: Row) -> Message:
        error = text(row.get("exception"))
        attached = self._file.attachments("tool_results_attachments", "tool_result_id", row.get("id"))
        blocks = [*_text(text(row.get("output")) or error), *attached]
        id = clean_text(row.get("tool_call_id")) or clean_text(row.get("name"))
        return Message.tool_result(id, blocks or [Block.text("")], error=bool(error))

    # -- messages of the tree

    def _read_turns(self, members: Sequence[str]) -> None:
        own = [turn for id in members for turn in self._file.rows("turns", "thread_id", id, "id")]
        for turn in (*own, *(self._file.row("turns", "id", id) for id in self._loose)):
            self._turns.setdefault(text(turn.get("tip_message_hash")), []).append(turn)
            at = time_us(turn.get("datetime_utc"))
            for hash in (text(turn.get("parent_message_hash")), text(turn.get("tip_message_hash"))):
                self._times[hash] = min(at, self._times.get(hash, at))

    def _newer(self, hash: str) -> PortableMessage | None:
        """Return a message of the tree; None if an older response has told it, and for the system prompt at the
        beginning, which is part of the setup."""
        above = self._above[hash]
        row = self._file.row("messages", "hash", hash)
        role = text(row.get("role"))
        listed = list(self._file.rows("parts", "message_hash", hash, "position"))
        blocks = tuple(block for part in listed for block in self._blocks(part, hash))
        self._systems[hash] = self._systems.get(above, "")
        if role == "system" and above is None:
            self._systems[hash] = "".join(block.content for block in blocks if isinstance(block.content, str))
            self._same[hash] = ""
            return None
        place = self._same.get(above) if above is not None else ""
        words = "".join(b.content for b in blocks if b.type == "content" and isinstance(b.content, str))
        known = self._told.get((place, _ROLES.get(role, "event"), words)) if place is not None else None
        if known is not None:
            self._same[hash] = known
            return None
        parent = above if place is None else place or None
        native = without(row, ("hash", "parent_hash", "role")) | {"parts": [_payload(part) for part in listed]}
        turns = self._turns.get(hash, [])
        native |= {"turns": [without(_with_json(turn), _OF_TURNS) for turn in turns]} if turns else {}
        message = Message(_ROLES.get(role, "event"), blocks, extra={"native": storable(without(native, ()))})
        if turns and message.role == "assistant":
            used = [usage for turn in turns if (usage := _usage(turn)) is not None]
            message = replace(message, usage=sum(used, Usage()) if used else None)
        model = text(turns[0].get("resolved_model")) or text(turns[0].get("model")) if turns else ""
        return PortableMessage(
            id=hash,
            parent=parent,
            message=injected(message, "context") if role == "system" else message,
            created_us=self._times.get(hash, 0),
            setup=self._setups.number("", model, self._systems[hash]) if message.role == "assistant" and model else 0,
        )

    def _blocks(self, part: Row, hash: str) -> Iterator[Block]:
        payload = fields(decoded(part.get("payload")))
        match text(part.get("type")):
            case "text":
                yield from _text(self._resolved(part, payload))
            case "reasoning":
                yield Block.thinking(clean_text(self._resolved(part, payload)))
            case "tool_call":
                id = clean_text(payload.get("tool_call_id")) or f"{hash}/{part.get('position')}"
                yield Block.tool_call(id, clean_text(payload.get("name")), storable(payload.get("arguments")))
            case "tool_result":
                id = clean_text(payload.get("tool_call_id")) or clean_text(payload.get("name"))
                said = text(payload.get("output")) or text(payload.get("exception")) or self._resolved(part, payload)
                yield Block("content", clean_text(said), id=id)
                for block in self._file.attachments("part_attachments", "part_id", part.get("id")):
                    yield replace(block, id=id)
            case "attachment":
                found = list(self._file.attachments("part_attachments", "part_id", part.get("id")))
                yield from found or [self._file.attachment(fields(payload.get("attachment")).get("id"))]
            case kind:
                yield Block(clean_text(kind)[:64] or "unknown", encode(storable(payload)), mime_type="application/json")

    def _resolved(self, part: Row, payload: Fields) -> str:
        """Return the text of a part: its own, or pieces of it with the fragments that it refers to."""
        pieces = objects(payload.get("text_ref"))
        if not pieces:
            return text(part.get("text"))
        return "".join(
            self._file.fragment(piece["fragment"]) if "fragment" in piece else text(piece.get("literal"))
            for piece in pieces
        )


def _text(said: str) -> Iterator[Block]:
    if said:
        yield Block.text(clean_text(said))


def _payload(part: Row) -> Fields:
    """Return the payload of a part without what its block says."""
    return without(fields(decoded(part.get("payload"))), ("output", "text_ref", "arguments"))


def _with_json(row: Row) -> Fields:
    return {name: decoded(value) if name.endswith("_json") else value for name, value in row.items()}


def _usage(row: Row) -> Usage | None:
    details = fields(decoded(row.get("token_details")))
    asked, said = fields(details.get("prompt_tokens_details")), fields(details.get("completion_tokens_details"))
    usage = Usage(
        input_tokens=count(row.get("input_tokens")),
        output_tokens=count(row.get("output_tokens")),
        cache_read_tokens=count(asked.get("cached_tokens")) or count(details.get("cache_read_input_tokens")),
        cache_write_tokens=count(details.get("cache_creation_input_tokens")),
        reasoning_tokens=count(said.get("reasoning_tokens")),
    )
    return usage if usage != Usage() else None
