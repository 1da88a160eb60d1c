"""A wheel has what it should have. `make release-check` installs it, on each Python and with each extra."""

import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

import hitherto
from scripts.smoke import ENTRANCES

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def metadata(wheel: zipfile.ZipFile) -> Message:
    return message_from_bytes(wheel.read(f"hitherto-{hitherto.__version__}.dist-info/METADATA"))


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in source.glob("hitherto/**/*") if path.is_file()}
    ours = {name for name in files if "__pycache__" not in name}
    assert {"hitherto/py.typed", "hitherto/testing/machine.py", "hitherto/viewer/static/viewer.css"} <= ours
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == ours


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    said = metadata(wheel)
    assert said["Version"] == PROJECT["version"] == hitherto.__version__
    assert set(said.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert "Typing :: Typed" in said.get_all("Classifier", [])
    assert str(said.get_payload()).startswith("# hitherto")


def test_every_extra_has_an_entrance_that_the_release_is_checked_by() -> None:
    assert set(ENTRANCES) == set(PROJECT["optional-dependencies"])


def test_the_changelog_has_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    version = re.escape(hitherto.__version__)
    assert re.search(rf"^## \[{version}\]|which will be {version}\.", text, re.MULTILINE)
