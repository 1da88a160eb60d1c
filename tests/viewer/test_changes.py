"""Changes on the page: only when they were allowed, only from a form of ours. Requirement: H1."""

import re
from urllib.parse import urlencode

import pytest

from hitherto import Message, Store
from hitherto.errors import NotFound

from .asking import Answer, Client


@pytest.fixture
def writer(store: Store) -> Client:
    return Client(store, may_write=True)


def send(client: Client, page: str, path: str, *, secret: str | None = None, **fields: str) -> Answer:
    """Send a form as a browser would that has loaded the page."""
    found = re.search(r'name="secret" value="([^"]+)"', client.get(page).text)
    given = {"secret": secret if secret is not None else found[1] if found else ""} | fields
    return client.ask("POST", path, urlencode(given).encode(), sec_fetch_site="same-origin")


def test_nothing_can_be_changed_unless_it_was_allowed(store: Store, client: Client) -> None:
    talk = store.start(title="Mine")
    message = talk.append(Message.user("x"))
    for name in ("rename", "hold", "release", "delete", f"m/{message.id}/label", f"m/{message.id}/delete"):
        answer = client.ask("POST", f"/c/{talk.id}/{name}", b"secret=x", sec_fetch_site="same-origin")
        assert answer.status in (404, 405), name
    assert client.get(f"/c/{talk.id}/edit").status == 404
    assert "/edit" not in client.get(f"/c/{talk.id}").text
    assert store.conversation(talk.id).title == "Mine"


def test_a_form_of_another_page_changes_nothing(store: Store, writer: Client) -> None:
    """The three walls, one by one: the site, the secret, the session."""
    talk = store.start(title="Mine")
    talk.append(Message.user("x"))
    path, body = f"/c/{talk.id}/rename", b"title=theirs"
    assert writer.ask("POST", path, body, sec_fetch_site="cross-site").status == 403
    assert writer.ask("POST", path, body, sec_fetch_site="same-site").status == 403
    assert writer.ask("POST", path, body).status == 403
    for secret in ("", "guess", "\udcff"):
        assert (
            send(
                writer, f"/c/{talk.id}/edit", path, secret=secret.encode("utf-8", "replace").decode(), title="theirs"
            ).status
            == 403
        )
    assert writer.ask("POST", path, body, sec_fetch_site="same-origin", cookie=None).status == 403
    assert store.conversation(talk.id).title == "Mine"
    assert send(writer, f"/c/{talk.id}/edit", path, title="ours").status == 303  # the control
    assert store.conversation(talk.id).title == "ours"


def test_a_conversation_is_held_released_and_deleted(store: Store, writer: Client) -> None:
    talk = store.start(title="Short life")
    talk.append(Message.user("secret words"))
    edit, page = f"/c/{talk.id}/edit", f"/c/{talk.id}/delete"
    assert send(writer, edit, f"/c/{talk.id}/hold").status == 303
    assert "on hold" in writer.get(page).text
    assert "<form method" not in writer.get(page).text.replace('role="search"', "")
    refused = send(writer, edit, f"/c/{talk.id}/delete")
    assert refused.status == 409
    assert store.conversation(talk.id).held
    send(writer, edit, f"/c/{talk.id}/release")
    asked = writer.get(page).text
    assert "1 message on 1 branch" in asked
    assert "What stays" in asked
    assert send(writer, page, page).headers["location"] == "/"
    with pytest.raises(NotFound):
        store.conversation(talk.id)
    assert writer.get(f"/c/{talk.id}").status == 404


def test_a_message_goes_with_all_that_follows_it_and_the_page_says_so(store: Store, writer: Client) -> None:
    talk = store.start()
    root = talk.append(Message.user("stays"))
    cut = talk.append(Message.assistant("goes"))
    talk.append(Message.user("goes as well"))
    talk.fork(at=cut.id).append(Message.user("and this branch"))
    talk.subagent("helper", "r", call=cut.id).append(Message.user("and its sub-agent"))
    page = f"/c/{talk.id}/m/{cut.id}/delete"
    asked = writer.get(page).text
    assert "3 messages that follow it" in asked
    assert "with 1 sub-agent" in asked
    assert "1 message of this conversation" in asked
    assert send(writer, page, page).headers["location"] == f"/c/{talk.id}/m/{root.id}"
    assert [m.id for m in store.messages(conversation=talk.id)] == [root.id]
    other = store.start().append(Message.user("of another conversation"))
    assert send(writer, f"/c/{talk.id}/m/{root.id}/delete", f"/c/{talk.id}/m/{other.id}/delete").status == 404
    assert store.message(other.id).text == "of another conversation"


def test_a_message_gets_a_label_and_loses_it(store: Store, writer: Client) -> None:
    message = store.start().append(Message.user("x"))
    page = f"/c/{message.conversation}/m/{message.id}/label"
    send(writer, page, page, label="<b>good</b>")
    assert store.message(message.id).label == "<b>good</b>"
    shown = writer.get(f"/c/{message.conversation}").text
    assert "&lt;b&gt;good" in shown
    send(writer, page, page, label=" ")
    assert store.message(message.id).label is None
