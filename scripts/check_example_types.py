"""Check the types of the examples in README.md and docs/recording.md with mypy, strictly, as they stand there.

`make lint` runs it. The tests run the same examples (`tests/test_docs.py`); a reader who copies one into a typed
program must not find errors that running does not show.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/recording.md")
_EXAMPLE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        return max(_check(ROOT / page, Path(folder)) for page in PAGES)


def _check(page: Path, folder: Path) -> int:
    """Run mypy over all examples of a page, as one program. Return its exit code."""
    program = folder / f"{page.stem.lower()}_examples.py"
    program.write_text(_with_lines_of(page), encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--num-workers=2", str(program)]
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
