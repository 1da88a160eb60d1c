"""The matrix of docs/recording.md: recording beneath real frameworks, in environments of their own.

`make frameworks` installs them, pinned and hashed. Each row runs in a process of its own against the provider on
loopback, and what the store holds afterwards is the conversation that was held: one thread, each message once, every
tool call with its result, the system prompt and the usage of each answer.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

import hitherto
from tests.support.provider import provider

from .brain import answer
from .words import FIRST, PROMPT, SECOND

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".tools" / "frameworks"
PAGE = ROOT / "docs" / "recording.md"
# The row, the environment that it runs in, the package that the matrix names, and whether a tool is called.
ROWS = [
    ("langchain_openai", "current", "langchain-openai", True),
    ("langchain_openai_async", "current", "langchain-openai", True),
    ("langchain_anthropic", "current", "langchain-anthropic", True),
    ("langchain_google", "earlier", "langchain-google-genai", True),
    ("openai_agents_responses", "current", "openai-agents", True),
    ("openai_agents_chat", "current", "openai-agents", True),
    ("pydantic_ai_openai", "current", "pydantic-ai-slim", True),
    ("pydantic_ai_responses", "current", "pydantic-ai-slim", True),
    ("pydantic_ai_anthropic", "current", "pydantic-ai-slim", True),
    ("pydantic_ai_google", "current", "pydantic-ai-slim", True),
    ("agent_framework", "current", "agent-framework-openai", True),
    ("autogen", "current", "autogen-ext", True),
    ("haystack", "current", "haystack-ai", True),
    ("smolagents", "current", "smolagents", False),
    ("instructor", "earlier", "instructor", False),
    ("litellm", "earlier", "litellm", False),
    ("llama_index_openai", "earlier", "llama-index-llms-openai", False),
    ("llama_index_anthropic", "earlier", "llama-index-llms-anthropic", False),
    ("strands_openai", "earlier", "strands-agents", True),
    ("strands_anthropic", "earlier", "strands-agents", True),
    ("adk", "earlier", "google-adk", True),
]


@pytest.mark.parametrize(("row", "environment", "package", "has_tool"), ROWS, ids=[row for row, *_ in ROWS])
def test_what_is_said_through_a_framework_is_one_thread(
    row: str, environment: str, package: str, has_tool: bool, tmp_path: Path
) -> None:
    python = ENVIRONMENTS / environment / "bin" / "python"
    if not python.exists():
        pytest.skip("the frameworks are not installed: make frameworks")
    path = tmp_path / "chats.db"
    with provider(answer) as server:
        run = [str(python), str(Path(__file__).with_name("rows.py")), row, server.url, str(path)]
        done = subprocess.run(run, env=_environment(tmp_path), capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        requests = len(server.asked)
    with hitherto.open(path) as store:
        [info] = store.conversations()
        talk = store.conversation(info.id)
        thread = talk.thread()
        assert len(talk.branches()) == 1
        assert store.stats().messages == len(thread)
        assert PROMPT in talk.system_prompt
        with_tool = ["user", "assistant", "tool_result", "assistant", "user", "assistant"]
        assert [m.role for m in thread] == (with_tool if has_tool else ["user", "assistant"] * 2)
        assert [m.text for m in thread if m.role == "user"] == [FIRST if has_tool else "Hello.", SECOND]
        assert thread[-1].text == f"You said: {SECOND}"
        answers = [m for m in thread if m.role == "assistant"]
        assert len(answers) == requests
        assert all(m.usage is not None and m.usage.output_tokens == 3 for m in answers)
        if has_tool:
            assert "sunny in Rome" in thread[2].text
            assert thread[1].blocks[-1].tool_name == "get_weather"


def test_the_matrix_names_every_row_and_the_version_that_is_run() -> None:
    pins: dict[tuple[str, str], str] = {}
    for environment in ("current", "earlier"):
        text = (ROOT / "requirements" / f"frameworks-{environment}.txt").read_text()
        pins |= {(environment, name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)}
    page = PAGE.read_text("utf-8")
    for row, environment, package, _ in ROWS:
        line = f"| {package} {pins[environment, package]} |"
        assert line in page, f"docs/recording.md has no row for {row}: {line}"


def _environment(home: Path) -> dict[str, str]:
    """No home and no network: what a framework would fetch at import, it does without."""
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY"), "k")
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "HAYSTACK_TELEMETRY_ENABLED": "False", "OTEL_SDK_DISABLED": "true"}
    return {**keys, **quiet, "PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT / "src")}
