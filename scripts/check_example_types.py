"""Check the types of the examples in the documentation, strictly, as they stand there: with mypy and with pyright.

`make lint` runs it. The tests run the same examples (`tests/test_docs.py`); a reader who copies one into a typed
program must not find errors that running does not show. The two checkers disagree in places, so both are asked: pyright
is what editors show. It is basedpyright, which is the same checker from a wheel that brings its own Node.js.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from run_mypy import run_mypy

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("tutorial", "how-to", "data-model", "recording", "recovery", "web-backend")),
    *(f"docs/{name}.md" for name in ("local-servers", "other-tools", "snapshots", "records", "sanitiser", "keys")),
)
CALLS = "tests/recorder/test_types.py"  # the documented calls of all SDKs; mypy checks it with the other tests
_EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        programs = [_program(ROOT / page, Path(folder)) for page in PAGES]
        codes = run_mypy(*map(str, programs)), _run_pyright(Path(folder))  # both, so that both are seen
        return int(any(codes))


def _program(page: Path, folder: Path) -> Path:
    """Write all examples of a page as one program."""
    program = folder / f"{page.stem.lower().replace('-', '_')}_examples.py"
    program.write_text(_with_lines_of(page), encoding="utf-8")
    return program


def _run_pyright(folder: Path) -> int:
    """Run pyright over all programs at once. Return its exit code."""
    settings = {
        "include": [str(folder), str(ROOT / CALLS)],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "extraPaths": [str(ROOT / "src"), str(ROOT)],
        "reportDuplicateImport": False,  # each example imports what it takes
        "reportUnknownMemberType": False,  # types of google-genai name those of Pillow, which need not be there
    }
    project = folder / "pyrightconfig.json"
    project.write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--project", str(project), "--pythonpath", sys.executable]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _with_lines_of(page: Path) -> str:
    """The examples, each in the line that it has on its page, so that errors name the right line."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * (text.count("\n") + 1)
    for found in _EXAMPLE.finditer(text):
        start = text.count("\n", 0, found.start(1))
        source = found[1].splitlines()
        lines[start : start + len(source)] = source
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
