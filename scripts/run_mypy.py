"""Run mypy with workers, and once more without them if it fails.

    python scripts/run_mypy.py [FILE...]

Without files it checks those that pyproject.toml names. With workers mypy is quicker, but it gives each of them a few
seconds to start, and on a busy machine some take longer: then it stops with an error that has nothing to do with types.
The second run is the one that counts. It reads the cache of the first one.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_mypy(*files: str) -> int:
    """Check these files, or those of pyproject.toml. Return mypy's exit code."""
    return _run("--num-workers=2", *files) and _run(*files)


def _run(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "mypy", *arguments], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(run_mypy(*sys.argv[1:]))
