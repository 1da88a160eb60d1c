"""Who is let in, and what every answer says. Requirement: H1, safe by default. Each test is about one protection, and
fails without it."""

import re

import pytest

from hitherto import Message, Store
from hitherto.viewer import door

from .asking import Client


def test_nobody_comes_in_without_the_token(store: Store) -> None:
    store.start(title="Private").append(Message.user("secret words"))
    client = Client(store)
    for path in ("/", "/index.json", "/search?q=secret", "/openapi.json"):
        answer = client.get(path, cookie=None)
        assert answer.status == 403
        assert "secret" not in answer.text
        assert "Private" not in answer.text
        assert client.get(path).status == 200  # the control


def test_the_token_opens_once_and_becomes_a_cookie_that_scripts_cannot_read(store: Store) -> None:
    client = Client(store)
    viewer = door.Door(client.door, refuse=client.door._refuse)
    client.door, token = viewer, viewer.token or ""
    assert client.get("/?token=wrong", cookie=None).status == 403
    first = client.get(f"/?token={token}", cookie=None)
    assert first.status == 200
    assert token not in first.text  # the address without it is the one that stays in the history
    for word in ("httponly", "samesite=strict", "path=/"):
        assert word in first.headers["set-cookie"].lower()
    assert token not in first.headers["set-cookie"]
    assert client.get(f"/?token={token}", cookie=None).status == 403
    assert (
        client.get(f"/?token={token}", cookie=first.headers["set-cookie"].split(";")[0]).status == 200
    )  # opened again


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[::2]", "a:b"]
)
def test_another_name_is_refused_whatever_else_is_right(client: Client, host: str) -> None:
    """DNS rebinding: a name of the attacker's that points here."""
    assert client.get("/", host=host).status == 403
    assert "ssh -L" in client.get("/", host=host).text
    assert client.get("/", host=None).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1:5", "localhost", "LOCALHOST:80", "[::1]:9"])
def test_the_names_of_this_machine_are_right_at_any_port(client: Client, host: str) -> None:
    assert client.get("/", host=host).status == 200


def test_a_name_can_be_allowed(store: Store) -> None:
    client = Client(store, hosts=["chats.example"])
    assert client.get("/", host="chats.example").status == 200
    assert client.get("/", host="other.example").status == 403


def test_requests_that_other_sites_make_are_refused(client: Client) -> None:
    asked = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}
    assert client.get("/", **asked).status == 403
    assert client.get("/", sec_fetch_site="same-origin").status == 200
    assert client.ask("POST", "/", sec_fetch_site="cross-site").status == 403
    assert client.ask("POST", "/").status == 403  # nobody says who sent it
    assert client.ask("DELETE", "/", sec_fetch_site="same-origin").status == 405


def test_every_answer_has_the_headers_that_keep_it_here(client: Client) -> None:
    for path in ("/", "/index.json", "/nowhere", "/c/unknown", "/search?q=x", "/?token=wrong"):
        headers = client.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
    assert client.get("/", cookie=None).headers["cache-control"] == "no-store"


def test_a_large_body_is_refused_whether_or_not_its_length_is_said(client: Client) -> None:
    large = b"x" * (door.MAX_BODY_BYTES + 1)
    assert client.ask("POST", "/", content_length=str(1 << 30), sec_fetch_site="same-origin").status == 413
    assert client.ask("POST", "/", content_length="many", sec_fetch_site="same-origin").status == 413
    assert client.ask("POST", "/", large, sec_fetch_site="same-origin").status in (404, 405, 413)


def test_files_of_ours_may_be_kept_and_nothing_else_is_served(client: Client) -> None:
    page = client.get("/").text
    for address in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
        answer = client.get(address, cookie=None)
        assert answer.status == 200
        assert "immutable" in answer.headers["cache-control"]
    assert client.get("/static/x/viewer.css").headers["cache-control"] == "no-store"
    for name in ("../app.py", "%2e%2e/app.py", "nothing.js"):
        assert client.get(f"/static/x/{name}").status == 404
