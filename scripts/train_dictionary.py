"""Train the zstd dictionary that the package ships.

A message is small, and a small text compresses badly: there is nothing before it that it could repeat. A dictionary is
that something before: 32 KiB of what conversations with language models say again and again, from " in the " to
"finish_reason", known to both ends and therefore never stored.

The conversations it is trained on are made up here, by a fixed seed, of sentences and code written for the purpose
(`dictionary_text.txt`), dressed as each provider dresses them and encoded as the store encodes them. So nobody's words
are in it, and the same script makes the same bytes, given the zstd that requirements/dev.txt pins.

    python scripts/train_dictionary.py            # write the dictionary
    python scripts/train_dictionary.py --check    # is the one in the package the one that this makes?

A released dictionary never changes: what was written with it is read with it. A better one gets the next number and
another id, and lies beside the old one.
"""

import argparse
import hashlib
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import zstandard

from hitherto._engine.bodies import body_of, encode
from hitherto.model import Block, Message, Usage

HERE = Path(__file__).resolve().parent
DICTIONARY = HERE.parent / "src" / "hitherto" / "_engine" / "dictionary-1.zstd"
DICTIONARY_ID = 0x48544801  # "HTH" and the number; zstd leaves 32768 to 2**31 - 1 to private use
SIZE = 32 * 1024

SEED = 20_251_116
SAMPLES = 8_000
# Chosen by measuring on texts that are not in here (packages' descriptions, licences, the standard library's code and
# documentation). The level is that of single messages: up to level 5 zstd takes the dictionary's statistics as they
# are, and with those of another level messages get 2 % larger.
SEGMENT, MATCH, FREQUENCY_BITS, LEVEL = 256, 8, 20, 1

T = TypeVar("T")


class Text:
    """The writing in `dictionary_text.txt`, handed out at random with its places filled."""

    def __init__(self, source: str, seed: int) -> None:
        self._random = random.Random(seed).random  # the one method whose sequence Python promises to keep
        self._sections: dict[str, list[str]] = {}
        for part in re.split(r"^=== ", source, flags=re.MULTILINE)[1:]:
            head, _, rest = part.partition("\n")
            kind, name = head.split()
            items = rest.splitlines() if kind == "lines" else rest.split("\n%%\n")
            self._sections[name] = [item.strip("\n") for item in items if item.strip()]

    def number(self, low: int, high: int) -> int:
        return low + int(self._random() * (high - low + 1))

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def choose(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def token(self, length: int, alphabet: str = "0123456789abcdef") -> str:
        return "".join([self.choose(alphabet) for _ in range(length)])

    def item(self, section: str) -> str:
        return self.fill(self.choose(self._sections[section]))

    def fill(self, template: str) -> str:
        return re.sub("~([A-Za-z0-9]+)~", self._filling, template)

    def items(self, section: str, low: int, high: int, joint: str = " ") -> str:
        return joint.join([self.item(section) for _ in range(self.number(low, high))])

    def run(self, section: str, length: int) -> str:
        """Neighbours, as they stand: words and phrases that have no sentence around them."""
        items = " ".join(self._sections[section]).split(" ")
        start = self.number(0, max(0, len(items) - length))
        return " ".join(items[start : start + length])

    def uuid(self) -> str:
        return "-".join([self.token(n) for n in (8, 4, 4, 4, 12)])

    def _filling(self, place: re.Match[str]) -> str:
        match place[1]:
            case "number":
                return str(self.number(1, 10 ** self.number(1, 3)))
            case "Class":
                return "".join([self.item("noun").capitalize() for _ in range(self.number(1, 2))])
            case "UPPER":
                return self.item("name").upper()
            case "hex40":
                return self.token(40)
            case "hex7":
                return self.token(7)
            case "uuid":
                return self.uuid()
            case "date":
                return f"202{self.number(4, 7)}-{self.number(1, 12):02}-{self.number(1, 28):02}"
            case "time":
                return f"{self.number(0, 23):02}:{self.number(0, 59):02}:{self.number(0, 59):02}"
            case section:
                return self.item(section)


# What people and models write.

LANGUAGES = (
    "german", "french", "spanish", "portuguese", "italian", "dutch", "russian", "chinese", "japanese", "korean",
)  # fmt: skip
CODE = (
    ("python", "python"), ("python", "py"), ("python", "python"), ("javascript", "javascript"),
    ("javascript", "typescript"), ("javascript", "tsx"), ("markup", "html"), ("config", "yaml"), ("compiled", "go"),
    ("compiled", "rust"), ("compiled", "java"), ("compiled", "cpp"), ("sql", "sql"), ("shell", "bash"),
)  # fmt: skip


def fence(text: Text) -> str:
    section, language = text.choose(CODE)
    code = text.items("shell", 1, 3, "\n") if section == "shell" else text.item(section)
    return f"```{language}\n{code}\n```"


def headed(text: Text) -> str:
    return text.items("markdown", 1, 4, "\n")


def bullets(text: Text) -> str:
    mark = text.choose(("- ", "* ", "1. ", "   - "))
    return "\n".join([mark + text.item("answer") for _ in range(text.number(2, 4))])


def question(text: Text) -> str:
    said = text.items("ask", 1, 3)
    if text.chance(0.2):
        said += "\n\n" + text.choose((fence, output))(text)
    return said


def answer(text: Text) -> str:
    """Markdown as assistants write it: a sentence, a list, some code, an offer."""
    parts = [text.items("answer", 1, 3)]
    parts += [text.choose((fence, bullets, headed, paragraph))(text) for _ in range(text.number(0, 4))]
    return "\n\n".join(parts)


def paragraph(text: Text) -> str:
    return text.items(text.choose(("answer", "prose")), 2, 4)


def essay(text: Text) -> str:
    """What is said everywhere, of whatever one speaks: prose, and the words that hold prose together."""
    parts = [text.items("prose", 1, 2)]
    sections = ("phrases", "words", "words")
    parts += [text.run(text.choose(sections), text.number(20, 60)) for _ in range(text.number(1, 3))]
    return " ".join(parts)


def foreign(text: Text) -> str:
    return text.items(text.choose(LANGUAGES), 2, 4)


def thought(text: Text) -> str:
    return text.items("think", 2, 6, text.choose((" ", "\n\n")))


def output(text: Text) -> str:
    """What a tool answers."""
    kind = text.number(0, 9)
    if kind < 4:
        return text.item("output")
    if kind == 4:
        return text.items("log", 3, 10, "\n")
    if kind == 5:
        return text.items("file", 4, 12, "\n")
    if kind == 6:
        return json.dumps([row(text) for _ in range(text.number(2, 6))], indent=text.choose((None, None, 2)))
    section, _ = text.choose(CODE)
    if kind == 7:
        lines = text.item(section).splitlines()
        return "\n".join([f"{number:6}\t{line}" for number, line in enumerate(lines, text.number(1, 90))])
    if kind == 8:
        return "\n".join([f"{text.item('file')}:{n}:    {text.item('think')}" for n in range(1, text.number(2, 8))])
    return text.item(section)


def row(text: Text) -> dict[str, object]:
    fields: dict[str, object] = {
        "id": text.number(1, 99_999), "name": text.item("name"), "title": text.items("noun", 2, 4),
        "path": text.item("file"), "url": f"https://www.example.com/{text.item('name')}", "type": text.item("noun"),
        "status": text.choose(("success", "error", "active", "pending", "completed", "failed")),
        "description": text.item("prose"), "score": text.number(0, 10**6) / 10**6, "content": text.item("answer"),
        "snippet": text.item("prose"), "created_at": text.fill("~date~T~time~Z"), "enabled": True,
        "message": text.item("answer"), "error": None, "results": [], "data": {}, "total": text.number(1, 99),
        "updated_at": text.fill("~date~T~time~.~number~Z"), "email": f"{text.item('name')}@example.com",
        "count": text.number(1, 9), "date": text.fill("~date~"), "value": text.number(1, 999),
        "metadata": {"source": text.item("file")}, "tags": [],
    }  # fmt: skip
    return {key: value for key, value in fields.items() if text.chance(0.3)}


def call(text: Text) -> tuple[str, dict[str, object]]:
    """A tool, and what a model asks of it."""
    path, code = text.item("file"), text.choose(("python", "javascript", "config"))
    calls: tuple[tuple[str, Callable[[], dict[str, object]]], ...] = (
        ("bash", lambda: {"command": text.item("shell"), "description": text.item("think"), "timeout": 120000}),
        ("bash", lambda: {"command": text.item("shell")}),
        ("Bash", lambda: {"command": text.item("shell"), "description": "Run the tests"}),
        ("shell", lambda: {"command": ["bash", "-lc", text.item("shell")], "workdir": "/home/user/project"}),
        ("read_file", lambda: {"path": path}),
        ("Read", lambda: {"file_path": f"/home/user/project/{path}", "offset": text.number(1, 500), "limit": 100}),
        ("write_file", lambda: {"path": path, "content": text.item(code)}),
        ("Write", lambda: {"file_path": f"/home/user/project/{path}", "content": text.item(code)}),
        ("Edit", lambda: {"file_path": path, "old_string": text.item(code)[:200], "new_string": text.item(code)}),
        ("str_replace_based_edit_tool", lambda: {"command": "view", "path": path, "view_range": [1, 50]}),
        ("str_replace_editor", lambda: {"command": "str_replace", "path": path, "old_str": "", "new_str": ""}),
        ("apply_patch", lambda: {"input": f"*** Begin Patch\n*** Update File: {path}\n@@\n-\n+\n*** End Patch"}),
        ("list_directory", lambda: {"path": "src", "recursive": False}),
        ("search", lambda: {"query": text.items("noun", 2, 4), "limit": 10}),
        ("Grep", lambda: {"pattern": text.item("name"), "path": "src/", "output_mode": "content", "-n": True}),
        ("Glob", lambda: {"pattern": "**/*.py"}),
        ("web_search", lambda: {"query": text.item("ask")[:60], "max_results": 5}),
        ("web_fetch", lambda: {"url": f"https://www.example.com/{text.item('name')}", "prompt": text.item("ask")}),
        ("get_weather", lambda: {"location": "San Francisco, CA", "city": "Paris", "unit": "celsius"}),
        ("get_user", lambda: {"user_id": text.number(1, 9999), "name": text.item("name")}),
        ("run_sql", lambda: {"query": text.item("sql"), "database": text.item("name")}),
        ("send_email", lambda: {"to": "user@example.com", "subject": text.item("noun"), "body": text.item("prose")}),
        ("TodoWrite", lambda: {"todos": [{"content": text.item("think"), "status": "in_progress", "id": "1"}]}),
        ("final_result", lambda: row(text)),
    )  # fmt: skip
    name, arguments = text.choose(calls)
    return name, arguments()


# How each provider dresses it. The shapes are those of the public APIs; all ids and numbers are made up.

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def openai_chat(text: Text, said: str | None, name: str | None, arguments: object) -> tuple[str, object]:
    id = "call_" + text.token(24, LETTERS)
    message: dict[str, object] = {"role": "assistant", "content": said, "refusal": None, "annotations": []}
    if name:
        function = {"name": name, "arguments": json.dumps(arguments)}
        message["tool_calls"] = [{"id": id, "type": "function", "function": function}]
    if text.chance(0.4):
        return id, message
    given, made = text.number(20, 20_000), text.number(5, 2_000)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls" if name else "stop"}
    return id, {
        "id": "chatcmpl-" + text.token(29, LETTERS),
        "object": "chat.completion",
        "created": 1_700_000_000 + text.number(0, 10**8),
        "model": text.choose(("gpt-4o-2024-08-06", "gpt-4o-mini-2024-07-18", "gpt-4.1-2025-04-14", "gpt-5", "o3-mini")),
        "choices": [choice],
        "usage": {
            "prompt_tokens": given,
            "completion_tokens": made,
            "total_tokens": given + made,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": text.choose((0, 64, 128)),
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
        "service_tier": "default",
        "system_fingerprint": "fp_" + text.token(10),
    }


def openai_responses(text: Text, said: str | None, name: str | None, arguments: object) -> tuple[str, object]:
    id = "call_" + text.token(24, LETTERS)
    items: list[object] = []
    if text.chance(0.4):
        summary = [{"type": "summary_text", "text": "**Considering the options**\n\n" + thought(text)}]
        items.append({"id": "rs_" + text.token(48), "type": "reasoning", "summary": summary, "encrypted_content": None})
    if said:
        content = [{"type": "output_text", "text": said, "annotations": [], "logprobs": []}]
        items.append({
            "id": "msg_" + text.token(48), "type": "message", "status": "completed", "role": "assistant",
            "content": content,
        })  # fmt: skip
    if name:
        items.append({
            "id": "fc_" + text.token(48), "type": "function_call", "status": "completed",
            "arguments": json.dumps(arguments), "call_id": id, "name": name,
        })  # fmt: skip
    if text.chance(0.5):
        return id, items
    given, made = text.number(20, 20_000), text.number(5, 2_000)
    return id, {
        "id": "resp_" + text.token(48),
        "object": "response",
        "created_at": 1_700_000_000 + text.number(0, 10**8),
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": text.choose((None, text.item("ask"))),
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": text.choose(("gpt-4o-2024-08-06", "gpt-4.1-mini-2025-04-14", "gpt-5-2025-08-07", "gpt-5.1")),
        "output": items,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": text.choose((None, "medium", "low", "high")), "summary": text.choose((None, "auto"))},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [declared(text)] if text.chance(0.5) else [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + made,
        },
        "user": None,
        "metadata": {},
    }


def declared(text: Text) -> dict[str, object]:
    """A tool as it is shown to a model."""
    parameters = {
        text.item("name"): {"type": "string", "description": f"The {text.item('noun')} to {text.item('verb')}"},
        text.item("name"): {"type": "integer", "description": f"The number of {text.item('noun')}s", "default": 10},
        text.item("name"): {"type": "array", "items": {"type": "string"}, "title": text.item("noun").capitalize()},
        text.item("name"): {"anyOf": [{"type": "string"}, {"type": "null"}], "enum": ["asc", "desc"]},
    }
    schema = {
        "type": "object", "properties": parameters, "required": [next(iter(parameters))], "additionalProperties": False,
        "$schema": "http://json-schema.org/draft-07/schema#",
    }  # fmt: skip
    return {
        "type": "function",
        "name": call(text)[0],
        "description": text.item("answer"),
        "parameters": schema,
        "strict": True,
    }


def anthropic(text: Text, said: str | None, name: str | None, arguments: object) -> tuple[str, object]:
    id = "toolu_01" + text.token(22, LETTERS)
    content: list[object] = []
    if text.chance(0.3):
        signature = text.token(120, LETTERS + "+/")
        content.append({"type": "thinking", "thinking": thought(text), "signature": signature})
    if said:
        part: dict[str, object] = {"type": "text", "text": said}
        if text.chance(0.3):
            part["citations"] = None
        if text.chance(0.2):
            part["cache_control"] = {"type": "ephemeral"}
        content.append(part)
    if name:
        content.append({"type": "tool_use", "id": id, "name": name, "input": arguments})
    if text.chance(0.4):
        return id, {"role": "assistant", "content": content}
    return id, {
        "id": "msg_01" + text.token(22, LETTERS),
        "type": "message",
        "role": "assistant",
        "model": text.choose(("claude-sonnet-4-20250514", "claude-sonnet-4-5-20250929", "claude-3-5-haiku-20241022",
                              "claude-opus-4-1-20250805", "claude-haiku-4-5-20251001")),
        "content": content,
        "stop_reason": "tool_use" if name else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": text.number(3, 20_000),
            "cache_creation_input_tokens": text.choose((0, text.number(1, 9_999))),
            "cache_read_input_tokens": text.choose((0, text.number(1, 99_999))),
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": text.number(5, 2_000),
            "service_tier": "standard",
            "server_tool_use": text.choose((None, {"web_search_requests": 0})),
        },
    }  # fmt: skip


def gemini(text: Text, said: str | None, name: str | None, arguments: object) -> tuple[str, object]:
    id = text.uuid()
    parts: list[object] = []
    if text.chance(0.3):
        parts.append({"text": "**Considering the Request**\n\n" + thought(text), "thought": True})
    if said:
        parts.append({"text": said, "thoughtSignature": text.token(80, LETTERS + "+/")} if text.chance(0.2)
                     else {"text": said})  # fmt: skip
    if name:
        parts.append({"functionCall": {"name": name, "args": arguments}})
    if text.chance(0.4):
        return id, {"role": "model", "parts": parts}
    harms = ("HARASSMENT", "HATE_SPEECH", "SEXUALLY_EXPLICIT", "DANGEROUS_CONTENT")
    given, made, thoughts = text.number(5, 9_999), text.number(5, 2_000), text.number(0, 500)
    candidate: dict[str, object] = {
        "content": {"parts": parts, "role": "model"}, "finishReason": "STOP", "index": 0,
        "avgLogprobs": -text.number(1, 10**6) / 10**6,
    }  # fmt: skip
    if text.chance(0.2):
        candidate["safetyRatings"] = [{"category": f"HARM_CATEGORY_{h}", "probability": "NEGLIGIBLE"} for h in harms]
    if text.chance(0.1):
        web = {"uri": "https://www.example.com/" + text.item("name"), "title": text.item("noun")}
        segment = {"startIndex": 0, "endIndex": text.number(50, 500), "text": text.item("prose")}
        candidate["groundingMetadata"] = {
            "webSearchQueries": [text.item("noun")],
            "groundingChunks": [{"web": web}],
            "groundingSupports": [{"segment": segment, "groundingChunkIndices": [0]}],
        }
    return id, {
        "candidates": [candidate],
        "usageMetadata": {
            "promptTokenCount": given,
            "candidatesTokenCount": made,
            "totalTokenCount": given + made + thoughts,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": given}],
            "thoughtsTokenCount": thoughts,
        },
        "modelVersion": text.choose(("gemini-2.5-flash", "gemini-2.5-pro", "gemini-2.0-flash")),
        "responseId": text.token(22, LETTERS),
    }


PROVIDERS = (openai_chat, openai_responses, anthropic, gemini)


# Messages, as the store gets them.


def asked(text: Text) -> Message:
    said = text.choose((question, question, question, foreign, essay))(text)
    raws: tuple[object, ...] = (
        None, None, None,
        {"role": "user", "content": said},
        {"role": "user", "content": [{"type": "text", "text": said, "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": [{"type": "input_text", "text": said}], "type": "message"},
        {"role": "user", "parts": [{"text": said}]},
    )  # fmt: skip
    return Message.user(said, raw=text.choose(raws))


def answered(text: Text) -> Message:
    """An assistant's turn: thoughts, words, a call, or several of these; sometimes with the provider's own JSON."""
    said = text.choose((answer, answer, answer, paragraph, essay, essay, foreign))(text)
    name: str | None = None
    arguments: object = None
    if text.chance(0.4):
        name, arguments = call(text)
        said = text.choose(("", text.item("answer")))
    id, raw = text.choose(PROVIDERS)(text, said or None, name, arguments)
    blocks = [Block.thinking(thought(text), signature=text.token(60, LETTERS))] if text.chance(0.15) else []
    blocks += [Block.text(said)] if said else []
    blocks += [Block.tool_call(id, name, arguments)] if name else []
    usage = Usage(text.number(10, 30_000), text.number(5, 2_000), text.choose((0, 0, text.number(1, 9_999))))
    return Message.assistant(
        blocks, raw=raw if text.chance(0.35) else None, usage=usage if text.chance(0.7) else None
    )  # fmt: skip


def returned(text: Text) -> Message:
    id = text.choose((f"call_{text.token(24, LETTERS)}", f"toolu_01{text.token(22, LETTERS)}"))
    return Message.tool_result(id, text.choose((output, output, output, essay))(text), error=text.chance(0.1))


def handed_back(text: Text) -> Message:
    """A tool's answer with the provider's own JSON."""
    id, said, name = "call_" + text.token(24, LETTERS), output(text), call(text)[0]
    tool_use = "toolu_01" + text.token(22, LETTERS)
    result = {"type": "tool_result", "tool_use_id": tool_use, "content": said, "is_error": text.chance(0.1)}
    parts = {"type": "tool_result", "tool_use_id": tool_use, "content": [{"type": "text", "text": said}]}
    raws: tuple[object, ...] = (
        {"role": "tool", "tool_call_id": id, "content": said},
        {"type": "function_call_output", "call_id": id, "output": said},
        {"role": "user", "content": [result]},
        {"role": "user", "content": [parts]},
        {"role": "user", "parts": [{"functionResponse": {"name": name, "response": {"result": said}}}]},
    )
    blocks = (Block("content", said, id=id),)
    return Message("tool_result", blocks, raw=text.choose(raws))


def corpus(seed: int, count: int) -> Iterator[bytes]:
    """Messages as they are stored, the same ones for the same seed."""
    text = Text((HERE / "dictionary_text.txt").read_text(encoding="utf-8"), seed)
    for _ in range(count):
        make = text.choose((asked, asked, answered, answered, answered, answered, returned, returned, handed_back))
        yield encode(body_of(make(text), text.choose((0, 1, 1))))


def train() -> bytes:
    samples: list[bytes | bytearray | memoryview] = list(corpus(SEED, SAMPLES))
    trained = zstandard.train_dictionary(
        SIZE,
        samples,
        k=SEGMENT,
        d=MATCH,
        f=FREQUENCY_BITS,
        split_point=1.0,
        accel=1,
        level=LEVEL,
        dict_id=DICTIONARY_ID,
        threads=0,  # with threads the outcome would depend on who is ready first
    )
    return trained.as_bytes()


def described() -> Iterator[bytes]:
    """Texts that the dictionary knows nothing of: the project's own pages and modules, cut into messages."""
    root = HERE.parent
    for path in [root / "README.md", *sorted(root.glob("docs/**/*.md")), *sorted(root.glob("src/hitherto/**/*.py"))]:
        page = path.read_text(encoding="utf-8")
        for start in range(0, len(page), 2_000):
            yield encode(body_of(Message.user(page[start : start + 2_000]), 0))


def report(dictionary: bytes) -> None:
    """How small messages become alone, without and with the dictionary."""
    plain = zstandard.ZstdCompressor(level=1)
    knowing = zstandard.ZstdCompressor(level=1, dict_data=zstandard.ZstdCompressionDict(dictionary))
    # The made-up conversations flatter the dictionary, which was trained on their like; the project's own texts do not.
    for name, bodies in (("conversations of another seed", corpus(SEED + 1, 1_000)), ("this project", described())):
        sizes = [(len(b), len(plain.compress(b)), len(knowing.compress(b))) for b in bodies if len(b) > 512]
        whole, without, with_it = (sum(column) for column in zip(*sizes, strict=True))
        print(f"{name}: {len(sizes)} messages, ratio {whole / without:.2f} without, {whole / with_it:.2f} with")


def main() -> int:
    parser = argparse.ArgumentParser(description="Train the zstd dictionary that the package ships.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the package has another one")
    arguments = parser.parse_args()
    made = train()
    same = DICTIONARY.exists() and DICTIONARY.read_bytes() == made
    if not arguments.check:
        DICTIONARY.write_bytes(made)
    print(f"{DICTIONARY.name}: id {DICTIONARY_ID}, {len(made)} bytes, sha256 {hashlib.sha256(made).hexdigest()}")
    report(made)
    if arguments.check and not same:
        print("error: the dictionary in the package is not the one that this script makes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
