"""What to do now, said to those who type commands.

The library's errors advise people who write code: `client.retry()`, `Config(api_key=…)`. Here that is put into options
and commands. What is the same for all commands is said in `_exit_codes`.
"""

from ..errors import HithertoError, NotFound
from ._exit_codes import hint_of

_ELSEWHERE = (
    (", or give Config(api_key=…)", ""),
    ("; or give Config(command=…)", ""),
    ("; or format=…", ""),
    ("; or --format", ""),
    ("give the key as api_key, or in the environment,", "give the key in the environment,"),
    (
        "give the provider's https address, and the key apart from it",
        "--base-url takes the provider's https address, or with --allow-insecure one on this machine",
    ),
    ("or give the model_path of a GGUF file", "or give a GGUF file: --model-path"),
    ("model_path is the path", "--model-path is the path"),
    ("; a larger timeout_seconds waits longer", ": other processes use the store"),
    ("get a new handle with store.conversation(id) or fork(at=…)", "-c goes on with another message"),
    (
        "split the write, or pass binary content as bytes: it does not count here",
        "say less at once, or bring fewer files",
    ),
    ("a larger max_attachment, given when the store is opened, allows it", "bring a smaller file"),
    ("go on with another chat(), or allow more rounds where the client is made", "say something to go on"),
    ("make a new client; what was said is not kept", "begin again: hitherto chat -n"),
    ("open it once for writing, which puts the two together", "hitherto log, once, puts the two together"),
    (": Key.generate() makes one", ": hitherto key new makes one"),
    ("text.encode('utf-16', 'surrogatepass').decode('utf-16', 'replace') joins split pairs", "say it without"),
    ("read the conversation again before you repeat the write", "hitherto show @ tells whether it was kept"),
)
_AT_THE_PROMPT = (
    ("client.retry() asks again", "/retry asks again, /undo takes the question back"),
    ("client.retry()", "/retry"),
    ("client.undo()", "/undo"),
)
_AGAIN = (
    "the question is kept: hitherto chat, without a prompt, offers to ask it again, and /undo takes it back; -n begins "
    "a new conversation"
)
_BACK = (
    "the request itself was refused, and the question is kept: hitherto chat, without a prompt, and /undo takes it "
    "back; -n begins a new conversation"
)

_GONE = "/fork shows what can be gone on from here; /new begins a new conversation"


def _advice(error: HithertoError, *, prompting: bool, kept: bool) -> str | None:
    """The hint of an error, for somebody who sits at our prompt, or has asked a single question."""
    hint = hint_of(error)
    for said, better in _ELSEWHERE + (_AT_THE_PROMPT if prompting else ()):
        hint = hint and hint.replace(said, better)
    if prompting and isinstance(error, NotFound):
        return _GONE
    if hint is None or prompting:
        return hint
    if "client.retry()" in hint:
        return _AGAIN if kept else "ask again"
    if "client.undo()" in hint:
        return _BACK if kept else "the request itself was refused: say it differently"
    return hint


def hint_at_prompt(error: HithertoError) -> str | None:
    """Return the hint for a user at the prompt."""
    return _advice(error, prompting=True, kept=True)


def hint_for_question(error: HithertoError, *, is_kept: bool) -> str | None:
    """Return the hint for a user who asked a single question, which was recorded or not."""
    return _advice(error, prompting=False, kept=is_kept)
