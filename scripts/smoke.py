"""Show that an installed hitherto works: python -P scripts/smoke.py [EXTRA]

`scripts/release_check.py` runs this in environments into which pip has put a wheel and nothing else. Without an extra,
it keeps, resumes, seals, searches, purges and exports, and the entrance of each extra must say what to install. With
one, its entrance must open.
"""

import importlib
import importlib.resources
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import hitherto
from hitherto import Key, Message
from hitherto.chat import Config, new_client


def adapter(module: str, name: str) -> Callable[[], object]:
    return lambda: getattr(importlib.import_module(f"hitherto.adapters.{module}"), name)


def client(provider: str) -> Callable[[], object]:
    return lambda: new_client(Config(provider=provider, model="none", api_key="none"))


def modules(*names: str) -> Callable[[], object]:
    return lambda: [importlib.import_module(name) for name in names]


# How people enter by each extra.
ENTRANCES: dict[str, Callable[[], object]] = {
    "cli": modules("prompt_toolkit"),
    "anthropic": client("claude"),
    "gemini": client("gemini"),
    "openai": client("openai"),
    "local": modules("openai", "xllamacpp"),
    "cloud": lambda: hitherto.snapshots.ObjectStore("memory://"),
    "postgres": modules("psycopg", "psycopg_pool", "hitherto.backends.postgres"),
    "telemetry": modules("opentelemetry.metrics"),
    "openai-agents": modules("hitherto.adapters.openai_agents", "agents"),
    "langgraph": adapter("langgraph", "Saver"),
    "claude-agent": modules("hitherto.adapters.claude_agent", "claude_agent_sdk"),
    "pydantic-ai": adapter("pydantic_ai", "Conversations"),
    "adk": adapter("adk", "SessionService"),
    "strands": adapter("strands", "Repository"),
    "agent-framework": adapter("agent_framework", "History"),
    "llama-index": adapter("llama_index", "ChatStore"),
    "viewer": modules("hitherto.viewer.app", "uvicorn", "nh3", "pygments"),
    "gateway": modules("hitherto.gateway", "uvicorn", "httptools", "truststore", "brotli"),
    "mcp": modules("mcp"),
    "keyring": modules("keyring"),
}


def check_store(folder: Path) -> None:
    key = Key.generate()
    with hitherto.open(folder / "chats.db", key=key) as store:
        talk = store.start(title="Smoke")
        talk.extend([Message.user("Is there smoke?"), Message.assistant("None.")])
    with hitherto.open(folder / "chats.db", key=key) as store:
        talk = store.conversation(talk.id)
        assert [message.text for message in talk.thread()] == ["Is there smoke?", "None."]
        assert [hit.conversation for hit in store.search("smoke")] == [talk.id]
        hitherto.formats.save(store, folder / "chats.jsonl")
        assert store.verify().ok
        store.purge(talk, reason="user-requested")
    with hitherto.open(folder / "again.db") as store:
        assert hitherto.formats.load(folder / "chats.jsonl", store).messages == 2


def check_command_line(folder: Path) -> None:
    program = Path(sys.executable).parent / "hitherto"
    for arguments in (["--version"], ["list", "--store", str(folder / "again.db")], ["--help"]):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
    assert subprocess.check_output([program, "--version"], text=True).strip() == f"hitherto {hitherto.__version__}"


def check_files() -> None:
    here = importlib.resources.files(hitherto)
    for name in ("py.typed", "_engine/dictionary-1.zstd", "usage/prices.json", "recall/SKILL.md", "testing/machine.py"):
        assert here.joinpath(name).is_file(), f"{name} is not in the wheel"


def check_entrances_are_closed() -> None:
    """No extra is installed: each entrance raises an ImportError, and one of ours says what to install."""
    for extra, enter in ENTRANCES.items():
        try:
            enter()
        except hitherto.MissingExtra as error:
            hint = error.hint or ""
        except ModuleNotFoundError as error:  # of a package that only we import
            hint = f"pip install {error.name}"
        else:
            raise AssertionError(f"{extra} is there, though nobody has installed it")
        assert "pip install" in hint, f"{extra}: {hint}"


def main(extra: str | None) -> None:
    where = Path(hitherto.__file__)
    assert where.is_relative_to(sys.prefix), f"hitherto comes from {where}, and not from this environment"
    if extra is not None:
        ENTRANCES[extra]()
        return
    with tempfile.TemporaryDirectory() as folder:
        check_store(Path(folder))
        check_command_line(Path(folder))
    check_files()
    check_entrances_are_closed()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
