"""Open WebUI's and LibreChat's exports: trees, what stands in HTML inside of texts, nested messages.

Requirements: F1.
"""

import json
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hitherto
from hitherto import Store, formats
from hitherto.model import Usage

from ..support.imports import bring_in, bring_in_part, native, only, path_of, put_json, threads

# -- Open WebUI


@pytest.fixture
def store() -> Iterator[Store]:
    with hitherto.open("memory:") as store:
        yield store


def message(
    id: str, parent: str | None, role: str, content: str, at: int = 1_750_000_000, **more: object
) -> dict[str, Any]:
    return {"id": id, "parentId": parent, "childrenIds": [], "role": role, "content": content, "timestamp": at, **more}


def chat(*messages: dict[str, Any], head: str = "", **more: object) -> dict[str, Any]:
    history = {"messages": {one["id"]: one for one in messages}, "currentId": head or messages[-1]["id"]}
    inner = {"title": "Tides", "models": ["m"], "history": history, "messages": [], "params": {"system": "Be brief."}}
    return {"id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "title": "Tides", "chat": inner | more,
            "created_at": 1_750_000_000, "archived": True}  # fmt: skip


def details(kind: str, inside: str, **about: str) -> str:
    attributes = " ".join(f'{name}="{escape(value)}"' for name, value in about.items())
    return f'<details type="{kind}" {attributes}>\n<summary>Done</summary>\n{inside}\n</details>\n'


def test_reasoning_and_tools_are_taken_out_of_the_text(store: Store, tmp_path: Path) -> None:
    asked, found = json.dumps('{"q": "a<b"}'), json.dumps("deep")
    content = (
        details("reasoning", "&gt; the moon\n&gt; pulls", done="true", duration="3")
        + "I look."
        + details("tool_calls", "", done="true", id="t1", name="look", arguments=asked, result=found)
        + details("code_interpreter", "```python\n1 &lt; 2\n```", output=json.dumps({"stdout": "True"}))
        + "It pulls.<details><summary>more</summary>plain HTML</details>"
    )  # fmt: skip
    image = [{"type": "image", "url": "data:image/png;base64,iVBORw=="}, {"type": "file", "id": "f1", "url": "/api/f1"}]
    usage = {"prompt_eval_count": 12, "eval_count": 3}
    body = chat(
        message("u", None, "user", "Why?", files=image), message("a", "u", "assistant", content, model="m", usage=usage)
    )
    bring_in(put_json(tmp_path / "f", [body]), store, "open-webui")
    [thread] = threads(only(store))
    assert thread == (
        "U:Why?", "A:(the moon\npulls)I look.C:look", "R:deep", "A:C:code_interpreter", 'R:{"stdout":"True"}',
        "A:It pulls.<details><summary>more</summary>plain HTML</details>",
    )  # fmt: skip
    messages = only(store).thread()
    assert [b.content for b in messages[0].blocks] == [b"\x89PNG", '{"type":"file","id":"f1","url":"/api/f1"}', "Why?"]
    assert messages[1].blocks[2].arguments == {"q": "a<b"}
    assert (messages[1].usage, messages[3].blocks[0].arguments) == (Usage(12, 3), "```python\n1 < 2\n```")
    assert (only(store).system_prompt, native(messages[1])["model"]) == ("Be brief.", "m")


def test_items_beside_the_text_go_first(store: Store, tmp_path: Path) -> None:
    output = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "moon"}]},
        {"type": "function_call", "call_id": "t1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t1", "output": [{"type": "input_text", "text": "deep"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It pulls."}]},
        7,
    ]
    answer = message("a", "u", "assistant", details("reasoning", "&gt; old"), output=output, error={"content": "cut"})
    bring_in(put_json(tmp_path / "f", chat(message("u", None, "user", "Why?"), answer)), store, "open-webui")
    assert path_of(only(store)) == ("U:Why?", "A:(moon)C:look", "R:deep", "A:It pulls.")
    assert only(store).thread()[-1].blocks[-1].type == "error"


def test_answers_of_several_models_are_branches(store: Store, tmp_path: Path) -> None:
    answers = [message(f"a{n}", "u", "assistant", f"t{n}", model=f"m{n}", modelIdx=n) for n in range(3)]
    body = chat(message("u", None, "user", "Why?"), *answers, head="a1")
    bring_in(put_json(tmp_path / "f", [body]), store, "open-webui")
    assert threads(only(store)) == {("U:Why?", f"A:t{n}") for n in range(3)}
    assert path_of(only(store)) == ("U:Why?", "A:t1")


def test_what_is_no_chat_is_said(store: Store, tmp_path: Path) -> None:
    report = bring_in_part(
        put_json(tmp_path / "f", [chat(message("u", None, "user", "Hi")), {"id": "x", "chat": {}}]), store
    )
    assert [one.name for one in report.unreadable] == ["f, entry 2"]


# -- LibreChat

NONE = "00000000-0000-0000-0000-000000000000"


def said(id: str, parent: str, text: str, *, user: bool = False, second: int = 0, **more: object) -> dict[str, Any]:
    at = f"2025-06-15T10:00:{second:02}.000Z"
    return {"messageId": id, "parentMessageId": parent, "text": text, "isCreatedByUser": user, "createdAt": at,
            "sender": "User" if user else "GPT", **more}  # fmt: skip


def talk(*messages: object, **more: object) -> dict[str, Any]:
    return {"conversationId": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "title": "Tides", "endpoint": "openAI",
            "exportAt": "10:00", "branches": True, "recursive": False,
            "options": {"model": "gpt-5", "promptPrefix": "Be brief."}, "messages": list(messages), **more}  # fmt: skip


def test_a_flat_export_keeps_branches_thoughts_and_calls(store: Store, tmp_path: Path) -> None:
    call = {"id": "t1", "name": "look", "args": '{"q":1}', "output": "deep"}
    content = [{"type": "think", "think": "moon"}, {"type": "text", "text": {"value": "I look."}},
               {"type": "tool_call", "tool_call": call}, {"type": "text", "text": "It pulls."},
               {"type": "odd", "x": 1}]  # fmt: skip
    body = talk(
        said("u", NONE, "Why?", user=True, files=[{"file_id": "f1"}]),
        said("a", "u", "", content=content, second=1, model="gpt-5-mini"),
        said("b", "u", "Wind.", second=2),
        said("v", "a", "Thanks", user=True, second=3),
    )
    bring_in(put_json(tmp_path / "f", body), store, "librechat")
    start = ("U:Why?",)
    assert threads(only(store)) == {
        (*start, "A:(moon)I look.C:look", "R:deep", "A:It pulls.", "U:Thanks"), (*start, "A:Wind."),
    }  # fmt: skip
    thread = only(store).thread()
    assert [b.type for b in thread[3].blocks] == ["content", "odd"]
    assert thread[0].blocks[1].content == '{"file_id":"f1"}'
    assert {c.setup.model for c in only(store).setups()} == {"gpt-5-mini"}
    assert only(store).setups()[0].setup.system_prompt == "Be brief."


def test_a_recursive_export_is_the_same_tree(store: Store, tmp_path: Path) -> None:
    def nest(found: dict[str, Any], *children: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in found.items() if name != "parentMessageId"} | {
            "children": list(children)
        }

    u, a, b, v = (
        said("u", NONE, "q", user=True),
        said("a", "u", "1"),
        said("b", "u", "2"),
        said("v", "a", "3", user=True),
    )
    bring_in(put_json(tmp_path / "flat", talk(u, a, b, v)), store, "librechat")
    nested = talk(nest(u, nest(a, nest(v)), nest(b)), recursive=True)
    assert formats.load(put_json(tmp_path / "nested", nested), store).messages == 0
    assert threads(only(store)) == {("U:q", "A:1", "U:3"), ("U:q", "A:2")}


def test_a_deeply_nested_export_needs_no_stack(store: Store, tmp_path: Path) -> None:
    inner: dict[str, Any] = said("m400", NONE, "end")
    for n in range(399, 0, -1):
        inner = {**said(f"m{n}", NONE, str(n)), "children": [inner]}
    bring_in(put_json(tmp_path / "f", talk(inner)), store, "librechat")
    assert len(only(store).thread()) == 400


PARENTS = st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 3)), min_size=1, max_size=9)


@settings(max_examples=15, deadline=None)
@given(PARENTS, st.booleans())
def test_every_message_of_any_tree_comes_in_once(shape: list[tuple[int, int]], webui: bool) -> None:
    if webui:
        body = chat(*(message(f"m{n}", f"m{parent}", "user", f"t{n}", 1 + at) for n, (parent, at) in enumerate(shape)))
    else:
        body = talk(
            *(said(f"m{n}", f"m{parent}", f"t{n}", user=True, second=at) for n, (parent, at) in enumerate(shape))
        )
    with tempfile.TemporaryDirectory() as folder, hitherto.open("memory:") as store:
        path = put_json(Path(folder, "f"), [body])
        formats.load(path, store)
        assert formats.load(path, store).messages == 0
        found = {m.text: m for m in store.messages()}
        assert len(found) == len(shape)
        for n, (parent, _) in enumerate(shape):
            above = found[f"t{n}"].parent
            assert above is None or above == found[f"t{parent}"].id
