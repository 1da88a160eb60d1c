"""`hitherto serve` as a process: what it prints, how it ends, what it leaves. Requirement: H1."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import hitherto
from hitherto import Message

from ..support.command import PATIENCE, environment

SERVE = [sys.executable, "-m", "hitherto", "serve", "--no-open"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "store" / "chats.db"
    path.parent.mkdir()
    with hitherto.open(path) as store:
        store.start(title="Here").append(Message.user("x"))
    return path


def settings(place: Path) -> dict[str, str]:
    return environment() | {
        "HITHERTO_STORE": str(place),
        "HOME": str(place.parent),
        "XDG_RUNTIME_DIR": str(place.parent),
    }


def start(place: Path, *given: str) -> tuple[subprocess.Popen[str], str]:
    env = settings(place)
    process = subprocess.Popen([*SERVE, *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def ask(address: str, **headers: str) -> tuple[int, str]:
    parts = urlsplit(address)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)) as connection:
        connection.request("GET", f"{parts.path}?{parts.query}", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Set-Cookie") or ""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_at_once_and_leaves_nothing_when_it_ends(place: Path, how: signal.Signals) -> None:
    before = sorted(path.name for path in place.parent.iterdir())
    process, address = start(place)
    try:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=\S+", address)
        status, cookie = ask(address)
        assert status == 200
        assert ask(address.split("?")[0], Cookie=cookie.split(";")[0])[0] == 200
        with closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE)) as page:
            page.request("GET", "/events", headers={"Cookie": cookie.split(";")[0]})
            with page.getresponse() as stream:
                assert stream.status == 200  # a page that listens does not keep it from ending
                process.send_signal(how)
                _, errors = process.communicate(timeout=PATIENCE)
        assert "Traceback" not in errors
        assert process.returncode in (0, 130, -how)
    finally:
        process.kill()
        process.communicate()
    assert sorted(path.name for path in place.parent.iterdir()) == before
    with pytest.raises(OSError, match="refused"):
        ask(address)


def link(place: Path, *given: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hitherto", "link", *given]
    return subprocess.run(
        command, capture_output=True, text=True, env=settings(place), cwd=place.parent, timeout=PATIENCE, check=False
    )


def test_the_command_line_prints_links_that_the_page_opens(place: Path) -> None:
    with hitherto.open(place) as store:
        message = store.latest().thread()[0]  # type: ignore[union-attr]  # there is one
    assert link(place).returncode == 1
    process, address = start(place, "--base-path", "chats")
    try:
        cookie = ask(address)[1].split(";")[0]
        whole, one = link(place), link(place, message.id)
        assert whole.stdout == f"{address.split('/?')[0]}/c/{message.conversation}\n"
        assert one.stdout == f"{address.split('/?')[0]}/c/{message.conversation}/m/{message.id}\n"
        assert "token" not in one.stdout
        for found in (whole, one):
            assert ask(found.stdout.strip(), Cookie=cookie)[0] == 200
        folder = next(place.parent.glob("hitherto-*"))
        folder.chmod(0o777)
        assert "no page" in link(place).stderr  # others could have put an address there
        folder.chmod(0o700)
        assert link(place).returncode == 0
        process.kill()
        process.wait()
        assert link(place).returncode == 1  # it could not take its file away, and is gone
        assert not list(folder.iterdir())
    finally:
        process.kill()
        process.communicate()


def test_it_listens_on_this_machine_alone(place: Path) -> None:
    process, address = start(place)
    try:
        others = [one[4][0] for one in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
        for host in [one for one in others if not str(one).startswith("127.")]:
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((str(host), urlsplit(address).port or 0), timeout=5)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def test_a_port_that_is_taken_is_an_error_with_a_hint(place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process, address = start(place, "--port", str(taken.getsockname()[1]))
        _, errors = process.communicate(timeout=PATIENCE)
    assert address == ""
    assert process.returncode == 2
    assert "--port 0 takes a free one" in errors


def test_without_the_extra_it_says_what_to_install(place: Path, tmp_path: Path) -> None:
    (tmp_path / "starlette.py").write_text("raise ImportError(name='starlette')")
    env = environment() | {"HITHERTO_STORE": str(place)}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])
    done = subprocess.run(SERVE, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode != 0
    assert "hitherto[viewer]" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_line_loads_no_web_server_for_anything_else() -> None:
    script = "import sys, hitherto, hitherto.cli._main as m; m.run(['--help']); m.run(['serve', '--help'])\n"
    script += "print([n for n in ('starlette', 'uvicorn', 'nh3', 'pygments') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout.strip().endswith("[]")
