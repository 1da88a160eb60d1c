"""Run the frameworks' own test suites over the adapters: `make test-frameworks`.

`tests/adapters/suites.toml` says for each framework which tests are its own: files of its source distribution, pinned
by hash, a file of its repository, pinned likewise, or modules that it installs. A plugin of pytest in
`tests/adapters/plugins` puts the adapter in the place of the framework's own class. Each suite runs on SQLite, on
sealed SQLite and, where there is one, on PostgreSQL, in the framework's own environment below `.tools/adapters`. The
run fails if a suite passes fewer tests than the file says.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools" / "adapters"
SUITES = ROOT / "tests" / "adapters" / "suites.toml"
STORES = ("sqlite", "sealed", "postgres")


def _fetcher() -> Path:
    """Return a Python with pip, which .venv does not have."""
    folder = TOOLS / "fetcher"
    if not (folder / "bin" / "pip").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    return folder / "bin" / "python"


def _file(name: str, suite: dict[str, str]) -> Path:
    """Return the folder of a file of tests, fetched once; its hash is checked."""
    folder = TOOLS / name / "source" / suite["sha256"]
    file = folder / suite["url"].rpartition("/")[2]
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(suite["url"], timeout=60) as answer:
            file.write_bytes(answer.read())
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != suite["sha256"]:
        raise SystemExit(f"{file} has another hash than tests/adapters/suites.toml says: {found}")
    return folder


def _source(name: str, suite: dict[str, str]) -> Path:
    """Return the folder of a source distribution, fetched and unpacked once; its hash is checked."""
    folder = TOOLS / name / "source" / suite["sdist"]
    if folder.exists():
        return folder
    fetched = TOOLS / name / "fetched"
    # pip looks into what it downloads with the tools that build it, which it fetches as wheels.
    package = suite["sdist"].partition("==")[0]
    command = [str(_fetcher()), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", package]
    subprocess.run([*command, "--dest", str(fetched), suite["sdist"]], check=True)
    (archive,) = fetched.glob("*.tar.gz")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != suite["sha256"]:
        raise SystemExit(f"{archive.name} has another hash than tests/adapters/suites.toml says: {found}")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def _run(name: str, number: int, suite: dict[str, object], store: str) -> str | None:
    """Run a suite on one kind of store. Return the trouble in words, or None."""
    folder, plain = ROOT, {key: str(value) for key, value in suite.items()}
    if "sdist" in suite:
        folder = next(_source(name, plain).iterdir())
    elif "url" in suite:
        folder = _file(name, plain)
    places = os.pathsep.join(str(place) for place in (ROOT / "src", ROOT / "tests" / "adapters", ROOT))
    environment = {**os.environ, "HITHERTO_ADAPTER_STORE": store, "PYTHONPATH": places}
    arguments = [str(one) for one in suite["arguments"]]  # type: ignore[attr-defined]  # a list, as the file has it
    command = [str(TOOLS / name / "bin" / "python"), "-m", "pytest", "-q", "-p", str(suite["plugin"]), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", done.stdout)}
    passed, wanted = counts.get("passed", 0), int(str(suite["passes"]))
    print(f"{name} {number} on {store}: {counts or done.returncode}, at least {wanted} have to pass", flush=True)
    if passed >= wanted:
        return None
    log = TOOLS / name / f"suite-{number}-{store}.log"
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    return f"{name} {number} on {store}: {passed} passed, {wanted} have to ({log.relative_to(ROOT)})"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the frameworks' own test suites over the adapters.")
    parser.add_argument("names", nargs="*", help="some of the adapters; all by default")
    parser.add_argument("--store", action="append", choices=STORES, help="on this kind of store alone")
    given = parser.parse_args()
    suites = tomllib.loads(SUITES.read_text(encoding="utf-8"))
    troubles = []
    for name in given.names or list(suites):
        for number, suite in enumerate(suites.get(name, {}).get("suite", []), 1):
            for store in given.store or STORES:
                if store == "postgres" and not os.environ.get("HITHERTO_POSTGRES_URL"):
                    print(f"{name} {number} on postgres: left out, because HITHERTO_POSTGRES_URL names no server")
                    continue
                troubles.append(_run(name, number, suite, store))
    found = [trouble for trouble in troubles if trouble]
    print("\n".join(found), file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
