"""Export and redaction, retention, and usage. Requirements: H1, D5, D8, D10."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import hitherto
from hitherto import Block, Message, RetentionPolicy, Store
from hitherto.model import Usage
from hitherto.records import Records
from hitherto.usage import count_usage
from hitherto.usage.prices import load_prices

from ..support import scenes
from .asking import Client, Seen

SECRET = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"


@pytest.mark.parametrize("format", ["html", "markdown", "jsonl"])
def test_a_redacted_export_holds_no_secret_and_the_other_does(store: Store, client: Client, format: str) -> None:
    talk = store.start(title=f"about {SECRET}", system_prompt=f"use {SECRET}", project="/home/ada/x")
    talk.append(Message.user(f"my token is {SECRET}, my mail is ada@example.org"))
    talk.append(Message.assistant(Block.tool_call("c", "curl", {"header": f"Authorization: Bearer {SECRET}"})))
    talk.append(Message.tool_result("c", f"sent {SECRET}"))
    path = f"/c/{talk.id}/export/file?format={format}"
    clean = client.get(f"{path}&redact=1")
    assert clean.status == 200
    assert SECRET not in clean.text
    assert "ada@example.org" not in clean.text
    assert "/home/ada" not in clean.text
    assert "my token is" in clean.text
    assert client.get(path).text.count(SECRET) >= 4  # the control
    assert clean.headers["content-disposition"].startswith("attachment; filename=")
    assert SECRET.lower() not in clean.headers["content-disposition"]
    assert "sandbox" in clean.headers["content-security-policy"]


def test_an_exported_page_is_one_file_without_scripts(store: Store, client: Client) -> None:
    talk = scenes.coding(store)
    page = client.get(f"/c/{talk.id}/export/file?format=html&redact=1").text
    for tag, attributes in Seen(page).tags:
        assert tag not in ("script", "link", "iframe")
        assert (attributes.get("src") or "data:").startswith("data:")
    assert "data:image/png;base64," in page


def test_one_branch_leaves_alone(store: Store, client: Client) -> None:
    talk = store.start()
    root = talk.append(Message.user("shared"))
    side = talk.fork(at=root.id).append(Message.assistant("sideways"))
    talk.append(Message.assistant("straight on"))
    one = client.get(f"/c/{talk.id}/export/file?format=markdown&at={side.id}").text
    assert "sideways" in one
    assert "straight on" not in one
    whole = client.get(f"/c/{talk.id}/export/file?format=markdown").text
    assert "sideways" in whole
    assert "straight on" in whole
    assert client.get(f"/c/{talk.id}/export/file?format=exe").status == 400


def test_what_comes_out_as_lines_goes_into_another_store(store: Store, client: Client, tmp_path: Path) -> None:
    talk = scenes.coding(store)
    (tmp_path / "x.jsonl").write_bytes(client.get(f"/c/{talk.id}/export/file?format=jsonl").body)
    with hitherto.open(tmp_path / "other.db") as other:
        hitherto.formats.load(tmp_path / "x.jsonl", other)
        assert other.conversation(talk.id).count == talk.count


def test_a_conversation_that_must_not_leave_does_not(store: Store, client: Client) -> None:
    id = (
        Records(store)
        .create(title="inside", messages=[{"role": "user", "content": "between us"}], privacy={"exportable": False})
        .conversation_id
    )
    head = store.conversation(id).head
    for at in ("", f"&at={head}"):
        for format in ("html", "markdown", "jsonl"):
            refused = client.get(f"/c/{id}/export/file?format={format}{at}")
            assert refused.status == 403
            assert "between us" not in refused.text
    assert "must not leave its store" in client.get(f"/c/{id}/export").text
    Records(store).update(id, privacy={"exportable": True})
    assert client.get(f"/c/{id}/export/file").status == 200  # the control


def test_the_list_says_when_a_conversation_is_deleted_and_why(store: Store, client: Client) -> None:
    store.start(title="young").append(Message.user("x"))
    held = store.start(title="held")
    held.append(Message.user("x"))
    held.hold()
    assert "deleted in" not in client.get("/").text
    store.set_retention(RetentionPolicy(days=13))
    page = client.get("/").text
    assert "deleted in 12 days" in page
    assert "on hold" in page
    card = next(one for one in client.get("/index.json").json()["conversations"] if one["title"] == "young")
    assert card["retention"]["why"] == "by the policy of the workspace"


def test_the_plan_of_the_next_sweep_is_shown_and_nothing_is_deleted(tmp_path: Path) -> None:
    then = datetime.now(UTC) - timedelta(days=100)
    with hitherto.open(tmp_path / "x.db", clock=lambda: int(then.timestamp() * 1e6), maintenance=False) as store:
        for title in ("old", "old and held"):
            talk = store.start(title=title)
            talk.append(Message.user("x"))
        talk.hold()
        store.set_retention(RetentionPolicy(days=30))
    with hitherto.open(tmp_path / "x.db", maintenance=False) as store:
        client = Client(store)
        new = store.start(title="new")
        new.append(Message.user("x"))
        plan = client.get("/retention.json").json()
        assert [item["title"] for item in plan["takes"]] == ["old"]
        assert [item["title"] for item in plan["holds"]] == ["old and held"]
        assert [item["title"] for item in plan["next"]] == ["new"]
        page = client.get("/retention").text
        assert "deleted 30 days after the last word" in page
        assert page.index("The next sweep takes") < page.index("Due after that")
        assert store.stats().conversations == 3


def test_a_shared_prefix_counts_once_in_the_tree(store: Store, client: Client) -> None:
    talk = store.start(model="gpt-5", project="/p")
    root = talk.append(Message.assistant("root", usage=Usage(100, 10)))
    side = talk.fork(at=root.id).append(Message.assistant("a", usage=Usage(1, 2)))
    talk.append(Message.assistant("b", usage=Usage(3, 4)))
    found = client.get(f"/c/{talk.id}/usage.json?at={side.id}").json()
    assert (found["path"]["input_tokens"], found["path"]["output_tokens"]) == (101, 12)
    assert (found["tree"]["input_tokens"], found["tree"]["output_tokens"]) == (104, 16)
    whole = client.get("/usage.json?days=7").json()
    assert (whole["total"]["answers"], whole["total"]["input_tokens"], len(whole["by_day"])) == (3, 104, 7)
    assert [(one["name"], one["tokens"]["output_tokens"]) for one in whole["by_model"]] == [("gpt-5", 16)]
    counted = count_usage(store, by="source", prices=load_prices(), local=True)
    assert whole["cost"] == counted.total.cost > 0
    assert [(one["name"], one["cost"]) for one in whole["by_source"]] == [("hitherto", counted.total.cost)]
    assert [one["name"] for one in whole["by_project"]] == ["/p"]
    page = client.get("/usage?days=7").text
    assert f"by prices of {counted.prices_of}" in page
    assert "gpt-5" in page
    assert "<svg" in page


def test_the_usage_page_takes_the_model_of_each_answer_and_names_those_without_a_price(
    store: Store, client: Client
) -> None:
    talk = store.start(model="gpt-5")
    talk.append(Message.assistant("a", usage=Usage(5, 1), extra={"model": "nobody-sells-this"}))
    whole = client.get("/usage.json").json()
    assert [one["name"] for one in whole["by_model"]] == ["nobody-sells-this"]
    assert whole["unpriced_models"] == ["nobody-sells-this"]
    assert whole["total"]["answers"] == whole["by_model"][0]["unpriced"] == 1
    assert "Models without a price: nobody-sells-this." in client.get("/usage").text
