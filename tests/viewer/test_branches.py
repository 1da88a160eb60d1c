"""Paths through a tree, the branch map, comparing, and finding across branches. Requirement: H1."""

import msgspec

from hitherto import Block, Message, Store
from hitherto.viewer import values

from ..support import scenes
from .asking import Client


def map_of(client: Client, id: str, more: str = "") -> values.BranchMap:
    return msgspec.json.decode(client.get(f"/c/{id}/map.json{more}").body, type=values.BranchMap)


def test_a_stretch_without_forks_is_one_row_whatever_its_length(store: Store, client: Client) -> None:
    talk = store.start()
    talk.extend([Message.user(f"n{n}") for n in range(700)])
    [row] = map_of(client, talk.id).rows
    assert (row.count, row.lane, row.active, row.head, row.text) == (700, 0, True, True, "n0")


def test_many_forks_stay_readable(store: Store, client: Client) -> None:
    talk = scenes.forked(store, forks=60, messages=764)
    found = map_of(client, talk.id)
    assert sum(row.count for row in found.rows) == talk.count
    assert len(found.rows) <= 2 * 60 + 1
    assert found.lanes <= 7  # digits of the number of branches in base two, and one
    page = client.get(f"/c/{talk.id}/map").text
    assert page.count('role="treeitem"') == len(found.rows)
    assert page.count("<circle") == len(found.rows)


def test_rails_never_cross(store: Store, client: Client) -> None:
    """No row stands in a lane while another rail passes there."""
    talk = scenes.forked(store, forks=40, messages=400)
    rows = map_of(client, talk.id).rows
    rails = [(rows[row.parent].lane, row.parent, at) for at, row in enumerate(rows) if row.parent is not None]
    for lane, begin, end in rails:
        assert not [at for at in range(begin + 1, end) if rows[at].lane == lane and rows[at].parent != begin], (
            lane,
            begin,
        )
        assert all(rows[at].lane > lane or rows[at].parent == begin for at in range(begin + 1, end))


def test_the_path_that_is_shown_is_active_and_the_trunk_stands_on_the_left(store: Store, client: Client) -> None:
    talk = store.start()
    root = talk.append(Message.user("root"))
    side = talk.fork(at=root.id).append(Message.assistant("side"))
    talk.append(Message.assistant("main"))
    rows = map_of(client, talk.id).rows
    assert [(row.text, row.lane, row.active) for row in rows] == [
        ("root", 0, True),
        ("side", 1, False),
        ("main", 0, True),
    ]
    rows = map_of(client, talk.id, f"?at={side.id}").rows
    assert [row.active for row in rows] == [True, True, False]
    assert [row.position for row in rows] == [0, 1, None]
    assert [row.head for row in rows] == [False, False, True]


def test_a_compaction_goes_on_in_its_lane_and_sub_agents_leave_to_the_side(store: Store, client: Client) -> None:
    talk = scenes.coding(store)
    rows = map_of(client, talk.id).rows
    kinds = {row.kind: row for row in rows}
    assert kinds["compaction"].lane == 0
    assert kinds["compaction"].head
    assert (kinds["subagent"].lane, kinds["subagent"].label) == (1, "searcher")
    page = client.get(f"/c/{talk.id}").text
    assert "Summed up here" in page
    assert "Sub-agent searcher: Read every module" in page
    trace = client.get(f"/c/{talk.id}/m/{kinds['subagent'].first}").text
    assert "Back to the message that started it" in trace


def test_many_sub_agents_of_one_message_are_not_all_drawn_at_once(store: Store, client: Client) -> None:
    talk = store.start()
    call = talk.append(Message.assistant("working"))
    for number in range(40):
        talk.subagent("worker", f"r{number}", call=call.id).append(Message.user(f"task {number}"))
    found = map_of(client, talk.id)
    assert (len(found.rows), found.hidden_agents) == (7, 34)
    assert "34 more sub-agents" in client.get(f"/c/{talk.id}/map").text
    assert len(map_of(client, talk.id, "?all=1").rows) == 41


def test_a_path_goes_on_along_the_branch_that_was_active_last(store: Store, client: Client) -> None:
    talk = store.start()
    root = talk.append(Message.user("root"))
    old = talk.fork(at=root.id)
    first = old.append(Message.assistant("old"))
    old.append(Message.user("old end"))
    newer = talk.fork(at=first.id).append(Message.user("new end"))
    talk.fork(at=root.id).append(Message.assistant("elsewhere"))
    twin = client.get(f"/c/{talk.id}/m/{first.id}.json").json()
    assert twin["leaf"] == newer.id


def test_find_sees_what_is_folded_and_not_loaded_and_counts_other_branches(store: Store, client: Client) -> None:
    talk = store.start()
    root = talk.append(Message.user("Needle one"))
    for number in range(2):
        talk.fork(at=root.id).append(Message.assistant(f"a needle elsewhere {number}"))
    talk.append(
        Message.assistant([Block.thinking("a NEEDLE in thought"), Block.tool_call("c", "grep", {"pattern": "needle"})])
    )
    talk.append(Message.tool_result("c", "nothing"))
    talk.extend([Message.user(f"hay {n}") for n in range(200)])
    last = talk.append(Message.assistant("and a needle far below"))
    leaf = talk.at
    found = client.get(f"/c/{talk.id}/m/{leaf}/find.json?q=needle").json()
    assert found["positions"] == [0, 1, 203]
    assert found["ids"][-1] == last.id
    assert found["elsewhere"] == 2
    assert client.get(f"/c/{talk.id}/m/{found['first_elsewhere']}").status == 200
    for nothing in ("%20", "", "nowhere"):
        assert client.get(f"/c/{talk.id}/m/{leaf}/find.json?q={nothing}").json()["ids"] == []


def test_the_skeleton_knows_every_prompt_and_fork(store: Store, client: Client) -> None:
    talk = scenes.forked(store, forks=5, messages=60)
    leaf = client.get(f"/c/{talk.id}.json").json()["leaf"]
    found = client.get(f"/c/{talk.id}/m/{leaf}/skeleton.json").json()
    window = client.get(f"/c/{talk.id}.json?count=100").json()
    assert [at for at, _ in found["prompts"]] == [m["position"] for m in window["messages"] if m["role"] == "user"]
    assert [id for _, id in found["forks"]] == [m["id"] for m in window["messages"] if m["siblings"]]


def test_two_branches_stand_side_by_side_from_where_they_part(store: Store, client: Client) -> None:
    talk = store.start()
    root = talk.extend([Message.user("shared one"), Message.assistant("shared two")])[-1]
    left = talk.fork(at=root.id).append(Message.user("to the left"))
    right = talk.fork(at=root.id).extend([Message.user("to the right"), Message.assistant("and on")])[0]
    path = f"/c/{talk.id}/compare{{}}?left={left.id}&right={right.id}"
    twin = client.get(path.format(".json")).json()
    assert (twin["shared"], twin["fork"], twin["left_length"], twin["right_length"]) == (2, root.id, 1, 2)
    page = client.get(path.format("")).text
    assert "shared one" not in page
    assert page.index("<p>to the left") < page.index("<p>to the right")
    assert "compare?left=" in client.get(f"/c/{talk.id}").text.replace("&amp;", "&")


def test_a_search_leads_to_the_message_on_its_branch(store: Store, client: Client) -> None:
    talk = store.start(title="Trees")
    root = talk.append(Message.user("root"))
    hidden = talk.fork(at=root.id).append(Message.assistant("a capybara sleeps"))
    talk.append(Message.assistant("main"))
    found = client.get("/search.json?q=capybara").json()
    assert [hit["message"] for hit in found["hits"]] == [hidden.id]
    page = client.get("/search?q=capybara").text
    assert "<mark>capybara</mark>" in page
    assert f"/c/{talk.id}/m/{hidden.id}?q=capybara" in page
    assert "a capybara sleeps" in client.get(f"/c/{talk.id}/m/{hidden.id}?q=capybara").text
    assert client.get("/search.json?q=%22").json()["hint"]  # a query that cannot be understood says why


def test_the_prompts_of_a_path_are_listed_with_their_first_words(store: Store, client: Client) -> None:
    talk = scenes.coding(store)
    leaf = client.get(f"/c/{talk.id}.json").json()["leaf"]
    found = client.get(f"/c/{talk.id}/m/{leaf}/prompts.json").json()
    texts = [one["text"] for one in found["prompts"]]
    assert texts[0].startswith("The build fails since this morning and I cannot see why.")  # not what a program added
    assert texts[1] == "Remove it, and run everything."
    assert "Remove it, and run everything." in client.get(f"/c/{talk.id}/m/{leaf}/prompts").text
    long = scenes.long(store, 1_000)
    shown = client.get(f"/c/{long.id}/m/{long.head}/prompts").text
    assert shown.count("<li>") == 400
    assert "100 more prompts" in shown
