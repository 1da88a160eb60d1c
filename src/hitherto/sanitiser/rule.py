r"""The type of a rule, and the parts of patterns that several families of rules share.

A rule is a pattern in RE2's syntax, keywords of which a text must have one before the pattern runs, and more conditions
for a match. `not_` names patterns; a match that contains one is no secret: placeholders, templates, examples in
manuals.
"""

from msgspec import Struct

from ..errors import InvalidArgument

PROVIDER, CLOUD, TOKEN, URL, HEADER = "provider-key", "cloud", "token", "connection-string", "http-auth"
ASSIGNMENT, PERSONAL_DATA = "assignment", "personal"

TEMPLATES = (  # complete ones, and beginnings: a password may have such signs in any order
    *(r"^\$\{", r"\$\{[\w.:/-]*\}", r"^\{\{", r"\{\{[^{}]*\}\}", r"^\$\(", r"\$\([^()]*\)"),
    *(r"<[^<>]*>", r"%[(s]", r"\[redacted:", r"^\$[A-Za-z_]\w*$", r"^%\w+%$"),
)
PLACEHOLDERS = (
    *TEMPLATES,
    r"(?i)x{5,}",
    r"\*{3}",
    r"#{4}",
    r"\.\.\.",
    r"0{10}",
    r"(?i)example",
    r"(?i)placeholder",
    r"(?i)change.?me",
    r"(?i)redacted",
    r"(?i)your[._-]",
    r"(?i)hmac[._-]?sha",
    r"(?i)^oauth[0-9.]*$",
)
SECRET_NAMES = (
    *("pass", "pw", "psk", "salt", "secret", "token", "key", "cred", "auth", "login", "bearer", "webhook"),
    *("kennwort", "wachtwoord", "contrase", "senha"),
    *("client_id", "client-id", "client.id", "clientid", "access_id", "access-id", "access.id", "accessid", "dsn"),
)
COMMON = frozenset(  # keywords that are common in ordinary texts: each is searched once, not at every place
    (*SECRET_NAMES, "://", "https://", "@", ":", "::", "-u", "x-", "basic", "cookie", "keys")
)


class Rule(Struct, frozen=True):
    """One kind of secret or personal data: a pattern, and more conditions for a match."""

    name: str  # small letters, digits and hyphens; it is part of the marker
    family: str
    pattern: str  # in RE2's syntax
    keywords: tuple[str, ...] = ()  # small letters; a match contains one of them. None: the pattern is always tried
    group: int = 0  # the part of the pattern that is the secret
    entropy: float = 0.0  # the least entropy of the secret, in bits for each character
    check: str = ""  # another condition: one of the names in `plausibility.CHECKS`
    not_: tuple[str, ...] = ()  # patterns; a match that contains one is no secret
    secret: bool = True  # False: personal data

    def __post_init__(self) -> None:
        """Refuse values of wrong types at once. The pattern is checked when it is compiled."""
        texts = (self.name, self.family, self.pattern, self.check)
        several = (self.keywords, self.not_)
        fits = all(isinstance(text, str) for text in texts)
        fits = fits and all(type(s) is tuple and all(isinstance(text, str) for text in s) for s in several)
        numbers = type(self.group) is int and type(self.entropy) in (int, float) and type(self.secret) is bool
        if not (fits and numbers):
            raise InvalidArgument(
                "a rule is made of texts, tuples of texts, and numbers", hint="Rule(name, family, pattern)"
            )


# The beginning of a token: the beginning of a word, or the end of an escape, which ends in a letter and is no word:
# `\n`, `%20`, `\u003d`, a colour of a terminal.
START = r"(?:\b|%[0-9A-Fa-f]{2}|\\(?:[nrtbf]|u00[0-9A-Fa-f]{2}|x[0-9A-Fa-f]{2})|\[[0-9;]{1,8}m)"


UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
