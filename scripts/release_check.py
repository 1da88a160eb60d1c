"""Do everything of a release but the upload: python scripts/release_check.py UV [--final]

In this order, and at the first thing that is wrong it stops: the tree is clean; the version is the same everywhere; a
source distribution is built, and a wheel from it; `twine check` finds no fault; the wheel has all files of the package;
pip alone installs it on each Python that is here, and `smoke.py` runs there; the same with each extra; a part of the
tests passes on the built wheel, in an environment without the source; a bill of materials is written, and is valid.

Without --final it is a dry run, which says what is still to be decided. HITHERTO_THOROUGH=1 takes each extra on each
Python, and all tests. docs/releasing.md has the checklist around it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pythons import TESTS, found
from smoke import ENTRANCES

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
TOOLS = ROOT / ".tools" / "release" / "bin"
THOROUGH = bool(os.environ.get("HITHERTO_THOROUGH"))
SOURCE_READERS = {"test_architecture"}  # tests of the source itself


class Wrong(Exception):
    """The release cannot go out like this."""


def run(*command: object, **how: Any) -> str:
    """What a command prints; if it fails, all of it is shown."""
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True, check=False, **how)
    if done.returncode:
        raise Wrong(f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return str(done.stdout)


def say(what: str) -> None:
    print(f"release-check: {what}", flush=True)


def check_tree() -> None:
    if changed := run("git", "status", "--porcelain", cwd=ROOT):
        raise Wrong(f"the tree is not clean:\n{changed}")
    say("the tree is clean")


def check_version(project: dict[str, Any], final: bool) -> str:
    """The version, if pyproject.toml, the package and the changelog agree on it."""
    version = str(project["version"])
    package = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/hitherto/__init__.py").read_text("utf-8"), re.MULTILINE)
    if package is None or package[1] != version:
        raise Wrong(f"pyproject.toml says {version}, hitherto/__init__.py {package and package[1]}")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    if re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE):
        say(f"version {version}, and the changelog has it")
    elif f"which will be {version}." in changelog and not final:
        say(f"version {version}; to decide: the day of its heading in the changelog")
    else:
        raise Wrong(f"CHANGELOG.md has no heading '## [{version}] - YYYY-MM-DD'")
    if "Source" not in dict(project.get("urls", {})):
        if final:
            raise Wrong("project.urls in pyproject.toml has no Source: people could not find the repository")
        say("to decide: the address of the repository, for project.urls")
    return version


def build() -> tuple[Path, Path]:
    """The source distribution, and the wheel that is built from it."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT)
    (source,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    run(TOOLS / "twine", "check", "--strict", source, wheel)
    missing = package_files() - set(zipfile.ZipFile(wheel).namelist())
    if missing:
        raise Wrong(f"not in the wheel: {', '.join(sorted(missing))}")
    say(f"{source.name} and {wheel.name} are built, and twine finds no fault")
    return source, wheel


def package_files() -> set[str]:
    return set(run("git", "ls-files", "hitherto", cwd=ROOT / "src").splitlines())


def make_environment(python: str, place: Path, *what: object) -> Path:
    """An environment of this Python, into which its pip puts the given."""
    run(python, "-m", "venv", "--without-pip", place)
    own = place / "bin" / "python"
    run(python, "-m", "pip", "--python", own, "install", "--quiet", *what)
    run(python, "-m", "pip", "--python", own, "check")
    return own


def smoke(own: Path, extra: str | None = None) -> None:
    run(own, "-P", ROOT / "scripts" / "smoke.py", *([extra] if extra else []), cwd=own.parent)


def check_pythons(wheel: Path, pythons: dict[tuple[int, int], str], extras: Iterable[str], folder: Path) -> None:
    """Each Python without an extra; on the one that this runs on, or on all, with each of them, several at a time."""
    own = sys.version_info[:2]
    for version, python in pythons.items():
        name = f"Python {version[0]}.{version[1]}"
        smoke(make_environment(python, folder / name, wheel))
        say(f"pip installs it on {name}, and it works")

        def check_extra(extra: str, python: str = python, name: str = name) -> str:
            place = folder / f"{name} {extra}"
            smoke(make_environment(python, place, f"{wheel}[{extra}]"), extra)
            shutil.rmtree(place)
            return f"hitherto[{extra}] on {name}"

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for done in pool.map(check_extra, extras if THOROUGH or version == own else ()):
                say(done)


def check_tests(uv: str, wheel: Path, place: Path) -> None:
    """The tests, from a folder in which there is no source, with what development takes."""
    own = place / "venv" / "bin" / "python"
    run(uv, "venv", "--quiet", "--python", sys.executable, place / "venv")
    run(uv, "pip", "sync", "--quiet", "--python", own, "--require-hashes", ROOT / "requirements" / "dev.txt")
    run(uv, "pip", "install", "--quiet", "--python", own, "--no-deps", wheel)
    for name in ("tests", "pyproject.toml", "docs", "README.md"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, place / name)
    where = run(own, "-P", "-c", "import hitherto; print(hitherto.__file__)", cwd=place)
    if str(ROOT) in where and ".tools" not in where:
        raise Wrong(f"the tests would run on {where}")
    chosen = [f"tests/{test}.py" for test in TESTS if test not in SOURCE_READERS]
    done = run(own, "-P", "-m", "pytest", "-q", "-n", "auto", *(["tests"] if THOROUGH else chosen), cwd=place)
    say(f"on the wheel: {done.strip().splitlines()[-1]}")


def write_bill(wheel: Path, python: Path) -> None:
    """The parts of an environment with the wheel and what it depends on, as CycloneDX."""
    bill = DIST / f"{wheel.name.split('-py3')[0]}.cdx.json"
    run(TOOLS / "cyclonedx-py", "environment", python, "--pyproject", ROOT / "pyproject.toml", "--mc-type", "library",
        "--output-reproducible", "--validate", "--output-format", "JSON", "--output-file", bill)  # fmt: skip
    parts = json.loads(bill.read_text("utf-8"))["components"]
    say(f"{bill.name} names {len(parts)} parts")


def check_extras(declared: Iterable[str]) -> list[str]:
    if set(declared) != set(ENTRANCES):
        raise Wrong(f"smoke.py and pyproject.toml differ: {sorted(set(declared) ^ set(ENTRANCES))}")
    return list(ENTRANCES)


def main(uv: str, *flags: str) -> int:
    final = "--final" in flags
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    try:
        check_tree()
        check_version(project, final)
        extras = check_extras(project["optional-dependencies"])
        _, wheel = build()
        with tempfile.TemporaryDirectory(prefix="release-") as folder:
            check_pythons(wheel, found(), extras, Path(folder))
            own = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
            write_bill(wheel, Path(folder) / own / "bin" / "python")
            (Path(folder) / "tests-of-the-wheel").mkdir()
            check_tests(uv, wheel, Path(folder) / "tests-of-the-wheel")
    except Wrong as error:
        print(f"release-check: {error}", file=sys.stderr)
        return 1
    say("it could go out" if final else "it could go out, once what is to decide is decided")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
