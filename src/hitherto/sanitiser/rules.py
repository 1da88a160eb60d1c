r"""All built-in rules for secrets and personal data, as data that `sanitiser` runs.

Formats come in families: the prefix of a vendor with a number of characters (`vendor_rules`), a name that announces a
secret with a value that looks random (`assignment_rules`), and here a scheme with a user and a password, headers and
options, JSON web tokens, private keys and personal data.
"""

# ruff: noqa: E501  # a pattern is easier to read whole than in pieces

from .assignment_rules import ASSIGNMENTS
from .rule import COMMON, HEADER, PERSONAL_DATA, PLACEHOLDERS, START, TEMPLATES, URL, Rule
from .vendor_rules import CLOUDS, PROVIDERS, TOKENS

__all__ = ["COMMON", "PERSONAL", "SECRETS", "Rule"]

URLS = (
    Rule(
        "url-password",
        URL,
        r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^\s:/?#@\"'`<>\[\]{}()\\]*:)?([^\s@\"'`<>{}\\]{2,})@[\w\[]",
        ("://",),
        1,
        0.0,
        "url-password",
        (*TEMPLATES, r"^\$", r"^[*x]+$", r"^\.+$"),
    ),
    Rule(
        "oracle-password",
        URL,
        r"(?i)jdbc:oracle:[a-z]{2,8}:[^\s:/@\"']{1,60}/([^\s@\"']{4,})@",
        ("jdbc:oracle:",),
        1,
        0.0,
        "",
        TEMPLATES,
    ),
)

_OPTIONS = r"(?:[ \t]+--?[\w-]+(?:[ \t=]+[^\s-]\S*)?)*?[ \t]+"  # that come first

HTTP = (
    Rule(
        "bearer-token",
        HEADER,
        rf"(?i){START}bearer[ \t]+[\"']?([\w.~+/-]{{12,}}=*)",
        ("bearer",),
        1,
        3.0,
        "random",
        PLACEHOLDERS,
    ),
    Rule(
        "basic-credentials",
        HEADER,
        rf"(?i){START}basic[ \t]+([A-Za-z0-9+/_-]{{6,}}={{0,2}})",
        ("basic",),
        1,
        2.0,
        "basic",
        TEMPLATES,
    ),
    Rule(
        "authorization-header",
        HEADER,
        rf"(?i){START}authorization[\"']?[ \t]*[:=,][ \t]*[\"']?(?:[a-z][\w-]{{2,16}}[ \t]+)?(?:token=|key=)?[\"']?([\w.~+/:-]{{12,}}=*)",
        ("authorization",),
        1,
        3.0,
        "random",
        PLACEHOLDERS,
    ),
    Rule(
        "header-key",
        HEADER,
        rf"(?i){START}(?:x-[a-z-]{{0,20}}(?:key|token|secret|auth)|private-token|cookie|set-cookie)[\"']?[ \t]*[:=][ \t]*[\"']?([\w.~+/:%-]{{12,}}=*)",
        ("x-", "private-token", "cookie"),
        1,
        3.0,
        "random",
        PLACEHOLDERS,
    ),
    Rule(
        "cookie",
        HEADER,
        rf"(?i){START}(?:set-)?cookie[\"']?[ \t]*[:=][ \t]*[\"']?([\w.-]+=[^\s;\"']*(?:;[ ]?[\w.-]+=[^\s;\"']*)*)",
        ("cookie",),
        1,
        0.0,
        "cookies",
    ),
    Rule(
        "http-signature",
        HEADER,
        r"(?i)\b(?:response=\"|signature=\"?)([0-9a-f]{32}|[0-9a-f]{64}|[A-Za-z0-9+/]{43}=|[A-Za-z0-9+/]{86}==)(?:[\"\s,]|$)",
        ("response=", "signature="),
        1,
        3.0,
        "mixed",
    ),
    Rule(
        "command-line-password",
        HEADER,
        r"(?im)(?:^|[ \t])(?:--?(?:pass(?:word|wd)?|token|secret|api-?key|access-?token|auth-?token)|sshpass[ \t]+-p)[ \t]+[\"']?([^\s\"'$<>{}\[\]()|]{6,})",
        ("-pass", "-token", "-secret", "-api-key", "-apikey", "-access", "-auth", "sshpass"),
        1,
        0.0,
        "password",
        PLACEHOLDERS,
    ),
    Rule(
        "command-password",  # the options of commands that everybody uses
        HEADER,
        rf"(?im)(?:{START}(?:(?:mysql\w*|mariadb[\w-]*){_OPTIONS}-p|redis-cli{_OPTIONS}-a[ \t]+|(?:docker|podman|registry|oras|az|oc|cf) login(?:[ \t]+[^\s-]\S*)?{_OPTIONS}-p[ \t]+"
        rf"|(?:mongo\w*|sqlcmd|bcp|zip|unzip){_OPTIONS}-p[ \t]+|ldap\w+{_OPTIONS}-w[ \t]+|gh secret set[ \t]+\w+{_OPTIONS}(?:-b|--body)[ \t=]+)"
        r"|/user:\S+[ \t]+)[\"']?([^\s\"'$<>{}\[\]()|;]{5,})",
        (
            *(
                "mysql",
                "mariadb",
                "redis-cli",
                "docker login",
                "podman login",
                "registry login",
                "oras login",
                "az login",
            ),
            *("oc login", "cf login", "mongo", "sqlcmd", "bcp", "zip ", "ldap", "gh secret", "/user:"),
        ),
        1,
        0.0,
        "password",
        PLACEHOLDERS,
    ),
    Rule(
        "command-line-user",
        HEADER,
        r"(?m)(?:^|[ \t])(?:-u|--user|--proxy-user)[ \t=]*[\"']?[^\s:\"'$<>{}/]*:[\"']?([^\s\"'$<>{}]{5,})",
        ("-u", "--user", "--proxy-user"),
        1,
        0.0,
        "password",
        PLACEHOLDERS,
    ),
)

JWTS = (
    Rule(
        "jwt",
        "jwt",
        rf"{START}(eyJ[\w-]{{14,}}\.[\w-]{{14,}}(?:\.[\w-]+){{0,3}}={{0,2}})",
        ("eyj",),
        1,
        3.0,
        "jwt",
        PLACEHOLDERS,
    ),
    Rule("jwt-in-base64", "jwt", r"\bZXlK[A-Za-z0-9+/_-]{60,}={0,2}", ("zxlk",), 0, 3.5, "mixed"),
)

PRIVATE_KEYS = (
    # The pattern finds the first line; `block` takes all of it, to the last line or as far as it looks like a key.
    Rule(
        "private-key",
        "private-key",
        r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----|---- BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY ----"
        r"|Private-Lines: \d+",
        ("PRIVATE KEY", "Private-Lines: "),  # as they are written
        0,
        0.0,
        "block",
    ),
)

PERSONAL = (
    Rule(
        "email",
        PERSONAL_DATA,
        r"\b[A-Za-z0-9][A-Za-z0-9._%+'-]*@(?:[A-Za-z0-9-]+\.)+[A-Za-z]{2,24}\b",
        ("@",),
        0,
        0.0,
        "email",
        (),
        secret=False,
    ),
    Rule(
        "phone",
        PERSONAL_DATA,
        r"(?m)(?:^|[^\w.+/=-])((?:\+|00[1-9])[0-9][0-9 \t().\x{2010}-\x{2014}/-]{5,22}[0-9]"
        r"|\(0?[1-9][0-9]{1,4}\)[ \t]?[0-9][0-9 -]{4,12}[0-9]|0[1-9][0-9]{1,4}[ /-][0-9][0-9 -]{4,12}[0-9]"
        r"|(?:1[ .-])?[2-9][0-9]{2}[ .-][2-9][0-9]{2}[ .-][0-9]{4})(?:[^\w.=-]|[.-](?:\W|$)|$)",
        (),
        1,
        0.0,
        "phone",
        (),
        secret=False,
    ),
    Rule(
        "card",
        PERSONAL_DATA,
        r"(?m)(?:^|[^\w.-])([2-6][0-9]{3}(?:[ -]?[0-9]{4}){2}[ -]?[0-9]{1,7}|3[47][0-9]{2}[ -]?[0-9]{6}[ -]?[0-9]{5})\b",
        (),
        1,
        0.0,
        "luhn",
        (),
        secret=False,
    ),
    Rule(
        "iban",
        PERSONAL_DATA,
        r"\b[A-Z]{2}[0-9]{2}(?:[ ]?[A-Z0-9]{4}){2,7}(?:[ ]?[A-Z0-9]{1,4})?\b",
        (),
        0,
        0.0,
        "iban",
        (),
        secret=False,
    ),
    Rule(
        "ip-address",
        PERSONAL_DATA,
        r"(?m)(?:^|[^\w.:-])((?:[0-9]{1,3}\.){3}[0-9]{1,3})(?:[^\w.]|\.(?:\W|$)|$)",
        (),
        1,
        0.0,
        "ip",
        (),
        secret=False,
    ),
    Rule(
        "ipv6-address",
        PERSONAL_DATA,
        r"(?m)(?:^|[^\w:.])((?:[0-9A-Fa-f]{1,4}::?){2,7}[0-9A-Fa-f]{0,4})(?:[^\w:]|$)",
        (":",),
        1,
        0.0,
        "ip",
        (),
        secret=False,
    ),
)

SECRETS = (*PRIVATE_KEYS, *PROVIDERS, *CLOUDS, *TOKENS, *JWTS, *URLS, *HTTP, *ASSIGNMENTS)
