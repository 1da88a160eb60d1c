"""Run a part of the tests on every other Python that is here, from 3.11 on.

    python scripts/pythons.py UV

`make test` runs all tests on the Python of `.venv`. Other versions warn of other things, and end threads, processes and
connections differently: the tests below are those that such differences have met, or would. Each Python gets an
environment of its own, `.tools/python-3.X`, with the pinned requirements; a second run finds it there. A Python that is
not here is named, and is no failure.
"""

import glob
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

OLDEST = (3, 11)
SUPPORTED = ((3, 11), (3, 12), (3, 13))  # where one of these cannot be set up, that is a failure
TESTS = (
    "engine/test_append_queue", "engine/test_async", "engine/test_breaker", "engine/test_committer",
    "engine/test_events", "engine/test_ids", "engine/test_model", "engine/test_telemetry", "erasure/test_maintenance",
    "erasure/test_shutdown", "sealing/test_keys", "test_architecture",
)  # fmt: skip

ROOT = Path(__file__).parents[1]
Version = tuple[int, int]


def version_of(python: str) -> Version | None:
    """Of an interpreter; None if it is none, as are the stand-ins that some tools put on the path."""
    asked = [python, "-c", "import sys; print(sys.implementation.name, *sys.version_info[:2])"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return None
    said = done.stdout.split()
    if done.returncode or len(said) != 3 or said[0] != "cpython":
        return None
    return int(said[1]), int(said[2])


def found() -> dict[Version, str]:
    """On the path, and beside the one that this runs on, where tools that keep several put them."""
    candidates = [shutil.which(f"python3.{minor}") for minor in range(OLDEST[1], OLDEST[1] + 20)]
    beside = Path(sys.base_prefix).resolve().parent
    candidates += sorted(glob.glob(f"{beside}/*/bin/python3"), reverse=True)
    pythons: dict[Version, str] = {}
    for python in filter(None, candidates):
        version = version_of(python)
        if version is not None and version >= OLDEST:
            pythons.setdefault(version, python)
    return dict(sorted(pythons.items()))


def set_up(uv: str, python: str, place: Path) -> bool:
    """An environment with what development takes, unless it is there already."""
    pins = ROOT / "requirements" / "dev.txt"
    state = f"{place} {hashlib.sha256(pins.read_bytes() + (ROOT / 'pyproject.toml').read_bytes()).hexdigest()}"
    stamp = place / ".stamp"
    if stamp.exists() and stamp.read_text() == state:
        return True
    own = str(place / "bin" / "python")
    for command in (
        [uv, "venv", "--quiet", "--clear", "--python", python, str(place)],
        [uv, "pip", "sync", "--quiet", "--compile-bytecode", "--python", own, "--require-hashes", str(pins)],
        [
            uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            own,
            "--no-deps",
            "--no-build-isolation",
            "--editable",
            str(ROOT),
        ],
    ):
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            return False
    stamp.write_text(state)
    return True


def main(uv: str) -> int:
    own, pythons, failed = sys.version_info[:2], found(), False
    for version in SUPPORTED:
        if version not in pythons and version != own:
            print(f"pythons: no Python {version[0]}.{version[1]} here", flush=True)
    for version, python in pythons.items():
        name = f"Python {version[0]}.{version[1]}"
        if version == own:
            continue
        place = ROOT / ".tools" / f"python-{version[0]}.{version[1]}"
        began = time.monotonic()
        if not set_up(uv, python, place):
            print(f"pythons: {name} ({python}) cannot be set up", flush=True)
            failed |= version in SUPPORTED
            continue
        print(f"pythons: {name} ({python}), set up in {time.monotonic() - began:.0f} s", flush=True)
        tests = [f"tests/{test}.py" for test in TESTS]
        command = [str(place / "bin" / "python"), "-m", "pytest", "-q", "--no-header", "-n", "auto", "-r", "fE", *tests]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        failed |= bool(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
