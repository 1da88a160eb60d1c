"""Checks of a match besides its pattern: checksums, and whether a value looks like a secret at all.

A pattern sees characters. It cannot tell a card number from another number, or a token from `get_token_v2`. Each check
here takes the text and the positions of the match and of the secret. It looks at these and at their neighbours in the
same line. It returns the exact position of the secret, or None if there is none.

Pairs of letters distinguish words from random characters: in words of English or of code most pairs are among some 190
usual ones; of random letters, it is one in four.
"""

import base64
import binascii
import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable
from math import log2
from urllib.parse import unquote

Span = tuple[int, int]
Check = Callable[[str, int, int, int], Span | None]  # text, start and end of the secret, start of the match

_split = re.compile(r"\S+").findall

_PAIRS = frozenset(
    _split(
        "th he in er an re nd at on nt ha es st en ed to it ou ea hi is or ti as te et ng of al de se le sa si "
        "ar ve ra ld ur ic ro me ne co li io ll ta no ma el ec om ri di ch ca us ce la il ns tr ee lo ho so ss "
        "mi pe ut ac be po pr ai em mo un id ad ot ts wa su ge wi sh rs ke op av tt fo ap gh ci ck ab ul ly ow "
        "ir im ct up pa ay ey ex fi ff gr ig iv ki ob od oo pl qu rd rk rm rn rt ru ry sc sp tu ty ub uc ug um "
        "va vi ba wh ys ew bu ui bo cl sk ue pu da do dr fa fe fr fu go gi ga ag am ak br by bl ls lt lu nc nf "
        "ni nu ok ol os ov pt rc rl rr rv sw tw xt ye yo ms ds ks"
    )
)
_SEPARATORS = re.compile(r"[_.:/-]+")
_URLSAFE = re.compile(r"[0-9A-Za-z_.-]*\Z")  # the alphabets of base64
_STANDARD = re.compile(r"[0-9A-Za-z+/]*\Z")
_RUNS = re.compile(r"[A-Za-z]+")
_CAMEL = re.compile(r"[A-Za-z][a-z]{2,}(?:[A-Z][a-z]{1,}|[A-Z]{2,4}(?![a-z])|[0-9]{1,2}(?![0-9])){1,12}")
_MIXED = re.compile(
    r"[a-z](?=[0-9]{1,3}[a-zA-Z])|[A-Z](?=[0-9]{1,3}[a-zA-Z]|[a-z]{1,2}[A-Z0-9])|[a-z][A-Z](?=[A-Z0-9])"
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NAME_BEFORE = re.compile(r"[0-9A-Za-z_.-]*\Z")
_NAME_HERE = re.compile(r"[0-9A-Za-z_.-]+")
_EMAIL = re.compile(r"[^@\s]+@[\w-]+(\.[\w-]+)+")
_UUID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HEX = re.compile(r"(?i)[0-9a-f]+")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:(?:\.|::|->)[A-Za-z_]\w*)+")
_ADDRESS = re.compile(r"0x[0-9A-Fa-f]{40}")  # of a smart contract, which calls its currency a token
_COMPONENT = re.compile(r"<[A-Z][\w.]*(?:[ \t]+[\w-]+=[^\s<>]+)*[ \t]+\Z")
_ENDS_A_NAME = ":|\uff1a"  # rather than being a part of a program; the last is the colon of Chinese texts
_CELL_BEGINS = re.compile(r"\|[ \t`*]*(?:\w+[ \t]){0,2}[\w.-]*\Z")
_CELL_ENDS = re.compile(r"[`*\"']*[ \t]*\|")
_ARGUMENT = re.compile(r"[)\]}.]|,(?:\s|\Z)")
_NO_VARIABLE = re.compile(r"[0-9][A-Za-z]+[0-9]|[0-9]{3}")
_ITEM = re.compile(r"[^\s\"'`,\[\]-][^\s\"'`,\[\]]*")
_LAST_NAME = re.compile(r"([\w.-]+)[ \t]+[\"']?\Z")
_LAST_NAME_OF_LINE = re.compile(r"([\w.-]+)[ \t]*(?::=|[:=])[ \t]*\Z")
_NAME_AFTER = re.compile(r"[\"'`][ \t]*[!=]==?[ \t]*([\w.-]+)")
_CONSTANT = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")  # and a variable of the environment
_TIED = re.compile(r"[=:>|<?+!\uff1a\uff1d\u2013\u2014-]|(?:\A|[ \t])(?:is|was|value)[ \t]")
_WORD_BEFORE = re.compile(r"(\w+)[ \t]+\Z")
_NAMED = re.compile(r"(?i)(?:name|key|variable)[\"']?[\s:=]+[\"']?([\w.-]+)")
_COOKIE = re.compile(r"([\w.-]+)=([^\s;\"']*)")
_TOKEN = re.compile(r"[\w-]+")
_PORT = re.compile(r"[0-9]{1,5}(?:[/?#]|\Z)")
_NEXT_FIELD = re.compile(r"&[\w.-]{1,40}=")  # of the query of a URL
_STRONG = re.compile(r"[^\w\s.,:;/'\"()\[\]{}<>\\-]")
# Words that manuals and tests write in the place of a password.
_GUESS = re.compile(r"(?i)pass.?w(?:or)?d|secret|token|dummy|sample|fake|insert|^test|test$|foo|_key|key_|apikey")
_MASK = re.compile(r"/[0-9]")
_VERSION = re.compile(r"(?i)(?:\bv|version|release|rev|section|assembly|build|[=<>~^]=?|#|§)[ :]*\Z")

# Words in a name, by the kind of value that they promise.
_PASSWORDS = (
    *("password", "passwd", "pwd", "passphrase", "passcode", "dbpass"),
    *("passwort", "kennwort", "wachtwoord", "senha"),
)
_SHORT = frozenset(_split("pass pw psk passe contrasena contrase"))  # too short to be the end of any other word
_VERBS = frozenset(_split("pass passe"))
_STRICT = frozenset(_split("token cred creds credential credentials auth authorization login bearer webhook dsn"))
_JOINED = ("token", "apikey", "secretkey", "accesskey", "privatekey", "authkey")
_NO_KEYS = frozenset(
    _split(
        "public pub cache primary foreign sort partition row hot object idempotency dict map index field group "
        "unique lookup search order data translation i18n item session short arrow parent child query bucket "
        "column sorting natural socket"
    )
)
# Words before "key" that do not say whose it is, or say that it is one of a table, a file or a machine.
_NOBODYS = _NO_KEYS | frozenset(
    _split(
        "the a an this that these each every same any no one other new old my your our its his her their of and or to "
        "in on by at as for from with under without is was has have if not no get set put add delete del remove find "
        "return lambda def const let var val string int str uuid guid ssh gpg pgp rsa hash digest fingerprint commit "
        "registry redis event message node shard record entity document file path asset content user job task trace "
        "request run lock lookup matching duplicate existing missing unknown invalid composite secondary entry rule "
        "example sample demo"
    )
)
_NO_TOKENS = frozenset(
    _split(
        "page next continuation sync cursor pad eos bos unk sep mask cls stop special end start resume prev "
        "previous key per first last csrf middleware"
    )
)
_NO_REST = frozenset(
    _split(
        "version length len size name names type types count path paths file filename url uri expires expiry "
        "expiration expired index at ttl hash sha sha1 sha256 digest checksum fingerprint regex pattern field "
        "fields column table prefix suffix class error errors limit usage format policy manager provider store "
        "vault arn ref algorithm alg method mode label hint help placeholder endpoint location status info kind "
        "changed reset bits rotation board word words code ring frame frames press down up event events used last "
        "date time updated created schedule s"
    )
)


def entropy(value: str) -> float:
    """The entropy of the characters, in bits for each character."""
    size = len(value)
    return -sum(n / size * log2(n / size) for n in Counter(value).values())


def _pairs(value: str) -> list[str]:
    return [run[i : i + 2].lower() for run in _RUNS.findall(value) for i in range(len(run) - 1)]


def _usual_share(value: str) -> float:
    """The share of usual pairs among the pairs of letters, from 0 to 1."""
    pairs = _pairs(value)
    return sum(pair in _PAIRS for pair in pairs) / len(pairs) if pairs else 0.0


def is_wordy(value: str) -> bool:
    """Does the value consist of words rather than of random characters?"""
    if _CAMEL.fullmatch(value) and sum(map(str.isupper, value)) < len(value) / 3:
        return True
    if len(_pairs(value)) < 3:
        return sum(c.isdigit() for c in value) < len(value) / 2 and len(value) < 12
    return _usual_share(value) > (0.8 if len(_MIXED.findall(value)) >= 3 else 0.6)


def is_no_word(value: str) -> bool:
    """Is the value so unusual that no other text has it by chance?"""
    return any(map(str.isdigit, value)) or _STRONG.search(value) is not None or not is_wordy(value)


def _looks_random(value: str, shortest: int = 10) -> bool:
    if len(value) < shortest or len(set(value)) < 5:
        return False
    parts = _SEPARATORS.split(value)
    if len(parts) > 1 and not _UUID.fullmatch(value) and _looks_random(max(parts, key=len), 16):
        return True
    digits = sum(c.isdigit() for c in value)
    if digits == len(value):
        return digits >= 16 and entropy(value) >= 2.4
    if _HEX.fullmatch(value) or _UUID.fullmatch(value):
        return digits > 0 and len(value) >= 16 and entropy(value) >= 2.5
    upper = sum(c.isupper() for c in value)
    lower = sum(c.islower() for c in value)
    mixed = upper >= 2 and lower >= 2
    if not (digits or (mixed and len(value) >= 20) or (len(value) >= 20 and _usual_share(value) < 0.4)) or entropy(
        value
    ) < min(3.0, log2(len(value)) - 0.7):
        return False
    return not is_wordy(value) and not (_DOTTED.fullmatch(value) and len(max(parts, key=len)) < 16)


def is_inside_random(text: str, start: int, since: int) -> bool:
    """Does this position lie inside a random text, such as base64, where any prefix occurs by chance? The text before
    `since` does not count."""
    before = text[start - 1 : start] if start else " "
    if before not in "-.+/" or (before in "+/" and not text[start : start + 12].isalnum()):
        return False  # a slash is of one alphabet, a hyphen or an underscore in the prefix of the other
    alphabet = _URLSAFE if before in "-." else _STANDARD
    run = alphabet.search(text, max(since, start - 64), start)
    letters = "".join(filter(str.isalnum, run[0])) if run else ""
    return _looks_random(letters, 16)


def _looks_like_a_password(value: str) -> bool:
    if len(set(value)) < 5 or "://" in value or _EMAIL.fullmatch(value) or _DOTTED.fullmatch(value):
        return False
    digits = any(c.isdigit() for c in value)
    letters = any(c.isalpha() for c in value)
    return (digits and letters) or len(set(_STRONG.findall(value))) >= 2


def _is_tangled(value: str) -> bool:
    """Has the value brackets without a partner, and other signs? Code has neither."""
    paired = all(value.count(one) == value.count(other) for one, other in ("()", "[]", "{}", "<>"))
    return not paired and len(value) >= 12 and len(set(_STRONG.findall(value))) >= 2


def _name_words(text: str, begin: int, start: int) -> list[str]:
    """The words in the name of the value, in small letters."""
    before = _NAME_BEFORE.search(text, max(0, begin - 40), begin)
    here = _NAME_HERE.match(text, begin, start)
    whole = (before[0] if before else "") + (here[0] if here else "")
    if before and before[0][:1] in ("n", "r", "t") and text[before.start() - 1 : before.start()] == "\\":
        whole = whole[1:]
    return [word.lower() for word in _WORDS.findall(whole)]


def _judge_name(words: list[str]) -> str:
    """The kind of value that a name promises: "loose" a password, "strict" a random value, "key" probably none, ""
    none."""
    for at in range(len(words) - 1, -1, -1):
        word, before = words[at], words[at - 1] if at else ""
        if word in _NO_REST:
            return ""
        if word.endswith(_PASSWORDS) or word in _SHORT or (word.startswith("secret") and word[6:] in ("", "e", "s")):
            return "loose"
        if word.endswith(_JOINED) or word in _STRICT:
            return "" if before in _NO_TOKENS or word.startswith(("publickey", "nextpage")) else "strict"
        if word == "salt":
            return "strict" if before else ""  # a salt alone stands beside a hash, and is public
        if word == "key":
            return "" if before in _NO_KEYS else "strict" if before else "key"
        if word == "id" and before in ("client", "access", "clientid"):
            return "key"
        if word in ("clientid", "accessid"):
            return "key"
    return ""


def _is_secret(value: str, promise: str) -> bool:
    """Is this value a secret under a name with this promise?"""
    if not promise or "://" in value or value.startswith(("/", "./", "../", "~/")):
        return False
    if value.startswith("arn:"):
        return False  # names of resources at Amazon, and of their keys
    if promise == "loose" and _CONSTANT.fullmatch(value):
        return _looks_random(value, 16)
    if promise == "loose" and _looks_like_a_password(value) and not _GUESS.search(value):
        return True
    if promise == "strict" and _is_tangled(value):
        return True
    if promise == "key" and (_HEX.fullmatch(value) or _UUID.fullmatch(value)) and len(value) != 32:
        return False
    return _looks_random(value, 10 if promise != "key" else 20)


def _check_assigned(text: str, start: int, end: int, begin: int) -> Span | None:
    """A quoted value with a name that promises a secret."""
    value = text[start:end].rstrip(",;")
    end = start + len(value)
    words = _name_words(text, begin, start)
    if (_ADDRESS.fullmatch(value) and words[-1:] == ["token"]) or (words == ["key"] and _is_in_a_tag(text, begin)):
        return None
    if text[begin:start].rstrip(" \t`*\"'").endswith("|") and not _is_in_a_table(text, begin, end):
        return None  # it is a pipe
    if words[-1:] == ["id"] and _UUID.fullmatch(value):
        return None  # as keys are named where they are kept
    if not _is_tied(text, begin, start):
        words = [word for at, word in enumerate(words) if word not in _VERBS or 0 < at == len(words) - 1]
    promise = "strict" if words == ["key"] and _is_somebodys(text, begin) else _judge_name(words)
    return (start, end) if _is_secret(value, promise) else None


def _is_tied(text: str, begin: int, start: int) -> bool:
    """Does a sign of assignment stand between the name and the value? Behind a space or a bracket "pass" is a verb."""
    here = _NAME_HERE.match(text, begin, start)
    return _TIED.search(text, here.end() if here else begin, start) is not None


def _is_somebodys(text: str, begin: int) -> bool:
    """Does the word before "key" say whose key it is, or what it opens? "API key: …", "Deepgram key: …"."""
    before = _WORD_BEFORE.search(text, max(0, begin - 20), begin)
    return before is not None and before[1][:1].isalpha() and before[1].lower() not in _NOBODYS


def _is_in_a_table(text: str, begin: int, end: int) -> bool:
    return bool(_CELL_BEGINS.search(text, max(0, begin - 80), begin) and _CELL_ENDS.match(text, end))


def _is_in_a_tag(text: str, begin: int) -> bool:
    return _COMPONENT.search(text, max(0, begin - 100), begin) is not None


def _check_assigned_bare(text: str, start: int, end: int, begin: int) -> Span | None:
    """A value without quotes, which may be a piece of code."""
    value = _NEXT_FIELD.split(text[start:end])[0].rstrip(".,;:&")
    following = text[start + len(value) : start + len(value) + 2]
    if following.startswith(("(", "[")):
        return None  # a call
    found = _check_assigned(text, start, start + len(value), begin)
    if found is None:
        return None
    if not is_wordy(value) or _STRONG.search(value):
        return found
    operator = text[begin:start]
    if set(operator) & set(_ENDS_A_NAME) or " is " in operator or _is_name_upper(text, begin):
        return found
    return found if _is_a_setting(value, following) else None


def _is_a_setting(value: str, following: str) -> bool:
    """Is this a value in a file or a command, and not a variable? Few names of variables have such digits, and an
    argument of a call is followed by a bracket, or a comma and a space."""
    return _NO_VARIABLE.search(value) is not None and not _ARGUMENT.match(following)


def _check_assigned_list(text: str, start: int, end: int, begin: int) -> Span | None:
    """A list of values under a name that may be a plural. All of them count, if one is a secret."""
    words = _name_words(text, begin, start)
    promise = _judge_name([*words[:-1], words[-1].removesuffix("s")] if words else [])
    items = [item.span() for item in _ITEM.finditer(text, start, end)]
    secret = any(_is_secret(text[first:last], promise) for first, last in items)
    return (items[0][0], items[-1][1]) if secret else None


def _check_named_apart(text: str, start: int, end: int, begin: int) -> Span | None:
    """A value beside its name, where the name is a value too."""
    named = _NAMED.search(text, begin, start)
    words = [word.lower() for word in _WORDS.findall(named[1])] if named else []
    return (start, end) if _is_secret(text[start:end], _judge_name(words)) else None


def _check_compared(text: str, start: int, end: int, _: int) -> Span | None:
    """A quoted value that is compared with the name behind it."""
    named = _NAME_AFTER.match(text, end)
    words = [word.lower() for word in _WORDS.findall(named[1])] if named else []
    return (start, end) if _is_secret(text[start:end], _judge_name(words)) else None


def _check_assigned_line(text: str, start: int, end: int, begin: int) -> Span | None:
    """A value that fills the line behind its name. Brackets come in pairs in code, but not in a password."""
    value = text[start:end].rstrip(",;")
    if not _is_tangled(value) and len(set(_STRONG.findall(value))) < 4:
        return None  # the rule `assigned-value` finds values without brackets
    named = _LAST_NAME_OF_LINE.search(text, begin, start)
    words = [word.lower() for word in _WORDS.findall(named[1])] if named else []
    return (start, start + len(value)) if _is_secret(value, _judge_name(words)) else None


def _check_directive(text: str, start: int, end: int, begin: int) -> Span | None:
    """A value behind a name and a space, where a keyword of the shell or of a Dockerfile stands before the name."""
    named = _LAST_NAME.search(text, begin, start)
    words = [word.lower() for word in _WORDS.findall(named[1])] if named else []
    return (start, end) if _is_secret(text[start:end], _judge_name(words)) else None


def _check_mentioned(text: str, start: int, end: int, begin: int) -> Span | None:
    """A value in a sentence, behind a word such as "password". An ordinary word is as likely there, so the value must
    look very random: with digits and letters, and no path, address or commit."""
    value = text[start:end].rstrip(".:!?")
    before = _WORD_BEFORE.search(text, max(0, begin - 20), begin)
    if before and before[1].lower() in _NO_KEYS | _NO_TOKENS:
        return None
    if "/" in value[:2] or "://" in value or _EMAIL.fullmatch(value):
        return None
    if _DOTTED.fullmatch(value) and len(max(value.split("."), key=len)) < 16:
        return None
    is_password = text[begin:start].lower().startswith("pass")
    digits, letters = any(map(str.isdigit, value)), any(map(str.isalpha, value))
    if not digits or not letters or _GUESS.search(value):
        return None
    if is_password and len(value) >= 8 and _STRONG.search(value) and not is_wordy(value):
        return start, start + len(value)
    return (start, start + len(value)) if _looks_random(value, 16) else None


def _is_name_upper(text: str, begin: int) -> bool:
    here = _NAME_HERE.match(text, begin)
    return here is not None and here[0].isupper()


def _check_random(text: str, start: int, end: int, _: int) -> Span | None:
    return (start, end) if _looks_random(text[start:end]) else None


def _check_password(text: str, start: int, end: int, _: int) -> Span | None:
    return (start, end) if _looks_like_a_password(text[start:end]) else None


def _check_mixed(text: str, start: int, end: int, _: int) -> Span | None:
    value = text[start:end]
    letters = any(c.isalpha() for c in value)
    return (start, end) if letters and any(c.isdigit() for c in value) and not is_wordy(value) else None


def _check_one_case(text: str, start: int, end: int, _: int) -> Span | None:
    value = text[start:end]
    return (start, end) if value.isupper() or (value.islower() and not is_wordy(value)) else None


def _decode_base64(value: str) -> bytes | None:
    try:
        return base64.urlsafe_b64decode(value.replace("+", "-").replace("/", "_") + "=" * (-len(value) % 4))
    except (binascii.Error, ValueError):
        return None


def _check_jwt(text: str, start: int, end: int, _: int) -> Span | None:
    head = _decode_base64(text[start:end].partition(".")[0])
    try:
        return (start, end) if head and isinstance(json.loads(head), dict) else None
    except ValueError:
        return None


def _check_cookies(text: str, start: int, end: int, _: int) -> Span | None:
    """The span from the first cookie with a secret to the last. Cookies that count visitors have none."""
    found = [
        cookie.span(2)
        for cookie in _COOKIE.finditer(text, start, end)
        if not cookie[1].startswith("_g") and _looks_random(unquote(cookie[2]), 12)
    ]
    return (found[0][0], found[-1][1]) if found else None


def _check_url_password(text: str, start: int, end: int, _: int) -> Span | None:
    """The text before an at sign in a URL, unless it is the name of a user, or a port and a path."""
    value = text[start:end]
    if text[start - 1] == "/":
        return (start, end) if len(value) >= 20 and _TOKEN.fullmatch(value) and _looks_random(value) else None
    return None if _PORT.match(value) and not value.isalnum() else (start, end)


def _check_basic(text: str, start: int, end: int, _: int) -> Span | None:
    plain = _decode_base64(text[start:end].rstrip("="))
    return (start, end) if plain and b":" in plain and plain.isascii() and min(plain) >= 32 else None


# -- personal data

_IBAN_LENGTHS = {
    item[:2]: int(item[3:])
    for item in _split(
        "AD:24 AE:23 AL:28 AT:20 AZ:28 BA:20 BE:16 BG:22 BH:22 BI:27 BR:29 BY:28 CH:21 CR:22 CY:28 CZ:24 DE:22 "
        "DJ:27 DK:18 DO:28 EE:20 EG:29 ES:24 FI:18 FK:18 FO:18 FR:27 GB:22 GE:22 GI:23 GL:18 GR:27 GT:28 HR:21 "
        "HU:28 IE:22 IL:23 IQ:23 IS:26 IT:27 JO:30 KW:30 KZ:20 LB:28 LC:32 LI:21 LT:20 LU:20 LV:21 LY:25 MC:27 "
        "MD:24 ME:22 MK:19 MN:20 MR:27 MT:31 MU:30 NI:28 NL:18 NO:15 OM:23 PK:24 PL:28 PS:29 PT:25 QA:29 RO:24 "
        "RS:22 RU:33 SA:24 SC:31 SD:18 SE:24 SI:19 SK:24 SM:27 SO:23 ST:25 SV:28 TL:23 TN:24 TR:26 UA:29 VA:22 "
        "VG:24 XK:20 YE:30"
    )
}


def _check_luhn(text: str, start: int, end: int, _: int) -> Span | None:
    if text[end : end + 1] == "-" and text[end + 1 : end + 2].isalnum():
        return None  # a part of a longer number: a UUID, a part number
    digits = [int(c) for c in text[start:end] if c.isdigit()]
    if not 13 <= len(digits) <= 19 or len(set(digits)) < 2:
        return None
    if len(digits) == 15 and (digits[0] != 3 or digits[1] not in (4, 7)):
        return None  # of cards only American Express has fifteen; phone numbers may have that length too
    odd, even = digits[-1::-2], digits[-2::-2]
    total = sum(odd) + sum(sum(divmod(2 * d, 10)) for d in even)
    return (start, end) if total % 10 == 0 else None


def _check_iban(text: str, start: int, end: int, _: int) -> Span | None:
    wanted = _IBAN_LENGTHS.get(text[start : start + 2])
    if wanted is None:
        return None
    places = [i for i in range(start, end) if text[i] != " "][:wanted]
    if len(places) < wanted or (places[-1] + 1 < end and text[places[-1] + 1] != " "):
        return None
    number = "".join(text[i] for i in places)
    moved = "".join(str(int(c, 36)) for c in number[4:] + number[:4])
    return (start, places[-1] + 1) if int(moved) % 97 == 1 else None


def _check_ip(text: str, start: int, end: int, _: int) -> Span | None:
    value = text[start:end]
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return None
    if address.is_unspecified or address.is_loopback:
        return None
    if address.version == 6:
        return (start, end) if value.count(":") > 2 or (len(value) > 4 and any(c.isdigit() for c in value)) else None
    numbers = [int(part) for part in value.split(".")]
    if numbers[3] == 0 and _MASK.match(text, end):
        return None  # a network
    like_a_version = max(numbers) < 10 or numbers[0] == 0 or _VERSION.search(text, max(0, start - 12), start)
    return None if like_a_version or numbers[0] == 255 else (start, end)


def _check_phone(text: str, start: int, end: int, _: int) -> Span | None:
    value = text[start:end]
    if text[max(0, start - 3) : start].rstrip(" \t-")[-1:].isdigit() or _DEGREES.search(value):
        return None  # in a row of numbers, or coordinates
    if value[0].isdigit() and text[end : end + 3].lstrip(" \t")[:1].isdigit():
        return None  # in a row of numbers
    digits = [c for c in value if c.isdigit()]
    fewest = 9 if value[1:].isdigit() else 8
    return (start, end) if fewest <= len(digits) <= 15 and len(set(digits)) > 2 else None


_DEGREES = re.compile(r"[0-9]\.[0-9]+[ ,]+[+-]?[0-9]+\.[0-9]")
_NO_HOSTS = (".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".avif", ".ico", ".local")


def _check_email(text: str, start: int, end: int, _: int) -> Span | None:
    value = text[start:end].lower()
    return None if value.endswith(_NO_HOSTS) or value.startswith("git@") else (start, end)


CHECKS: dict[str, Check] = {
    "assigned": _check_assigned,
    "assigned-bare": _check_assigned_bare,
    "assigned-line": _check_assigned_line,
    "assigned-list": _check_assigned_list,
    "basic": _check_basic,
    "compared": _check_compared,
    "cookies": _check_cookies,
    "directive": _check_directive,
    "email": _check_email,
    "iban": _check_iban,
    "ip": _check_ip,
    "jwt": _check_jwt,
    "luhn": _check_luhn,
    "mentioned": _check_mentioned,
    "mixed": _check_mixed,
    "named-apart": _check_named_apart,
    "one-case": _check_one_case,
    "password": _check_password,
    "phone": _check_phone,
    "random": _check_random,
    "url-password": _check_url_password,
}
