"""Traffic of clients that keep their histories themselves, as they do: they grow, fork, trim and edit them, write an
answer in words of their own, ask again, change the setup, and others write and delete in the store meanwhile.

`Traffic` does what it is told, step by step, with bodies that it writes itself, and answers that depend on nothing but
the steps. So the same steps make the same traffic, however it is recorded.
"""

import copy
import json
from contextlib import nullcontext
from typing import Any

import httpx2
from hypothesis import strategies as st

import hitherto
from hitherto import Message, Store
from hitherto.errors import HithertoError

Json = Any
DIALECTS = ("openai-chat", "openai-responses", "anthropic", "gemini")
FIELDS = {"openai-chat": "messages", "openai-responses": "input", "anthropic": "messages", "gemini": "contents"}
PATHS = {
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/{model}:generateContent",
}
HELD: dict[str, tuple[str, Json]] = {
    "openai-responses": ("previous_response_id", "r{}"),
    "anthropic": ("thread", {"type": "continue", "previous_message_id": "r1"}),
}
SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2
WORDS = ("go on", "why?", "go on", f"use {SECRET}", 'ünï \\ " ] } ,', "go on", "x" * 3000)
ANSWERS = ("yes", "no", "yes", "  yes  ", f"the key is {SECRET}", "yes")

# How often each step is made: most go on with a history.
_STEPS = (
    *["ask"] * 9, *["tool"] * 3, *["new"] * 3, *["back"] * 3, *["fork"] * 2, "refused", "again", "trim", "edit",
    "edit_answer", "system", "model", "tools", "side", "delete", "purge", "append", "session", "into", "order",
    "spelling", "reopen", "question_twice", "thought", "note", "worker", "worker", "held", "twins", "answer_elsewhere",
)  # fmt: skip
steps = st.lists(st.tuples(st.sampled_from(_STEPS), st.integers(0, 11)), min_size=3, max_size=25)


class Traffic:
    def __init__(self, store: Store, dialect: str, **recording: Any) -> None:
        self.store, self.dialect, self._recording = store, dialect, recording
        self._answered = 0
        self._reply: Json = None
        self.threads: list[list[Json]] = [[]]
        self.at = 0
        self.system: str | None = "Be brief."
        self.model, self.tools, self.order, self.spelling = "m", 0, 0, 0
        self.session: str | None = None
        self.into: str | None = None
        self.held = False
        self.clients = [self._open(), self._open()]
        self.worker = 0

    @property
    def client(self) -> Any:
        return self.clients[self.worker]

    def _open(self) -> Any:
        client = httpx2.Client(base_url="http://localhost", transport=httpx2.MockTransport(self._respond))
        return hitherto.record(client, self.store, **self._recording)

    def close(self) -> None:
        for client in self.clients:
            hitherto.recording(client).close()
            client.close()

    def _respond(self, request: Any) -> Any:
        if self._reply is None:
            return httpx2.Response(500, json={"error": {"message": "no"}})
        return httpx2.Response(200, json=self._reply)

    @property
    def history(self) -> list[Json]:
        return self.threads[self.at]

    def do(self, step: str, n: int) -> None:
        getattr(self, f"do_{step}")(n)

    # -- requests

    def do_ask(self, n: int) -> None:
        self.history.append(self._said(WORDS[n % len(WORDS)]))
        self._turn(n)

    def do_tool(self, n: int) -> None:
        """The model asks for tools, is told their results, and answers."""
        self.history.append(self._said(f"look {n}"))
        names = [f"read{i}" for i in range(1 + n % 2)]
        self._answered += 1
        ids = [f"call_{self._answered}_{i}" for i in range(len(names))]
        self._post(self._calls(names, ids))
        self.history.extend(self._as_sent_back(self._calls(names, ids), n))
        self.history.extend(self._results(names, ids, n))
        self._turn(n)

    def do_thought(self, n: int) -> None:
        """The model thinks before it answers; a client may send the thought back, or leave it out."""
        self.history.append(self._said(WORDS[n % len(WORDS)]))
        self._turn(n, thought="hm")

    def do_refused(self, n: int) -> None:
        """The provider has an error. The client leaves the question in its history, or takes it back."""
        self.history.append(self._said(WORDS[n % len(WORDS)]))
        self._post(None)
        if n % 2:
            self.history.pop()

    def do_again(self, n: int) -> None:
        """The last question is asked once more, with another answer or the same."""
        while self.history and self._is_answer(self.history[-1]):
            self.history.pop()
        if self.history:
            self._turn(n)

    def do_question_twice(self, n: int) -> None:
        """Two questions, one after the other, before there is an answer."""
        self.history.append(self._said("first"))
        self.do_ask(n)

    def do_side(self, n: int) -> None:
        """A request beside the conversation: with a prompt of its own, of the last message or of all."""
        kept, self.system = self.system, "Give it a title."
        self.threads.append(copy.deepcopy(self.history) if n % 2 else [])
        before, self.at = self.at, len(self.threads) - 1
        self.do_ask(n)
        if n % 3:
            self.threads.pop()
        self.at, self.system = before, kept

    def _turn(self, n: int, thought: str | None = None) -> None:
        self._answered += 1
        answer = self._answer(ANSWERS[n % len(ANSWERS)], thought)
        self._post(answer)
        self.history.extend(self._as_sent_back(answer, n))

    def _post(self, answer: Json) -> None:
        self._reply = answer
        headers = {} if self.session is None else {"x-claude-code-session-id": self.session}
        path = PATHS[self.dialect].format(model=self.model)
        with nullcontext() if self.into is None else hitherto.into(self.store.ensure(self.into)):
            try:
                self.client.post(path, content=self._body(), headers=headers)
            except HithertoError:  # the conversation was purged, say: both ways say so, or the stores differ
                self._answered += 1

    # -- what clients do to their histories

    def do_fork(self, n: int) -> None:
        self.threads.append(copy.deepcopy(self.history[: max(1, len(self.history) - n)]))
        self.at = len(self.threads) - 1

    def do_back(self, n: int) -> None:
        self.at = n % len(self.threads)

    def do_new(self, n: int) -> None:
        self.threads.append([])
        self.at = len(self.threads) - 1
        self.do_ask(n)

    def do_trim(self, n: int) -> None:
        del self.history[: min(n, len(self.history) - 1) if self.history else 0]

    def do_edit(self, n: int) -> None:
        if self.history:
            self.history[n % len(self.history)] = self._said(f"edited {n}")

    def do_edit_answer(self, n: int) -> None:
        for at in reversed(range(len(self.history))):
            if self._is_answer(self.history[at]):
                self.history[at] = self._plain_answer(f"edited {n}")
                return

    def do_note(self, n: int) -> None:
        """A system message in the middle of a history, where there is such a thing."""
        if self.dialect.startswith("openai"):
            self.history.append({"role": "system", "content": f"note {n % 2}"})

    # -- what happens in the store

    def _conversations(self) -> list[Any]:
        return sorted(self.store.conversations().items, key=lambda info: info.created_at)

    def do_delete(self, n: int) -> None:
        for info in self._conversations()[-1:]:
            found = list(self.store.messages(conversation=info.id))
            if found:
                self.store.delete([found[n % len(found)].id], recursive=True)

    def do_purge(self, n: int) -> None:
        found = self._conversations()
        if found and n % 2:
            self.store.purge(found[n % len(found)].id, reason="user-requested")

    def do_append(self, n: int) -> None:
        """Another program goes on with the conversation."""
        for info in self._conversations()[-1:]:
            talk = self.store.conversation(info.id)
            talk.append(Message.user(WORDS[n % len(WORDS)]) if n % 2 else Message.assistant("yes"))

    def do_reopen(self, n: int) -> None:
        """The recording ends, and another one begins."""
        hitherto.recording(self.client).close()
        self.client.close()
        self.clients[self.worker] = self._open()

    def do_worker(self, n: int) -> None:
        """Another client, with a recording of its own, goes on."""
        self.worker = n % 2

    def do_held(self, n: int) -> None:
        """The provider has the history, too, and the request names where it goes on."""
        self.held = True
        self.do_ask(n)
        self.held = False

    def do_twins(self, n: int) -> None:
        """Two people begin alike, and are answered alike. The first one goes on."""
        self.do_new(n)
        first = self.at
        self.do_new(n)
        self.at = first
        self.do_ask(n)

    def do_answer_elsewhere(self, n: int) -> None:
        """Another program writes the last question and its answer once more, on a branch or as another root."""
        for info in self._conversations()[-1:]:
            talk = self.store.conversation(info.id)
            path = list(talk.thread())
            if not path:
                return
            at = path[max(0, len(path) - 3)].parent
            branch = talk.fork(at=at) if at is not None else talk.subagent("copy", f"run{n}")
            branch.extend([Message(m.role, m.blocks, raw=m.raw, extra=m.extra) for m in path[-3:]])

    # -- what a request is sent with

    def do_system(self, n: int) -> None:
        self.system = (None, "Be brief.", "Be kind.")[n % 3]

    def do_model(self, n: int) -> None:
        self.model = f"m{n % 2}"

    def do_tools(self, n: int) -> None:
        self.tools = n % 3

    def do_session(self, n: int) -> None:
        self.session = (None, "one", "two")[n % 3]

    def do_into(self, n: int) -> None:
        self.into = (None, "ann", "bob")[n % 3]

    def do_order(self, n: int) -> None:
        self.order = n

    def do_spelling(self, n: int) -> None:
        self.spelling = n

    def _body(self) -> bytes:
        """The fields in any order, the history among them, and with blanks or without."""
        lead = [{"role": "system", "content": self.system}] if self.system and self.dialect == "openai-chat" else []
        fields: list[tuple[str, Json]] = [(FIELDS[self.dialect], [*lead, *self.history])]
        prompt = {"openai-responses": "instructions", "anthropic": "system"}.get(self.dialect)
        if self.dialect == "gemini" and self.system:
            fields.append(("systemInstruction", {"parts": [{"text": self.system}]}))
        elif prompt and self.system:
            fields.append((prompt, self.system))
        if self.tools:
            fields.append(("tools", [{"name": f"t{n}", "input": [{"role": "user"}]} for n in range(self.tools)]))
        if self.held:
            name, value = HELD.get(self.dialect, ("store", True))
            fields.append((name, value.format(self._answered) if isinstance(value, str) else value))
        fields += [] if self.dialect == "gemini" else [("model", self.model)]
        turned = fields[self.order % len(fields) :] + fields[: self.order % len(fields)]
        forms: list[Json] = [{"separators": (",", ":"), "ensure_ascii": False}, {}, {"indent": 2}]
        return json.dumps(dict(turned), **forms[self.order // 4 % 3]).encode()

    # -- the words of each dialect

    def _said(self, words: str) -> Json:
        if self.dialect == "gemini":
            return {"role": "user", "parts": [{"text": words}]}
        return {"role": "user", "content": words}

    def _is_answer(self, entry: Json) -> bool:
        return entry.get("role") in ("assistant", "model") or entry.get("type") in ("function_call", "reasoning")

    def _plain_answer(self, words: str) -> Json:
        if self.dialect == "gemini":
            return {"role": "model", "parts": [{"text": words}]}
        if self.dialect == "openai-responses":
            content = [{"type": "output_text", "text": words, "annotations": []}]
            return {"type": "message", "role": "assistant", "content": content}
        return {"role": "assistant", "content": words}

    def _answer(self, words: str, thought: str | None) -> Json:
        """The response of a provider."""
        id, said = f"r{self._answered}", self._plain_answer(words)
        if self.dialect == "openai-chat":
            said |= {"refusal": None} | ({"reasoning_content": thought} if thought else {})
            return {"id": id, "model": "m", "choices": [{"index": 0, "finish_reason": "stop", "message": said}]}
        if self.dialect == "openai-responses":
            before = [{"type": "reasoning", "id": f"rs_{id}", "summary": []}] if thought else []
            return {"id": id, "status": "completed", "output": [*before, {"id": f"msg_{id}", **said}]}
        if self.dialect == "anthropic":
            before = [{"type": "thinking", "thinking": thought, "signature": id}] if thought else []
            content = [*before, {"type": "text", "text": words}]
            return {"id": id, "type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"}
        parts: list[Json] = [{"text": thought, "thought": True}] if thought else []
        said = {"role": "model", "parts": [*parts, {"text": words}]}
        return {"candidates": [{"content": said, "finishReason": "STOP"}], "responseId": id}

    def _calls(self, names: list[str], ids: list[str]) -> Json:
        pairs = list(zip(names, ids, strict=True))
        answer = self._answer("let me see", None)
        if self.dialect == "openai-chat":
            calls = [
                {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}} for name, id in pairs
            ]
            answer["choices"][0]["message"]["tool_calls"] = calls
        elif self.dialect == "openai-responses":
            answer["output"] = [
                {"type": "function_call", "call_id": id, "name": name, "arguments": "{}"} for name, id in pairs
            ]
        elif self.dialect == "anthropic":
            answer["content"] += [{"type": "tool_use", "id": id, "name": name, "input": {}} for name, id in pairs]
        else:
            parts = answer["candidates"][0]["content"]["parts"]
            parts += [{"functionCall": {"name": name, "args": {}}} for name in names]
        return answer

    def _results(self, names: list[str], ids: list[str], n: int) -> list[Json]:
        pairs = list(zip(names, ids, strict=True))
        text = WORDS[n % len(WORDS)]
        if self.dialect == "openai-chat":
            return [{"role": "tool", "tool_call_id": id, "content": text} for id in ids]
        if self.dialect == "openai-responses":
            return [{"type": "function_call_output", "call_id": id, "output": text} for id in ids]
        if self.dialect == "anthropic":
            content = [{"type": "tool_result", "tool_use_id": id, "content": text} for id in ids]
            return [{"role": "user", "content": content}]
        parts = [{"functionResponse": {"name": name, "response": {"result": text}}} for name, _ in pairs]
        return [{"role": "user", "parts": parts}]

    def _as_sent_back(self, answer: Json, n: int) -> list[Json]:
        """The entries that a client makes of an answer: as they came, or in words of its own."""
        found = copy.deepcopy(self._entries(answer))
        way = (self.spelling + n // 4) % 4
        if way == 1:
            found = [_without_thoughts(entry) for entry in found if entry.get("type") != "reasoning"]
        elif way == 2:
            found = [_without_ids(entry) for entry in found]
        elif way == 3 and self.dialect == "gemini":  # as Google's SDK keeps an answer that was streamed
            found = [{"role": "model", "parts": [part]} for entry in found for part in entry["parts"]]
        return found

    def _entries(self, answer: Json) -> list[Json]:
        if self.dialect == "openai-chat":
            return [answer["choices"][0]["message"]]
        if self.dialect == "openai-responses":
            return list(answer["output"])
        if self.dialect == "anthropic":
            return [{"role": "assistant", "content": answer["content"]}]
        return [answer["candidates"][0]["content"]]


def _without_thoughts(entry: Json) -> Json:
    entry.pop("reasoning_content", None)
    for name in ("content", "parts"):
        if isinstance(entry.get(name), list):
            entry[name] = [part for part in entry[name] if part.get("type") != "thinking" and not part.get("thought")]
    return entry


def _without_ids(entry: Json) -> Json:
    return {name: value for name, value in entry.items() if value is not None and name not in ("id", "annotations")}
