"""What the pages say, and their JSON twins. Requirement: H1."""

import json
import re

import msgspec
import pytest

from hitherto import Block, Message, Store
from hitherto.viewer import openapi, queries, thread_view, values

from ..support import scenes
from .asking import Client, Seen, follow_all_links


def test_the_list_shows_the_newest_first_with_what_was_asked(store: Store, client: Client) -> None:
    store.start(title="First", model="gpt-5").append(Message.user("Why is it red?"))
    scenes.coding(store)
    page = client.get("/").text
    assert page.index("Why does the build fail?") < page.index("First")
    assert "Why is it red?" in page
    assert "The build fails since this morning" in page  # not what the program had put in before
    twin = msgspec.json.decode(client.get("/index.json").body, type=values.ConversationList)
    assert [card.title for card in twin.conversations] == ["Why does the build fail?", "First"]
    assert (twin.conversations[0].branches, twin.conversations[0].model) == (4, "claude-sonnet-4-5")
    assert twin.total == 2


def test_the_list_has_pages(store: Store, client: Client) -> None:
    for number in range(60):
        store.start(title=f"talk {number}").append(Message.user("x"))
    seen: list[str] = []
    twin = client.get("/index.json").json()
    while True:
        seen += [card["title"] for card in twin["conversations"]]
        if not twin["next"]:
            break
        twin = client.get(f"/index.json?cursor={twin['next']}").json()
    assert seen == [f"talk {number}" for number in reversed(range(60))]
    assert client.get("/?cursor=nonsense").status == 400


def test_a_link_to_a_message_opens_there_on_its_branch(store: Store, client: Client) -> None:
    talk = store.start(title="Long")
    saved = talk.extend([Message.user(f"number {n}.") for n in range(400)])
    other = talk.fork(at=saved[100].id).append(Message.user("another way"))
    page = client.get(f"/c/{talk.id}/m/{saved[250].id}").text
    assert "number 250." in page
    assert "number 100." not in page
    assert f'data-target="{saved[250].id}"' in page
    elsewhere = client.get(f"/c/{talk.id}/m/{other.id}.json").json()
    assert elsewhere["messages"][-1]["blocks"][0]["text"] == "another way"
    assert (elsewhere["length"], elsewhere["on_trunk"], elsewhere["leaf"]) == (102, True, other.id)
    assert client.get(f"/c/{talk.id}/m/{saved[250].id}.json").json()["on_trunk"] is False
    assert "This is another branch" in page
    assert elsewhere["messages"][-1]["siblings"] == {"position": 2, "ids": [saved[101].id, other.id]}
    assert "2/2" in client.get(f"/c/{talk.id}/m/{other.id}").text


def test_the_beginning_of_an_id_leads_to_its_page_and_unknown_ones_say_what_to_do(store: Store, client: Client) -> None:
    talk = store.start()
    message = talk.append(Message.user("x"))
    assert client.get(f"/c/{talk.id[:8]}").headers["location"] == f"/c/{talk.id}"
    assert client.get(f"/c/{message.id}").headers["location"] == f"/c/{talk.id}/m/{message.id}"
    assert client.get(f"/c/{talk.id[:8]}.json?count=3").headers["location"] == f"/c/{talk.id}.json?count=3"
    assert client.get("/c/zzzzzz").status == 404
    assert client.get(f"/c/{talk.id}/m/zzzzzz").status == 404
    assert client.get(f"/c/{talk.id}/m/%00").status == 404
    assert client.get("/c/zzzzzz.json").json()["error"]


def test_windows_put_together_are_the_path(store: Store, client: Client) -> None:
    talk = store.start()
    saved = talk.extend([Message.user(f"n{n}") for n in range(250)])
    found: list[str] = []
    while True:
        twin = client.get(f"/c/{talk.id}.json?from={len(found)}&count=100").json()
        found += [message["id"] for message in twin["messages"]]
        if len(found) >= twin["length"]:
            break
    assert found == [message.id for message in saved]
    part = client.get(f"/c/{talk.id}/m/{saved[0].id}/window?from=100&count=50")
    assert part.headers["x-length"] == "250"
    assert part.text.count("<article") == 50


def test_a_call_and_its_result_are_one_card_and_never_torn_apart(store: Store, client: Client) -> None:
    talk = store.start()
    talk.append(Message.assistant(Block.tool_call("a", "Bash", {"command": "ls"})))
    result = talk.append(Message.tool_result("a", "one.py\ntwo.py"))
    page = client.get(f"/c/{talk.id}").text
    assert page.count("<article") == 1
    assert f'id="m-{result.id}"' in page
    torn = client.get(f"/c/{talk.id}/m/{result.id}/window?from=1&count=1").text
    assert "two.py" in torn
    assert "ls" in torn


def test_a_long_result_shows_its_beginning_and_has_a_page_of_its_own(store: Store, client: Client) -> None:
    talk = store.start()
    talk.append(Message.assistant(Block.tool_call("a", "Bash", {"command": "seq 5000"})))
    result = talk.append(Message.tool_result("a", "\n".join(f"line {n}" for n in range(5000))))
    page = client.get(f"/c/{talk.id}").text
    assert "line 199" in page
    assert "line 200\n" not in page
    assert "Show all 5,000 lines" in page
    assert "line 4999" in client.get(f"/c/{talk.id}/m/{result.id}/text?block=0").text
    assert client.get(f"/c/{talk.id}/m/{result.id}/text?block=7").status == 404


def test_images_come_from_the_store_and_nothing_that_a_browser_could_run(store: Store, client: Client) -> None:
    talk = scenes.hostile(store)
    picture = store.start().append(Message.user(Block.image(scenes.png(), "image/png")))
    shown = client.get(f"/c/{picture.conversation}/m/{picture.id}/media/0")
    assert shown.headers["content-type"] == "image/png"
    assert shown.body == scenes.png()
    assert "sandbox" in shown.headers["content-security-policy"]
    blocks = [(kept, place, one) for kept in scenes.with_media(store, talk) for place, one in enumerate(kept.blocks)]
    assert sum(isinstance(block.content, bytes) for *_, block in blocks) == 4
    for kept, place, block in blocks:
        answer = client.get(f"/c/{talk.id}/m/{kept.id}/media/{place}")
        if not isinstance(block.content, bytes) and ";base64," not in str(block.content)[:40]:
            assert answer.status == 404
            continue
        assert answer.headers["content-type"] in ("application/octet-stream", "image/png")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]


def test_nothing_that_a_conversation_says_becomes_markup(store: Store, client: Client) -> None:
    talk = scenes.hostile(store)
    pages = ["/", f"/c/{talk.id}", "/search?q=script", f"/search?q=%3Cscript%3E{scenes.HOSTILE[:9]}", f"/c/{talk.head}"]
    for path in pages:
        answer = client.get(path)
        assert "\u202e" not in answer.text  # it would turn the line round
        for tag, attributes in Seen(answer.text).tags:
            assert tag not in ("iframe", "object", "embed", "base"), path
            assert not any(name.startswith("on") or name in ("style", "srcset") for name in attributes), (path, tag)
            address = attributes.get("href") or attributes.get("src") or ""
            assert re.match(r"/|#|https://(evil|good)\.example|$", address), (path, tag, address)
            if tag in ("script", "link", "img", "audio", "video"):
                assert address.startswith("/"), (path, tag, address)


def test_every_twin_is_described_and_fits_its_description(store: Store, client: Client) -> None:
    talk = scenes.coding(store)
    described = client.get("/openapi.json").json()
    assert json.loads(json.dumps(openapi.describe())) == described
    for twin in openapi.TWINS:
        path = twin.path.format(conversation=talk.id, message=talk.head)
        path += f"?q=import&left={talk.head}&right={talk.branches()[-1].id}"
        answer = client.get(path)
        assert answer.status == 200, path
        msgspec.json.decode(answer.body, type=twin.value)


def test_half_of_a_surrogate_pair_is_no_error(store: Store, client: Client) -> None:
    talk = store.start()
    talk.append(Message.assistant(Block.tool_call("a", "x", {"text": "\ud800"})))
    assert client.get(f"/c/{talk.id}").status == 200
    assert client.get(f"/c/{talk.id}.json").json()["messages"]


@pytest.mark.parametrize("base", ["", "/chats"])
def test_every_link_of_the_pages_leads_somewhere(store: Store, base: str) -> None:
    client = Client(store, base=base)
    talk = scenes.coding(store)
    assert any(talk.id in path for path in follow_all_links(client, base))


def test_the_list_is_filtered_by_what_is_known_of_a_conversation(store: Store, client: Client) -> None:
    red = store.start(title="red", model="gpt-5", project="/p/one")
    root = red.append(Message.user("x"))
    red.fork(at=root.id).extend([Message.user("a"), Message.assistant("b", label="good")])
    red.fork(at=root.id).append(Message.user("c"))
    blue = store.start(title="blue", model="claude-sonnet", project="/p/two")
    blue.append(Message.user("y", extra={"imported": {"id": "1", "format": "codex"}}))
    blue.hold()

    def titles(query: str) -> set[str]:
        return {card["title"] for card in client.get(f"/index.json?{query}").json()["conversations"]}

    assert titles("") == {"red", "blue"}
    for query, only in (
        ("model=CLAUDE", "blue"), ("source=codex", "blue"), ("held=1", "blue"), ("project=/p/two", "blue"),
        ("forked=1", "red"), ("label=good", "red"), ("model=gpt&forked=1", "red"), ("label=good&project=/p/one", "red"),
    ):  # fmt: skip
        assert titles(query) == {only}, query
    for query in ("since=2099-01-01", "until=2001-01-01", "label=good&held=1", "model=gpt&held=1", "label=bad"):
        assert titles(query) == set(), query
    assert titles("since=2001-01-01&until=2099-01-01") == {"red", "blue"}
    assert client.get("/?since=yesterday").status == 400
    assert "Nothing here fits" in client.get("/?model=nothing").text
    assert 'value="gpt"' in client.get("/?model=gpt").text


def test_a_filtered_list_looks_at_so_many_and_says_where_to_go_on(
    store: Store, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MOST_COMPARED", 50)
    store.start(title="rare", model="special").append(Message.user("x"))
    for number in range(120):
        store.start(title=f"usual {number}").append(Message.user("x"))
    seen: list[str] = []
    path, pages = "/index.json?model=special", 0
    while True:
        twin = client.get(path).json()
        seen, pages = [*seen, *(card["title"] for card in twin["conversations"])], pages + 1
        if twin["next"] is None:
            break
        assert "Look further" in client.get(path.replace("/index.json", "/")).text
        path = f"/index.json?model=special&cursor={twin['next']}"
    assert (seen, pages) == (["rare"], 3)


def test_a_mistake_of_the_renderer_does_not_become_a_script(
    store: Store, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second wall: what the renderer of Markdown gives is cleaned once more."""
    evil = '<p onclick="x()">ok</p><script>alert(1)</script><img src=x onerror=alert(1)><a href="javascript:x()">y</a>'
    monkeypatch.setattr(thread_view, "render_answer", lambda _: evil)
    talk = store.start()
    talk.append(Message.assistant("a text that was never rendered before"))
    page = client.get(f"/c/{talk.id}").text
    assert "<p>ok</p>" in page
    assert "alert(1)" not in page
    assert "javascript:" not in page
    assert "onclick" not in page
