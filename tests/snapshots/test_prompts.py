"""The system prompt in files of the shared form: other programs find it where they look for it, and nobody sends it
twice.

Requirements: A7, A10.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

import hitherto
from hitherto import Key, Message, formats
from hitherto.chat import Client, Config, new_client
from hitherto.errors import Conflict
from hitherto.snapshots import FileStore, Snapshot, _file_layouts
from hitherto.snapshots._prompts import with_prompt, without_prompt

from ..support.provider import Provider, chat_answer, gemini_answer, provider

KEY = bytes(range(1, 33))
PROMPT = 'Be <terse> & kind. \u2028 é 🎉 \b\x01 "q" \\ \n'
TALK: list[dict[str, object]] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
SYSTEM = {"role": "system", "content": PROMPT}


def snapshot(provider: str = "openai", prompt: str = PROMPT, messages: Any = TALK, **metadata: str) -> Snapshot:
    return Snapshot.new(provider, "m", prompt, messages, metadata=metadata)


def in_the_file(folder: Path, key: bytes | None, id: str) -> list[dict[str, Any]]:
    """The messages as another program finds them: it decrypts, parses, and sends them."""
    data = (folder / f"{id}.json").read_bytes()
    if key is not None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        data = AESGCM(key).decrypt(data[:12], data[12:], None)
    found: list[dict[str, Any]] = json.loads(data)["messages"]
    return found


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("name", ["openai", "openai-compatible"])
def test_other_programs_find_the_system_prompt_as_the_first_message(tmp_path: Path, key: Any, name: str) -> None:
    store, made = FileStore(tmp_path, key, layout="gtb"), snapshot(name)
    revision = store.save(made)
    assert in_the_file(tmp_path, key, made.id) == [SYSTEM, *TALK]
    assert store.load(made.id) == made
    (summary,) = store.list()
    assert (summary.message_count, summary.revision) == (2, revision)
    assert store.save(replace(made, model="n"), expect=revision) == replace(made, model="n").revision
    with pytest.raises(Conflict):
        store.save(made, expect=revision)


def test_control_without_the_mend_it_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_file_layouts, "with_prompt", lambda snapshot: snapshot)
    made = snapshot()
    FileStore(tmp_path, KEY, layout="gtb").save(made)
    assert in_the_file(tmp_path, KEY, made.id) == TALK


@pytest.mark.parametrize(
    "made",
    [
        snapshot("claude"),
        snapshot("gemini"),
        snapshot(prompt=""),
        snapshot(dialect="openai-responses"),
        snapshot(messages=[{"role": "system", "content": "another"}, *TALK]),
        snapshot(messages=[{"role": "developer", "content": PROMPT}, *TALK]),
    ],
)
def test_where_it_does_not_belong_nothing_is_written(tmp_path: Path, made: Snapshot) -> None:
    store = FileStore(tmp_path, KEY, layout="gtb")
    store.save(made)
    assert in_the_file(tmp_path, KEY, made.id) == made.messages
    assert store.load(made.id) == made


def test_an_empty_history_has_it_too(tmp_path: Path) -> None:
    store, made = FileStore(tmp_path), snapshot(messages=[])
    store.save(made)
    assert in_the_file(tmp_path, None, made.id) == [SYSTEM]
    assert store.load(made.id) == made


def test_our_own_layout_has_it_in_its_field_alone(tmp_path: Path) -> None:
    store, made = FileStore(tmp_path, KEY), snapshot()
    store.save(made)
    assert store.load(made.id) == made
    assert FileStore(tmp_path, KEY, layout="gtb").load(made.id) == made


@pytest.mark.parametrize("layout", ["hitherto", "gtb"])
def test_a_snapshot_that_has_it_among_its_messages_is_read_without(tmp_path: Path, layout: Any) -> None:
    """And locking goes by what is read."""
    store, made = FileStore(tmp_path, KEY, layout=layout), snapshot()
    theirs = replace(made, messages_json=with_prompt(made).messages_json)
    assert theirs.messages == [SYSTEM, *TALK]
    revision = store.save(theirs)
    assert store.load(made.id) == made
    assert store.save(theirs, expect=revision) == revision
    assert store.save(theirs, expect=theirs) == revision


def test_a_file_of_another_program_is_written_to_the_same_bytes(tmp_path: Path) -> None:
    """With a system message that is the prompt, and with one that is not."""
    made = snapshot()
    other = snapshot(messages=[{"role": "system", "content": "older"}, *TALK])
    for folder in ("theirs", "ours"):
        (tmp_path / folder).mkdir()
    for one, data in ((made, with_prompt(made).to_json()), (other, other.to_json())):
        (tmp_path / "theirs" / f"{one.id}.json").write_bytes(data)
        read = FileStore(tmp_path / "theirs").load(one.id)
        assert read == one
        FileStore(tmp_path / "ours").save(read)
        assert (tmp_path / "ours" / f"{one.id}.json").read_bytes() == data


_ENTRY = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.sampled_from(["", "p", "q", PROMPT])}
)


@example("openai", "p", [{"role": "system", "content": "p"}, {"role": "system", "content": "p"}])
@given(st.sampled_from(["openai", "claude"]), st.sampled_from(["", "p", PROMPT]), st.lists(_ENTRY, max_size=4))
def test_what_is_put_in_front_is_what_is_taken_away(name: str, prompt: str, messages: list[dict[str, object]]) -> None:
    made = without_prompt(snapshot(name, prompt, messages))
    assert without_prompt(with_prompt(made)) == made
    said = with_prompt(made).messages
    if name == "openai" and prompt:
        assert said[0]["role"] == "system"
    assert len(said) <= len(made.messages) + 1


def test_it_is_on_the_wire_once_whoever_wrote_it(tmp_path: Path) -> None:
    """A10: from a file of ours, and from one of another program that has it twice, or in front alone."""
    made = snapshot()
    FileStore(tmp_path, KEY, layout="gtb").save(made)
    given = [
        FileStore(tmp_path, KEY, layout="gtb").load(made.id),
        replace(made, messages_json=with_prompt(made).messages_json),
        replace(made, system_prompt="", messages_json=with_prompt(made).messages_json),
    ]
    with provider(lambda _: chat_answer("fine")) as server:
        for one in given:
            with _client(server) as client:
                client.restore(one)
                client.chat("next")
                sent = server.bodies[-1]["messages"]
                assert sent == [SYSTEM, *TALK, {"role": "user", "content": "next"}]
                assert client.save().messages[0]["role"] == "user"


def _gemini(role: str, text: str) -> dict[str, object]:
    return {"role": role, "parts": [{"text": text}]}


GEMINI = [_gemini("user", "a"), _gemini("model", "b")]
ASKED = _gemini("user", PROMPT)


@pytest.mark.parametrize(
    ("messages", "kept"),
    [
        pytest.param(GEMINI, GEMINI, id="in its field"),
        pytest.param([ASKED, *GEMINI], GEMINI, id="in front too"),
        pytest.param([ASKED], [], id="in front of nothing"),
        pytest.param([ASKED, GEMINI[1]], [ASKED, GEMINI[1]], id="control: answered"),
        pytest.param([GEMINI[0], *GEMINI], [GEMINI[0], *GEMINI], id="control: other words"),
    ],
)
def test_gemini_is_sent_it_once_too(messages: list[dict[str, object]], kept: list[dict[str, object]]) -> None:
    """A10: other programs put it into the history as well. What a user asked stays, whatever the words."""
    made = snapshot("gemini", messages=messages)
    with provider(lambda _: gemini_answer("fine")) as server, hitherto.open("memory:") as store:
        with _client(server, "gemini", server.url) as client:
            client.restore(made)
            client.chat("next")
        sent = server.bodies[-1]
        assert sent["systemInstruction"] == {"parts": [{"text": PROMPT}]}
        assert sent["contents"] == [*kept, _gemini("user", "next")]
        assert [m.text for m in store.restore(made).thread()] == [entry["parts"][0]["text"] for entry in kept]  # type: ignore[index]


def _client(server: Provider, name: str = "openai", url: str | None = None) -> Client:
    url = url or server.url + "/v1"
    client = new_client(Config(name, "m", url, "k", allow_insecure_base_url=True))
    assert isinstance(client, Client)
    return client


@pytest.mark.parametrize("key", [None, Key(KEY)])
def test_an_export_in_this_form_has_it_and_comes_back_without(tmp_path: Path, key: Key | None) -> None:
    with hitherto.open("memory:") as store, hitherto.open("memory:") as target:
        talk = store.start(provider="openai", model="m", system_prompt=PROMPT)
        talk.extend([Message.user("a"), Message.assistant("b")])
        formats.save([talk], tmp_path / "out", format="gtb", key=key)
        said = in_the_file(tmp_path / "out", None if key is None else KEY, talk.id)
        assert [m["role"] for m in said] == ["system", "user", "assistant"]
        assert said[0] == SYSTEM
        formats.load(tmp_path / "out", target, key=key)
        latest = target.latest()
        assert latest is not None
        assert latest.system_prompt == PROMPT
        assert [m.text for m in latest.thread()] == ["a", "b"]
