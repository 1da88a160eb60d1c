"""llm: its log is kept as its provider saw it.

Requirements: F1, F2.
"""

from pathlib import Path

import hitherto
from hitherto import formats

from ..support.provider import Provider, provider
from .running import Home, needs
from .scripted import ACKNOWLEDGED, Entry, answer, read_chat, read_thread

pytestmark = needs("llm")

_MODELS = """
- model_id: local
  model_name: local
  api_base: "{url}/v1"
  can_stream: false
  supports_tools: true
"""


def home_for(server: Provider, path: Path) -> Home:
    home = Home(path, LLM_USER_PATH=str(path / "llm"), OPENAI_API_KEY="no-key-at-all")
    (path / "llm").mkdir()
    (path / "llm" / "extra-openai-models.yaml").write_text(_MODELS.format(url=server.url))
    return home


def last_seen(server: Provider) -> list[Entry]:
    return read_chat(server.bodies[-1])


def test_a_conversation_with_a_tool_that_goes_on_is_kept_as_the_provider_saw_it(tmp_path: Path) -> None:
    with provider(answer) as server, hitherto.open(tmp_path / "a.db") as store:
        home = home_for(server, tmp_path / "home")
        log = home.path / "llm" / "logs.db"
        home.run("llm", "prompt", "-m", "local", "-T", "llm_version", "use a tool please")
        seen = last_seen(server)
        assert [entry.role for entry in seen] == ["user", "assistant", "tool"]
        assert formats.load(log, store).messages == 4
        (info,) = store.conversations().items
        assert read_thread(store.conversation(info).thread()) == [*seen, Entry("assistant", ACKNOWLEDGED)]
        home.run("llm", "prompt", "-c", "this goes on")
        seen = last_seen(server)
        assert formats.load(log, store).messages == 2
        said = read_thread(store.conversation(info.id).thread())
        assert said == [*seen, Entry("assistant", "I heard: this goes on")]
        assert formats.load(log, store).messages == 0
        assert store.verify().ok
