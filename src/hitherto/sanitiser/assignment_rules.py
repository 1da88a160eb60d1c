r"""The rules for assignments: a name that announces a secret, and a value that looks random.

They find the secrets of services that no other rule knows.
"""

# ruff: noqa: E501  # a pattern is easier to read whole than in pieces

from .rule import ASSIGNMENT, PLACEHOLDERS, SECRET_NAMES, Rule

# The left side of an assignment: a word that announces a secret. The pattern begins with that word; the check also reads
# the rest of the name, before and behind it.
_WORD = (
    r"(?:pass(?:w(?:or)?[dt]|phrase|code|e)?|pwd?|psk|salt|secrete?|token|(?:api|access|app|auth|private|account|service|master)[_.-]?key"
    r"|key|cred(?:ential)?s?|auth(?:orization)?|login|client[_.-]?id|access[_.-]?id|bearer|dsn|webhook"
    r"|kennwort|wachtwoord|contrase\Sa|senha)"
)
_REST = r"[0-9A-Za-z_-]{0,20}"  # of the name
_SIGN = "[=:>\uff1a\uff1d]"
_S = "[ \\t\u00a0\u3000]"  # also the spaces that editors and Chinese texts put there
_TYPE = r"(?:[ \t]+[A-Za-z]{2,12}|[ \t]*:[ \t]*&?[A-Za-z]{2,12}(?:\[[A-Za-z]*\])?)?"
_CLOSING = r"(?:\\{0,3}[\"'`\])*]){0,3}"  # of the name, be it escaped
_NEXT_LINE = r"(?:(?:[|>][+-]?[ \t]{0,8})?\r?\n[ \t]*)?"
_IS = (
    rf"{_TYPE}{_S}*[:=?.+!|<>-]{{0,3}}{_SIGN}(?:\*\*)?{_S}*{_NEXT_LINE}"
    r"|[ \t]+value[ \t]*=[ \t]*|[ \t]+(?:is|was)[ \t]*:?[ \t]+|[ \t]*\|[ \t]*|[ \t]+[-\x{2013}\x{2014}][ \t]+"
)
_OPENING = r"(?:[@$bBrRfFuU]{0,2}\\{0,3}[\"'`]{1,3})"
_MADE = (  # of a text, before it is assigned
    r"(?:(?:new[ \t]+)?(?:String(?:::from)?|str|Some|SecretStr(?:ing)?|SecureString|Buffer\.from|bytes|(?:base64\.)?b64decode)"
    r"[ \t]*\([ \t]*|ConvertTo-SecureString[ \t]+(?:-String[ \t]+)?)?"
)
_CALLED = r"[ \t]*(?:\.[A-Za-z]\w{0,15})?\([ \t]*"  # the first argument of a call by that name
_WORDS = r"(?:keys|tokens|secrets|passwords|credentials|creds)"
_ITEM = r"[^\s\"'`,\[\](){}<>]+"
_LIST = (  # in one line; with a line for each; and that as YAML has it
    rf"\[[ \t]*[\"'`]?{_ITEM}(?:[\"'`]?[ \t]*,[ \t]*[\"'`]?{_ITEM})*"
    rf"|\[[ \t]*\r?\n[ \t]*[\"'`]{_ITEM}(?:[\"'`],[ \t]*\r?\n[ \t]*[\"'`]{_ITEM})*"
    rf"|\r?\n[ \t]*-[ \t]+[\"']?{_ITEM}(?:[\"']?[ \t]*\r?\n[ \t]*-[ \t]+[\"']?{_ITEM})*"
)

ASSIGNMENTS = (
    Rule(
        "assigned-secret",
        ASSIGNMENT,
        rf"(?i){_WORD}{_REST}(?:\[\w*\])?{_CLOSING}(?:{_IS}|[ \t]*,[ \t]*|{_CALLED}|[ \t]+)(?:\[[ \t]*|{_MADE}){_OPENING}([^\s\"'`\\]{{6,}})",
        SECRET_NAMES,
        1,
        0.0,
        "assigned",
        PLACEHOLDERS,
    ),
    Rule(
        "compared-secret",
        ASSIGNMENT,
        rf"(?i)[\"'`]([^\s\"'`\\]{{6,}})[\"'`][ \t]*[!=]==?[ \t]*[\w.]*{_WORD}",
        SECRET_NAMES,
        1,
        0.0,
        "compared",
        PLACEHOLDERS,
    ),
    Rule(
        "assigned-line",  # to the end of the line, with signs that a piece of code would have in pairs
        ASSIGNMENT,
        rf"(?im)^[ \t]*[\w.-]*{_WORD}{_REST}[ \t]*(?::=|[:=])[ \t]*([^\s\"'`]{{8,200}})[\"'`,;]?[ \t]*$",
        SECRET_NAMES,
        1,
        0.0,
        "assigned-line",
        PLACEHOLDERS,
    ),
    Rule(
        "assigned-value",
        ASSIGNMENT,
        rf"(?i){_WORD}{_REST}{_CLOSING}(?:{_IS})([0-9A-Za-z_+/=.~^@!?&%*:#$-]{{6,}})",
        SECRET_NAMES,
        1,
        0.0,
        "assigned-bare",
        PLACEHOLDERS,
    ),
    Rule(
        "assigned-list",
        ASSIGNMENT,
        rf"(?i){_WORDS}{_CLOSING}{_TYPE}[ \t]*(?::=|=>|[:=])[ \t]*({_LIST})",
        ("keys", "tokens", "secrets", "passwords", "credentials", "creds"),
        1,
        0.0,
        "assigned-list",
        (*PLACEHOLDERS, r"(?:a-z|A-Z|0-9).*(?:a-z|A-Z|0-9)"),  # of a regular expression
    ),
    Rule(
        "directive-secret",  # a name and its value with a space between: of a Dockerfile, of a shell
        ASSIGNMENT,
        rf"(?im)^[ \t]*(?:env|arg|setenv|export|set)[ \t]+[\w.-]*{_WORD}{_REST}[ \t]+[\"']?([^\s\"'=]{{6,}})",
        ("env ", "env\t", "arg ", "arg\t", "export ", "export\t", "set ", "set\t"),
        1,
        0.0,
        "directive",
        PLACEHOLDERS,
    ),
    Rule(
        "mentioned-secret",  # in a sentence: "the token … does not work"
        ASSIGNMENT,
        r"(?i)\b(?:token|secret|password|passwd|passphrase|credential|(?:api|access|secret|auth|license)[ _-]?key)"
        rf"[ \t]+{_OPENING}?([^\s\"'`<>(){{}}\[\]|,;=]{{8,}})",
        ("token", "secret", "passw", "passphrase", "credential", "key"),
        1,
        0.0,
        "mentioned",
        PLACEHOLDERS,
    ),
    Rule(
        "element-secret",  # of XML, in the braces that Jenkins puts around what it keeps
        ASSIGNMENT,
        r"(?i)<[\w.:-]*(?:secret|password|passphrase|token|apikey|privatekey)[\w.-]{0,40}>[ \t]*(\{[^<>{}\n]{12,}\})[ \t]*</",
        ("secret", "passw", "passphrase", "token", "key"),
        1,
    ),
    Rule(
        "dockerconfig",
        ASSIGNMENT,
        r"dockerconfigjson[\"']?[ \t]*:[ \t]*[\"']?([A-Za-z0-9+/]{20,}=*)",
        ("dockerconfigjson",),
        1,
    ),
    Rule(
        "named-value",  # the name is a value itself: of Kubernetes, of Terraform
        ASSIGNMENT,
        r"(?i)(?:\b(?:name|key)[\"']?[ \t]*[:=][ \t]*[\"']?[\w.-]+[\"']?[ \t]*(?:,?[ \t]*\r?\n[ \t]*|,[ \t]*)[\"']?value[\"']?:"
        r"|\bvariable \"[\w.-]+\"[ \t]*\{[ \t]*\r?\n[ \t]*(?:(?:type|sensitive|nullable)[ \t]*=[ \t]*\w+[ \t]*\r?\n[ \t]*)*default[ \t]*=)"
        r"[ \t]*[\"']?([^\s\"'`,]{6,})",
        ("value:", "value':", 'value":', 'variable "'),
        1,
        0.0,
        "named-apart",
        PLACEHOLDERS,
    ),
    Rule(
        "credential-call",
        ASSIGNMENT,
        r"(?i)(?:\bauth(?:=| = |: ?)[(\[]|credentials?\(|basic_?auth\(|PasswordAuthentication\(|\.login\()"
        r"[ \t]*[\"'][^\s\"']+[\"'][ \t]*,[ \t]*[\"']([^\s\"']{8,})[\"']",
        ("auth=", "auth =", "auth:", "credential(", "credentials(", "auth(", "authentication(", ".login("),
        1,
        0.0,
        "password",
        PLACEHOLDERS,
    ),
    Rule(
        "client-call",
        ASSIGNMENT,
        r"(?:Client|algoliasearch|Api|API)\((?:[ \t]*[\"'][^\s\"']+[\"'][ \t]*,)?[ \t]*[\"']([A-Za-z0-9+/=_-]{20,})[\"']",
        ("client(", "algoliasearch(", "api("),
        1,
        3.0,
        "random",
        PLACEHOLDERS,
    ),
    Rule(
        "lone-string",
        ASSIGNMENT,
        r"(?m)^[\"'`]([A-Za-z0-9+/=_-]{20,200})[\"'`]$",
        (),
        1,
        3.0,
        "random",
        PLACEHOLDERS,
    ),
    Rule(
        "bundler-credentials",
        ASSIGNMENT,
        r"BUNDLE_[A-Z0-9_]+__[A-Z]{2,10}[\"']?[ \t]*[:=][ \t]*[\"']?([0-9A-Za-z_.-]+:[0-9A-Za-z_.-]{6,})",
        ("bundle_",),
        1,
        2.5,
        "",
        PLACEHOLDERS,
    ),
    Rule(
        "password-field",
        ASSIGNMENT,
        r"(?i)type=[\"']password[\"'](?:[ \t]+[\w:-]+(?:=[\"'][^\s\"'<>]*[\"'])?)*?[ \t]+value=[\"']([^\s\"'<>]{5,})",
        ("type='password", 'type="password'),
        1,
        0.0,
        "password",
        PLACEHOLDERS,
    ),
    Rule(
        "netrc-password",
        ASSIGNMENT,
        r"(?i)\b(?:login|user)[ \t]+\S+[ \t]+password[ \t]+([^\s\"']{5,})",
        ("password",),
        1,
        0.0,
        "password",
        PLACEHOLDERS,
    ),
    Rule(
        "password-line",  # a line of its own in a file of settings
        ASSIGNMENT,
        r"(?im)^[ \t]*(?:password|passwd|requirepass|masterauth|rootpw) [\"']?([^\s\"']{6,})[\"']?[ \t]*$",
        ("password ", "passwd ", "requirepass ", "masterauth ", "rootpw "),
        1,
        0.0,
        "password",
        PLACEHOLDERS,
    ),
    Rule(
        "pgpass-line",
        ASSIGNMENT,
        r"(?m)^[\w.*-]+:(?:543[0-9]|643[0-9]|\*):[\w.*-]+:[\w.*-]+:([^\s:\"']{6,})$",
        (":543", ":643", ":*:"),
        1,
        0.0,
        "password",
        PLACEHOLDERS,
    ),
    Rule(
        "password-hash",  # as crypt(3) and its successors write it
        ASSIGNMENT,
        r"\$(?:apr1|[156y]|sha1|gy|7)\$(?:[\w./=,-]{1,40}\$){1,3}[\w./]{22,128}|\$2[abxy]\$[0-9]{2}\$[\w./]{53}"
        r"|\$argon2(?:id|i|d)\$[\w=,$+/-]{30,200}|\$pbkdf2[\w-]{0,12}\$[\w=,.$+/-]{30,200}",
        (
            "$apr1$",
            "$1$",
            "$5$",
            "$6$",
            "$y$",
            "$gy$",
            "$7$",
            "$sha1$",
            "$2a$",
            "$2b$",
            "$2x$",
            "$2y$",
            "$argon2",
            "$pbkdf2",
        ),
        0,
        3.0,
    ),
)
