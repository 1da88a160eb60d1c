"""A real PgBouncer for tests, on a socket in a folder of its own, before a server of ours."""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

from .memory import in_memory
from .server import Server, unprivileged

PORT = 6432  # of the socket's name: nobody listens to a network
_SETTINGS = """
[databases]
* = host={server} port=5432
[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 200
logfile = {folder}/log
pidfile = {folder}/pid
"""


def find_pooler() -> str | None:
    """Where PgBouncer is, if it is installed."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class Pooler:
    """PgBouncer, which hands each session, or each transaction, to one of a few connections to the server."""

    def __init__(self, program: str, server: Server, mode: str, size: int = 3, user: str = "postgres") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hitherto-pb-", dir=in_memory() or "/tmp"))
        self.url = f"postgresql:///postgres?host={self.folder}&port={PORT}&user={user}"
        settings = self.folder / "pgbouncer.ini"
        told = _SETTINGS.format(server=server.folder, port=PORT, folder=self.folder, mode=mode, size=size)
        settings.write_text(told.replace("* = ", f"* = user={user} "))
        account = unprivileged()
        if account is not None:
            shutil.chown(self.folder, account)
            shutil.chown(settings, account)
        self._process = subprocess.Popen([program, "-q", settings], user=account, cwd="/", stderr=subprocess.DEVNULL)
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
            time.sleep(0.01)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
