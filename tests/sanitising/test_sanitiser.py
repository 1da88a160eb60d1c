"""The sanitiser takes out what it should, all of that, and nothing else, however a text arrives.

Nothing here looks like a secret to a scanner of source code: what is found is made from a fixed seed when a test runs.

Requirements: D8.
"""

import random
import string
import subprocess
import sys
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hitherto import Sanitiser
from hitherto import sanitiser as module
from hitherto.errors import InvalidArgument, NotClean
from hitherto.sanitiser import Finding, Rule
from hitherto.sanitiser import plausibility as plausible

from ..support.thorough import examples

dice = random.Random(8)
ALPHANUMERIC = string.ascii_letters + string.digits


def any_of(alphabet: str, count: int) -> str:
    return "".join(dice.choices(alphabet, k=count))


GITHUB = "ghp_" + any_of(ALPHANUMERIC, 36)
AWS = "AKIA" + any_of(string.ascii_uppercase + "234567", 16)
HEX = any_of("0123456789abcdef", 32)
PASSWORD = "Tr0ub4dor&3x"
PLAIN = "Hunter2xk9"  # which could be a word of a program
RANDOM = any_of(ALPHANUMERIC, 40)
HASH = any_of(ALPHANUMERIC + "./", 86)
JWT = "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0." + any_of(ALPHANUMERIC, 43)
BODY = "\n".join(any_of(ALPHANUMERIC + "+/", 64) for _ in range(25))
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{BODY}\n-----END RSA PRIVATE KEY-----"
SECRETS = Sanitiser.secrets()
PERSONAL = Sanitiser.personal()
EVERYTHING = Sanitiser.everything()

LINES = [  # which are found where they are lines of their own
    (f"requirepass {PASSWORD}\n", "requirepass [redacted:password-line]\n"),
    (f"machine x\n  login bob\n  password {PASSWORD}", "machine x\n  login bob\n  password [redacted:password-line]"),
    (f"db.lan:5432:shop:app:{PASSWORD}", "db.lan:5432:shop:app:[redacted:pgpass-line]"),
]
CASES = [
    *LINES,
    (f"token={GITHUB} ok", "token=[redacted:github-token] ok"),
    (f"see {GITHUB}.", "see [redacted:github-token]."),
    (f"postgres://app:{PASSWORD}@db.example.org/main", "postgres://app:[redacted:url-password]@db.example.org/main"),
    ("https://u:pass@host/x", "https://u:[redacted:url-password]@host/x"),
    (f'{{"db_password": "{PASSWORD}"}}', '{"db_password": "[redacted:assigned-secret]"}'),
    (f"export API_KEY={HEX}", "export API_KEY=[redacted:assigned-value]"),
    (f"api_key: {HEX}\n", "api_key: [redacted:assigned-value]\n"),
    (f'{{"x": "{{\\"api_key\\": \\"{HEX}\\"}}"}}', '{"x": "{\\"api_key\\": \\"[redacted:assigned-secret]\\"}"}'),
    (f"<token>\n  {HEX}\n</token>", "<token>\n  [redacted:assigned-value]\n</token>"),
    (f'os.environ["API_TOKEN"] = "{HEX}"', 'os.environ["API_TOKEN"] = "[redacted:assigned-secret]"'),
    (f"my password is {PASSWORD}, ok?", "my password is [redacted:assigned-value], ok?"),
    (f"Authorization: Bearer {HEX}", "Authorization: Bearer [redacted:bearer-token]"),
    (f"curl -u admin:{PASSWORD} host", "curl -u admin:[redacted:command-line-user] host"),
    (f"Cookie: {JWT};", "Cookie: [redacted:jwt];"),
    (f"{AWS}, twice: {AWS}", "[redacted:aws-access-key], twice: [redacted:aws-access-key]"),
    (f"before\n{PEM}\nafter", "before\n[redacted:private-key]\nafter"),
    (f'{{"private_key": "{PEM}"}}'.replace("\n", "\\n"), '{"private_key": "[redacted:private-key]"}'),
    # Settings, where nothing but the name tells.
    (f"dbname=shop password={PLAIN} host=db", "dbname=shop password=[redacted:assigned-value] host=db"),
    (f"helm --set auth.password={PLAIN},x=1", "helm --set auth.password=[redacted:assigned-value],x=1"),
    (f"https://x.org/?password={PLAIN}&a=1", "https://x.org/?password=[redacted:assigned-value]&a=1"),
    (f"Passwort：{PASSWORD}", "Passwort：[redacted:assigned-value]"),
    (f"pw\u00a0=\u00a0'{PASSWORD}'", "pw\u00a0=\u00a0'[redacted:assigned-secret]'"),
    (f"**Password:** {PASSWORD}", "**Password:** [redacted:assigned-value]"),
    (f"| password | `{PASSWORD}` |", "| password | `[redacted:assigned-secret]` |"),
    (f"token: >-\n  {HEX}\n", "token: >-\n  [redacted:assigned-value]\n"),
    (f"bob:$apr1$x8Kd92ls${HASH[:22]}", "bob:[redacted:password-hash]"),
    (f"root:$6$OHPkSpbM${HASH}:19000:0:::", "root:[redacted:password-hash]:19000:0:::"),
    # A name, and its value elsewhere.
    (f'- name: DB_PASSWORD\n  value: "{PASSWORD}"', '- name: DB_PASSWORD\n  value: "[redacted:named-value]"'),
    (f'{{"name": "API_TOKEN", "value": "{HEX}"}}', '{"name": "API_TOKEN", "value": "[redacted:named-value]"}'),
    (
        f'variable "db_password" {{\n  type = string\n  default = "{PASSWORD}"\n}}',
        'variable "db_password" {\n  type = string\n  default = "[redacted:named-value]"\n}',
    ),
    (
        f'<input type="password" id="p" value="{PLAIN}">',
        '<input type="password" id="p" value="[redacted:password-field]">',
    ),
    # Lists, under a name in the plural.
    (f"api_keys:\n  - {HEX}\n  - {GITHUB}\n", "api_keys:\n  - [redacted:github-token]\n"),
    (f"API_KEYS = ['{HEX}', '{RANDOM}']", "API_KEYS = ['[redacted:assigned-list]']"),
    (f'"passwords": [\n  "{PASSWORD}",\n  "x"\n]', '"passwords": [\n  "[redacted:assigned-list]"\n]'),
    # Calls and commands.
    (f"requests.get(url, auth=('bob', '{PASSWORD}'))", "requests.get(url, auth=('bob', '[redacted:credential-call]'))"),
    (f"co = Client('{RANDOM}')", "co = Client('[redacted:client-call]')"),
    (f'let token = String::from("{RANDOM}");', 'let token = String::from("[redacted:assigned-secret]");'),
    (f"mysql -u root -p{PASSWORD} shop", "mysql -u root -p[redacted:command-password] shop"),
    (f"docker login -u bob -p {PASSWORD} ghcr.io", "docker login -u bob -p [redacted:command-password] ghcr.io"),
    (f"redis-cli -h cache -a {PASSWORD} ping", "redis-cli -h cache -a [redacted:command-password] ping"),
    # HTTP and URLs.
    (f"Cookie: theme=dark; sid={RANDOM}; lang=en", "Cookie: theme=dark; sid=[redacted:cookie]; lang=en"),
    (f'Digest username="bob", response="{HEX}"', 'Digest username="bob", response="[redacted:http-signature]"'),
    (f"SignedHeaders=host, Signature={HEX}{HEX}", "SignedHeaders=host, Signature=[redacted:http-signature]"),
    (f"git clone https://{HEX}{HEX[:8]}@github.com/x", "git clone https://[redacted:url-password]@github.com/x"),
    (f"postgres://app:ab/c#{PLAIN}@db/x", "postgres://app:[redacted:url-password]@db/x"),
    (f"jdbc:oracle:thin:scott/{PLAIN}@//db:1521/x", "jdbc:oracle:thin:scott/[redacted:oracle-password]@//db:1521/x"),
]


@pytest.mark.parametrize(("text", "clean"), CASES, ids=[clean[:40] for _, clean in CASES])
def test_only_the_secret_itself_is_replaced(text: str, clean: str) -> None:
    cleaned = SECRETS.clean(text)
    assert cleaned.text == clean
    assert cleaned.contains_secrets
    for finding in cleaned.findings:
        assert finding.marker in clean


def test_a_finding_says_where_and_by_which_rule_and_not_what() -> None:
    (found,) = SECRETS.clean(f"a token={GITHUB}").findings
    assert (found.rule, found.family, found.start, found.end) == ("github-token", "token", 8, 48)
    assert (found.marker, found.secret) == ("[redacted:github-token]", True)
    assert len(found.hash) == 16
    assert GITHUB not in repr(found)


PERSONAL_CASES = [
    ("write to jane.doe+x@mail.example.org now", "email"),
    ("call +49 30 901820-42 or so", "phone"),
    ("call (030) 90182042", "phone"),
    ("call 0171 2345678!", "phone"),
    ("US: 415-555-2671.", "phone"),
    ("card 4111 1111 1111 1111", "card"),
    ("card 378282246310005.", "card"),
    ("IBAN DE89 3704 0044 0532 0130 00 AND more", "iban"),
    ("GB29NWBK60161331926819", "iban"),
    ("from 203.0.113.77.", "ip-address"),
    ("at 192.168.178.20:8080", "ip-address"),
    ("2001:db8:85a3::8a2e:370:7334", "ipv6-address"),
]


@pytest.mark.parametrize(("text", "rule"), PERSONAL_CASES)
def test_personal_data_is_found_and_is_no_secret(text: str, rule: str) -> None:
    cleaned = PERSONAL.clean(text)
    assert [finding.rule for finding in cleaned.findings] == [rule]
    assert not cleaned.contains_secrets
    assert SECRETS.clean(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        "card 4111 1111 1111 1112",  # the checksum is wrong
        "card 4444 4444 4444 4444 4",
        "DE88 3704 0044 0532 0130 00",
        "version 10.20.30.40",
        "numpy==1.24.3.1 and v12.11.10.9 and 1.2.3.4",
        "127.0.0.1 and 0.0.0.0 and ::1 and 255.255.255.0",
        "999.1.1.1 is none",
        "at 12:30:45 on 2024-01-02T03:04:05",
        "1234567890 or 2024 01 02 or 3.14159265",
        "a@b and @decorator and image@2x.png",
        "std::vector and a::b",
        "00:1b:44:11:3a:b7",
        "220 340 1200 440 560 1300",
        "+40.7128 -74.0060 and +51.5074, -0.1278",
        "a score of +12345678",
        "IMEI 490154203237518",
        "10.0.0.0/8 and 192.168.0.0/16",
        "Assembly 12.34.56.78, build 10.20.30.40",
        "git@github.com:x/y.git and img@1.5x.avif",
    ],
)
def test_what_only_looks_like_personal_data_stays(text: str) -> None:
    assert PERSONAL.clean(text).text == text


def test_the_checksums_are_what_makes_the_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("luhn", "iban"):  # the control: without them any number is a card
        monkeypatch.setitem(plausible.CHECKS, name, lambda _text, start, end, _begin: (start, end))
    for text in ("card 4111 1111 1111 1112", "DE88 3704 0044 0532 0130 00"):
        assert PERSONAL.clean(text).text != text


blob = any_of(ALPHANUMERIC + "+/", 400)
OPAQUE = [
    f'{{"type": "thinking", "thinking": "hm", "signature": "{blob}=="}}',
    f'{{"id": "rs_{HEX}{HEX[:16]}", "encrypted_content": "gAAAAAB{any_of(ALPHANUMERIC + "-_", 300)}"}}',
    f'{{"thoughtSignature": "{blob}"}}',
    f'{{"id": "call_{any_of(ALPHANUMERIC, 24)}", "call_id": "toolu_01{any_of(ALPHANUMERIC, 22)}"}}',
    f'{{"id": "msg_01{any_of(ALPHANUMERIC, 22)}", "parent": "resp_{HEX}{HEX[:16]}"}}',
    f'{{"id": "chatcmpl-{any_of(ALPHANUMERIC, 29)}", "system_fingerprint": "fp_{HEX[:10]}"}}',
    '{"id": "0198c5a2-7c3e-7b6a-9b6e-2f1d3c4b5a69", "usage": {"max_tokens": 4096, "total_tokens": 123456}}',
    f"image@sha256:{HEX}{HEX}",
    f"commit {HEX}{HEX[:8]}\nMerge: {HEX[:7]} {HEX[7:14]}",
    f'<script integrity="sha512-{blob[:86]}==" crossorigin="anonymous"></script>',
    f"data:image/png;base64,iVBORw0KGgo{blob}",
    f'"resolved": "https://registry.example.org/x.tgz", "integrity": "sha512-{blob[:86]}=="',
    f'{{"cache_key": "{HEX}", "next_page_token": "{any_of(ALPHANUMERIC, 40)}", "public_key": "{HEX}{HEX}"}}',
    "token = get_token(user_id2)\nself.api_key = config.keys.main2\npassword = os.environ['DB_PASSWORD']",
    "password: ${DB_PASSWORD}, api_key: <your-key>, token: {{ token }}, secret=$SECRET, key = %(key)s",
    "API_KEY=xxxxxxxxxxxxxxxxxxxxxxxx PASSWORD=******** TOKEN=...",
    "Compare with `-----BEGIN PRIVATE KEY-----`, which a file begins with; the public one is another.",
    "The secret of a good password is length; a token is a word, and the key to this is practice.",
    "sha1: da39a3ee5e6b4b0d3255bfef95601890afd80709 md5 d41d8cd98f00b204e9800998ecf8427e",
    "connect(password=password256, user=u)\npassword=args.db1pass2\nf(password=hash512, x)",
    "cat password | md5sum | base64 -d2; mkdir -p foo/bar2baz9; docker run -p 127.0.0.1:8080:80/tcp x; mysql -p3306",
    "http://localhost:3000/@vite/client https://medium.com/@user/of-1a2b3c4d5e6f https://git@github.com/x/y.git",
    "tokens = ['<s>', 'hello1']; keys: [user_id2, name3]; arn:aws:secretsmanager:x:secret:[a-zA-Z0-9/_+=.@-]+",
    '- name: TOKEN_TTL\n  value: 3600s30\nvariable "instance_type" {\n  default = "t3.micro2"\n}',
    f'"KmsKeyId": "arn:aws:kms:eu-west-1:123456789012:key/{HEX}", "PasswordLastUsed": "2016-09-08T21:47:36Z"',
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\nCookie: _ga=GA1.2.1234567890.1700000000; lang=en-US",
    f'<Foo key="AbcDefGhi123Jkl456Mno"> token: 0x{HEX}{HEX[:8]} pk_live_{any_of(ALPHANUMERIC, 24)} echo $1$2$3',
]


@pytest.mark.parametrize("text", OPAQUE, ids=[text[:30] for text in OPAQUE])
def test_what_is_opaque_and_no_secret_survives(text: str) -> None:
    assert SECRETS.clean(text) == module.Cleaned(text)


def test_where_findings_overlap_the_most_telling_names_all_of_them() -> None:
    assert SECRETS.clean(f'github_token: "{GITHUB}"').text == 'github_token: "[redacted:github-token]"'
    assert SECRETS.clean(f"{AWS}{AWS}").text == f"{AWS}{AWS}"  # no word begins in it
    assert SECRETS.clean(f"{GITHUB}-and-{GITHUB}x").text == "[redacted:github-token]"


# -- where a secret begins


@pytest.mark.parametrize(
    "before",
    [
        "\x1b[0;32m",
        "\\u001b[1m",
        '{"log":"a\\n',
        "\\t",
        "%20",
        "%3D",
        "\\u003d",
        "\\x20",
        "https://x.org/a/",
        ".",
        "key-",
        "é",
    ],
)
def test_a_secret_begins_behind_whatever_is_no_part_of_it(before: str) -> None:
    for secret in (GITHUB, AWS, "sk-ant-api03-" + RANDOM, "sk-proj-" + RANDOM, JWT):
        cleaned = SECRETS.clean(f"{before}{secret} so").text
        assert cleaned.startswith(f"{before}[redacted:")
        assert cleaned.endswith("] so")
    assert SECRETS.clean(f"x{before}y{GITHUB}").text == f"x{before}y{GITHUB}"  # the control: in the middle of a word


def test_headers_and_names_begin_behind_an_escape_too() -> None:
    assert HEX not in SECRETS.clean(f"a\\nAuthorization: Bearer {HEX}").text
    assert HEX not in SECRETS.clean(f"a\\nsecret={HEX}").text


CHANCE = ["pa-" + any_of(ALPHANUMERIC, 43), "hf_" + any_of(ALPHANUMERIC, 34), "r8_" + any_of(ALPHANUMERIC, 37), AWS]


@pytest.mark.parametrize("found", CHANCE)
def test_what_base64_spells_by_chance_is_no_secret(found: str) -> None:
    for alphabet, before in ((ALPHANUMERIC + "-_", "-"), (ALPHANUMERIC + "+/", "/")):
        if before == "/" and not found.isalnum():
            continue  # which are not of that alphabet
        text = f'{{"encrypted_content": "{any_of(alphabet, 300)}{before}{found}{before}{any_of(alphabet, 300)}"}}'
        assert SECRETS.clean(text).text == text
        # The controls: behind words it is one, and also behind others of its kind.
        assert found not in SECRETS.clean(f"https://example.org/my-services/of-the-team{before}{found}").text
        assert SECRETS.clean("/".join([AWS] * 9)).text == "/".join(["[redacted:aws-access-key]"] * 9)


# -- cleaning again


PIECES = st.one_of(
    st.sampled_from([text for text, _ in CASES]),
    st.sampled_from(OPAQUE),
    st.sampled_from([text for text, _ in PERSONAL_CASES]),
    st.sampled_from(
        [
            *("token", "key", ":", "=", " ", "\n", '"', "'", "password is ", "and so on it goes ", "[redacted:x]"),
            *(
                "\n  - ",
                "name: ",
                "value: ",
                "[",
                ", ",
                '",\n"',
                "|",
                "mysql -p",
                "\x1b[32m",
                "\\n",
                "cookie: a=b; ",
                "：",
                PLAIN,
            ),
        ]
    ),
    st.sampled_from([GITHUB, AWS, HEX, PASSWORD, JWT, PEM, PEM[:300], PEM[40:], "-----BEGIN PRIVATE KEY-----", "\\n"]),
    st.text(max_size=12),
)
TEXTS = st.lists(PIECES, max_size=9).map("".join)


@settings(max_examples=examples(150), deadline=None)
@given(TEXTS)
def test_cleaning_again_changes_nothing(text: str) -> None:
    for sanitiser in (SECRETS, EVERYTHING):
        once = sanitiser.clean(text).text
        assert sanitiser.clean(once).text == once


def test_a_marker_is_no_value_and_no_name() -> None:
    for text in (
        "token=[redacted:github-token]",
        'password: "[redacted:x]"',
        "[redacted:github-token]: Abc123def456Ghi7",
    ):
        assert SECRETS.clean(text).text == text
    assert GITHUB not in SECRETS.clean(f"[redacted:x]{GITHUB}").text  # and hides nothing


def test_what_only_a_marker_uncovers_is_found_at_once() -> None:
    first, second = Rule("first", "mine", "bb", secret=False), Rule("second", "mine", r"\bcc", secret=False)
    both = Sanitiser([first, second])
    cleaned = both.clean("a bbcc bbcc")
    assert cleaned.text == "a [redacted:first][redacted:second] [redacted:first][redacted:second]"
    assert [(f.rule, f.start, f.end) for f in cleaned.findings] == [
        ("first", 2, 4),
        ("second", 4, 6),
        ("first", 7, 9),
        ("second", 9, 11),
    ]
    assert both.clean(cleaned.text).text == cleaned.text


# -- keywords


def test_every_keyword_is_seen_also_where_two_overlap_and_behind_many_others() -> None:
    one, two = Rule("one", "mine", "abcx", ("abc",)), Rule("two", "mine", "bcd", ("bcd",))
    assert Sanitiser([one, two]).clean("abcd").text == "a[redacted:two]"
    assert SECRETS.clean("disk-" * 500 + f" {GITHUB}").text == "disk-" * 500 + " [redacted:github-token]"


# -- names, and values that stand again

RANDOM = "a8Kd93jfLq02mXz7Tb5R"


@pytest.mark.parametrize(
    "text",
    [
        "grant_type=password&client_id=my-app-77&client_secret={}&scope=all",
        "client_id=my-app&client_secret={}",
        "Keycloak password: {}",
        "Upwork token: {}",
        "Keycloak token for the Upwork key: {}",
        "the authentication token: {}",
        "token - {}",
        "api_key \u2013 '{}'",
        "the token {} does not work",
        "I get 401 with API key `{}`.",
        "FROM x\nENV DB_PASSWORD {}\nRUN y",
        "setenv API_TOKEN {}",
        "<secret>{{AQAAABAAA {}}}</secret>",
        "<apiToken>{{{}}}</apiToken>",
        'std::string secret("{}");',
        'secret.assign("{}", 17);',
        'char secret[25] = "{}";',
        'password "{}";',
        'if ("{}" == db_password) {{',
        'if (token != "{}") {{',
        "-----BEGIN RSA PRIVATE KEY----- Proc-Type: 4,ENCRYPTED {0}{0}{0} -----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY----- {0}{0} {0}{0} -----END PRIVATE KEY-----",
    ],
)
def test_a_secret_is_found_by_the_name_that_stands_beside_it(text: str) -> None:
    cleaned = SECRETS.clean(text.format(RANDOM))
    assert RANDOM not in cleaned.text
    assert cleaned.contains_secrets
    harmless = text.format("harmless-words-here")
    if "PRIVATE" not in text and "AQAA" not in text and "{{{}}}" not in text:  # these go whatever is in them
        assert SECRETS.clean(harmless).text == harmless


@pytest.mark.parametrize(
    "value", ["dba06b506389c94f2bfc010fa83690cf7171dd40", "5f0c6a1e-93b7-4d2c-8e41-7ab05d9c3f26", RANDOM]
)
@pytest.mark.parametrize(
    "text", ["api key: {}", "my Deepgram key is {}", "[DEBUG] Using Key={}", "airvisual key - '{}'"]
)
def test_a_key_is_somebodys_if_the_word_before_says_whose(text: str, value: str) -> None:
    """Hexadecimal digits alone may be a digest or the name of a row: then the word before decides."""
    assert value not in SECRETS.clean(text.format(value)).text
    for harmless in ("the key: {}", "primary key = '{}'", "object key is {}", "duplicate key {}", "Key={}", "s3 {}"):
        if value != RANDOM:
            assert value in SECRETS.clean(harmless.format(value)).text  # the control


@pytest.mark.parametrize(
    ("harmless", "secret"),
    [
        ("pass `?team_id=` to it", "the password `?tEam_1d=` is it"),
        ("pass '3.11.0rc1' to it", "pass = '3.11.0rc1'"),
        ('PassThroughSpan(f"00-{TRACE_ID}-{SPAN_ID}-01")', f'set_password("00-{RANDOM}-01")'),
        ('get_secret_str("AGENT365_TENANT_ID")', 'get_secret_str("Agent365_tenant_1d")'),
        ("signing_key = 'AWS4-HMAC-SHA256'", f"signing_key = 'AWS4-{RANDOM}'"),
        ("client_secret: OAuth2 client secret", "client_secret: OAuth2-client9"),
        ("my_auth = _wrap_auth_for_httpx2(auth)", f"my_auth = {RANDOM}"),
    ],
)
def test_code_and_prose_about_secrets_are_none(harmless: str, secret: str) -> None:
    assert SECRETS.clean(harmless).text == harmless
    assert SECRETS.clean(secret).contains_secrets  # the control


def test_the_header_of_artifactory_names_its_key() -> None:
    assert SECRETS.clean("X-JFrog-Art-Api: AKCq7Zt2Lw9X").text == "X-JFrog-Art-Api: [redacted:artifactory-assigned-key]"
    assert SECRETS.clean("X-JFrog-Art-Uid: AKCq7Zt2Lw9X").text == "X-JFrog-Art-Uid: AKCq7Zt2Lw9X"  # the control


def test_a_token_of_several_parts_is_found_in_a_sentence() -> None:
    token = f"v2x.{RANDOM}.{RANDOM[::-1]}"
    assert RANDOM not in SECRETS.clean(f"the token {token} does not work").text
    for harmless in ("the token session.token2.v4value does not work", "the token org.example9.tokens.Reader is none"):
        assert SECRETS.clean(harmless).text == harmless  # the control: dotted names of a program


def test_a_password_with_brackets_that_do_not_pair_is_no_piece_of_code() -> None:
    for line in ("db_pass: m{{h}o)p${e]no(dy#one", "api_key = 'p#[x}$aq(wert%yy'"):
        assert SECRETS.clean(line).contains_secrets
    for line in (
        "password = get(config[1])",
        "token: ${{ secrets.TOKEN }}",
        "secret = {{vault['x']}}",
        "key = f(a)[b]#c",
    ):
        assert SECRETS.clean(line).text == line


@pytest.mark.parametrize("value", [RANDOM, "Hunter2xk9", "Tr0ub4dor&3!", "dba06b506389c94f2bfc010fa83690cf7171dd40"])
def test_a_value_that_was_recognised_goes_wherever_else_it_stands(value: str) -> None:
    text = f"I used {value} first.\npassword: {value}\nThen again ({value}), and x={value}."
    cleaned = SECRETS.clean(text)
    assert value not in cleaned.text
    assert len(cleaned.findings) == 4
    assert [text[one.start : one.end] for one in cleaned.findings] == [value] * 4
    assert len({(one.rule, one.hash) for one in cleaned.findings}) == 1
    assert SECRETS.clean(cleaned.text).text == cleaned.text
    assert value in SECRETS.clean(f"I used {value} first.", complete=True).text or value.startswith(
        "dba06"
    )  # the control


def test_a_value_that_is_a_word_or_a_part_of_one_stays_elsewhere() -> None:
    url = "https://user:password@host is how a password is given"
    assert SECRETS.clean(url).text == "https://user:[redacted:url-password]@host is how a password is given"
    cleaned = SECRETS.clean("password: hunter22\nthe hunter2233 of myhunter22, and hunter22")
    assert cleaned.text.count("hunter22") == 2


def test_many_values_that_stand_again_take_linear_time() -> None:
    values = [f"q{n:04d}ZtLw9XkV4b8RmJ5c" for n in range(400)]
    text = "".join(f"token={value}\n" for value in values) + " ".join(values)
    cleaned = SECRETS.clean(text)
    assert not any(value in cleaned.text for value in values)
    assert len(cleaned.findings) == 800


# -- streams


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[a:b] for a, b in pairwise(places)]


def streamed(sanitiser: Sanitiser, pieces: list[str]) -> tuple[str, list[Finding]]:
    stream = sanitiser.stream()
    return "".join([*(stream.feed(piece) for piece in pieces), stream.finish()]), stream.findings


@settings(max_examples=examples(250), deadline=None)
@given(TEXTS, st.lists(st.integers(0, 10_000), max_size=12))
def test_a_stream_gives_what_the_whole_gives_however_it_is_cut(text: str, cuts: list[int]) -> None:
    whole, findings = streamed(EVERYTHING, [text])
    assert streamed(EVERYTHING, pieces_of(text, cuts)) == (whole, findings)
    cleaned = EVERYTHING.clean(text)  # which takes recognised values out wherever else they stand
    assert set(findings) <= set(cleaned.findings)
    assert cleaned.text == whole or len(cleaned.findings) > len(findings)


@pytest.mark.parametrize(("text", "clean"), CASES)
def test_a_stream_of_single_characters_gives_the_same(text: str, clean: str) -> None:
    before, after = ("Well.\n", "\nAnd so on.") if (text, clean) in LINES else ("Well, ", " and that was all.")
    assert streamed(SECRETS, list(before + text + after))[0] == before + clean + after


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_the_same_holds_for_texts_longer_than_a_window(data: st.DataObject) -> None:
    filler = data.draw(st.sampled_from(["x", "x,", "word ", '{"a":1},', "line\n", "key: ", "é"]))
    parts = data.draw(st.lists(st.tuples(st.integers(0, 20_000), PIECES), min_size=1, max_size=4))
    text = "".join((filler * size)[:size] + piece for size, piece in parts)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    assert streamed(SECRETS, pieces_of(text, cuts)) == streamed(SECRETS, [text])


def test_pieces_cleaned_one_by_one_let_a_secret_out() -> None:
    """The control: it is the stream that keeps the halves together."""
    text = f"token={GITHUB} ok"
    for cut in range(14, 40):
        halves = SECRETS.clean(text[:cut]).text + SECRETS.clean(text[cut:]).text
        assert halves != "token=[redacted:github-token] ok"
        assert streamed(SECRETS, [text[:cut], text[cut:]])[0] == "token=[redacted:github-token] ok"


@pytest.mark.parametrize(("text", "clean"), CASES)
def test_an_unfinished_text_never_holds_a_part_of_a_secret(text: str, clean: str) -> None:
    for cut in range(len(text) + 1):
        assert clean.startswith(SECRETS.clean(text[:cut], complete=False).text)
    # The control: as a complete text, the same beginning shows it.
    assert any(not clean.startswith(SECRETS.clean(text[:cut]).text) for cut in range(len(text) + 1))


def test_an_unfinished_text_comes_out_but_for_its_last_words() -> None:
    text = "The build fails because the linker cannot find a library. Install it again, then run make once more " * 3
    kept = SECRETS.clean(text, complete=False).text
    assert text.startswith(kept)
    assert len(text) - len(kept) < 40


def test_a_stream_holds_no_more_back_than_its_window() -> None:
    for filler in ("x", "key=", "a:\n", "-----BEGIN PRIVATE KEY-----\nx y\nz z\n"):
        stream, given_so_far, out = SECRETS.stream(), 0, 0
        for _ in range(60):
            given_so_far += 1000
            out += len(stream.feed((filler * 1000)[:1000]))
            held = given_so_far - out - sum(f.end - f.start - len(f.marker) for f in stream.findings)
            assert held <= module.WINDOW + 1200 + 30 * len(stream.findings)


def test_a_secret_longer_than_a_window_goes_as_a_whole() -> None:
    text = "use ghp_" + any_of(ALPHANUMERIC, 3 * module.WINDOW) + " now"
    assert SECRETS.clean(text).text == "use [redacted:github-token] now"
    assert streamed(SECRETS, [text[i : i + 5_000] for i in range(0, len(text), 5_000)])[0] == SECRETS.clean(text).text


@pytest.mark.parametrize("size", [module.WINDOW - 6, module.WINDOW, 17_000, 40_000])
def test_a_finding_that_goes_on_in_the_next_window_ends_where_the_secret_ends(size: int) -> None:
    for alphabet, after in ((ALPHANUMERIC, " and this sentence goes on. " * 20), (ALPHANUMERIC + "+/", '"'), (HEX, "")):
        secret = any_of(alphabet, size)
        cleaned = SECRETS.clean(f'token="{secret}{after}')
        (found,) = cleaned.findings
        assert (found.start, found.end) == (7, 7 + size)
        assert cleaned.text == f'token="{found.marker}{after}'
        assert found.hash == SECRETS.clean(secret, name="token").findings[0].hash  # of all of it


def test_what_follows_plain_words_is_not_the_beginning_of_a_line() -> None:
    for text in (f'so here comes "{RANDOM}"\nand', f"so here comes password {PASSWORD}\nand"):
        assert streamed(SECRETS, list(text))[0] == SECRETS.clean(text).text


# -- private keys


@pytest.mark.parametrize("lines", [3, 100, 700])
@pytest.mark.parametrize("end", ["\n-----END RSA PRIVATE KEY-----\nbye bye", "", "\n"])
def test_nothing_of_a_private_key_comes_out_however_long_it_is(lines: int, end: str) -> None:
    body = "\n".join(any_of(ALPHANUMERIC + "+/", 64) for _ in range(lines))
    text = f"hello there\n-----BEGIN RSA PRIVATE KEY-----\n{body}{end}"
    clean = "hello there\n[redacted:private-key]" + ("\nbye bye" if "bye" in end else "")
    assert SECRETS.clean(text).text == clean
    out, findings = streamed(SECRETS, [text[i : i + 777] for i in range(0, len(text), 777)])
    assert out == clean
    assert [finding.rule for finding in findings] == ["private-key"]
    # The control: without the rule the key stands there.
    assert body[:64] in SECRETS.without("private-key").clean(text).text


def test_what_follows_a_key_without_a_last_line_is_kept() -> None:
    text = f"-----BEGIN PRIVATE KEY-----\n{BODY}\n\nThat was my key, what now? I have no idea.\n"
    assert SECRETS.clean(text).text == "[redacted:private-key]That was my key, what now? I have no idea.\n"


@pytest.mark.parametrize("kind", ["", "EC ", "OPENSSH ", "ENCRYPTED ", "PGP "])
def test_private_keys_of_every_kind_are_blocks(kind: str) -> None:
    tail = " BLOCK" if kind == "PGP " else ""
    text = f"-----BEGIN {kind}PRIVATE KEY{tail}-----\nComment: x\n\n{BODY}\n-----END {kind}PRIVATE KEY{tail}-----."
    assert SECRETS.clean(text).text == "[redacted:private-key]."


# -- names


def test_a_value_is_judged_by_the_name_it_stands_under() -> None:
    assert SECRETS.clean(PASSWORD).text == PASSWORD  # alone it tells nothing
    cleaned = SECRETS.clean(PASSWORD, name="db_password")
    assert cleaned.text == "[redacted:assigned-secret]"
    assert (cleaned.findings[0].start, cleaned.findings[0].end) == (0, len(PASSWORD))
    assert SECRETS.clean(f"{PASSWORD} 'x", name="password").text == "[redacted:assigned-secret]"  # all of it
    assert SECRETS.clean(HEX, name="apiKey").text == "[redacted:assigned-secret]"
    assert SECRETS.clean(f"{GITHUB} x", name="title").text == "[redacted:github-token] x"
    for name in ("title", "next_page_token", "cache_key", "monkey", "author", "token_hash", "password_length"):
        assert SECRETS.clean(HEX, name=name).text == HEX


def test_nothing_of_a_value_comes_out_while_its_name_makes_it_a_secret() -> None:
    for cut in range(1, len(PASSWORD)):
        assert SECRETS.clean(PASSWORD[:cut], name="password", complete=False).text == ""
    assert SECRETS.clean("once upon a time there was", name="title", complete=False).text


# -- time


@pytest.mark.parametrize(
    "bad",
    [
        "a",
        "=",
        "eyJ",
        "-----BEGIN ",
        "AKIA",
        "key=",
        "sk-",
        'password="',
        "-----BEGIN PRIVATE KEY-----\n",
        "://a:",
        "1 ",
        "é@",
        "- a1234567\n",
        "name: key\n",
        "keys = [\n'a',\n",
        "mysql -a b ",
        "cookie: a=b; ",
        "-pa-",
    ],
)
def test_no_text_takes_more_than_its_length(bad: str) -> None:
    def seconds(size: int) -> float:
        text = bad * (size // len(bad))
        began = time.process_time()
        EVERYTHING.clean(text)
        return time.process_time() - began

    seconds(10_000)
    small = min(seconds(25_000) for _ in range(2))
    assert min(seconds(100_000) for _ in range(2)) < 8 * small + 0.1


def test_an_evil_pattern_of_a_user_is_linear_too() -> None:
    evil = Sanitiser([Rule("evil", "mine", r"(a+)+$")])
    began = time.process_time()
    evil.clean("a" * 5_000 + "!")  # in a backtracking engine this would not end
    assert time.process_time() - began < 2


# -- odd texts


@pytest.mark.parametrize("odd", ["\ud800", "\x00", "é", "😀", "日本語", "\u202e", "\udcff\udcfe", "İ", "K"])
def test_places_are_right_beside_odd_characters(odd: str) -> None:
    text = f"{odd} {odd}: token={GITHUB} {odd}, password = '{PASSWORD}{odd}'"
    cleaned = SECRETS.clean(text)
    assert [text[f.start : f.end] for f in cleaned.findings] == [GITHUB, PASSWORD + odd]
    assert cleaned.text.startswith(f"{odd} {odd}: token=[redacted:github-token] {odd}, ")


def test_half_a_character_beside_a_private_key_harms_nothing() -> None:
    assert SECRETS.clean(f"\ud800é {PEM}\udfff").text == "\ud800é [redacted:private-key]\udfff"


def test_an_empty_text_is_clean() -> None:
    assert SECRETS.clean("").text == ""
    assert streamed(SECRETS, ["", ""]) == ("", [])


# -- hashes


def test_the_same_value_has_the_same_hash_under_the_same_key_only() -> None:
    one, two = SECRETS.keyed(b"k1"), SECRETS.keyed(b"k2")
    hashes = [s.clean(f"{pre}{GITHUB}").findings[0].hash for s in (one, two) for pre in ("", "token=")]
    assert hashes[0] == hashes[1] != hashes[2] == hashes[3]
    assert one.rules is SECRETS.rules
    assert SECRETS.clean(GITHUB).findings[0].hash not in hashes  # of this process
    with pytest.raises(InvalidArgument):
        SECRETS.keyed(b"")


# -- rules of others


MINE = Rule("staff-number", "mine", r"\bE-([0-9]{6})\b", ("e-",), group=1, not_=("^000",))


def test_rules_are_added_and_taken_away() -> None:
    mine = SECRETS.adding(MINE)
    assert (
        mine.clean(f"E-123456, E-000123, {GITHUB}").text
        == "E-[redacted:staff-number], E-000123, [redacted:github-token]"
    )
    assert mine.without("github-token").clean(GITHUB).text == GITHUB
    assert SECRETS.clean("E-123456").text == "E-123456"
    assert Sanitiser([MINE]).clean(f"{GITHUB} E-123456").text == f"{GITHUB} E-[redacted:staff-number]"
    assert Sanitiser([]).clean(GITHUB).text == GITHUB


@pytest.mark.parametrize("pattern", ["x*", "", r"\C", "é*", "(?s).", r"\s"])
def test_a_rule_that_matches_next_to_nothing_harms_nothing(pattern: str) -> None:
    cleaned = Sanitiser([Rule("odd", "mine", pattern, secret=False)]).clean("aé😀\ud800\n x")
    assert cleaned.text.replace("[redacted:odd]", "") in (
        "",
        "\n",
        "aé😀\ud800\n x",
        "aé😀\ud800\n ",
        "a😀\ud800\n x",
        "aé😀\ud800\nx",
    )


def test_a_rule_with_entropy_leaves_what_is_too_plain() -> None:
    rule = Rule("badge", "mine", r"badge-\w+", ("badge-",), entropy=3.0)
    assert Sanitiser([rule]).clean("badge-aaaaaaaaaaaaa").text == "badge-aaaaaaaaaaaaa"
    assert Sanitiser([rule]).clean("badge-x7Qp2Lz9").text == "[redacted:badge]"


@pytest.mark.parametrize(
    "rule",
    [
        Rule("Bad Name", "mine", "x"),
        Rule("x]", "mine", "x"),
        Rule("back", "mine", r"(a)\1"),
        Rule("open", "mine", "("),
        Rule("look", "mine", "(?<=a)b"),
        Rule("huge", "mine", "(?:a{1000}){1000}"),
        Rule("half", "mine", "\ud800"),
        Rule("group", "mine", "(a)", group=2),
        Rule("check", "mine", "a", check="nonsense"),
        Rule("words", "mine", "a", keywords=("Key",)),
        Rule("not", "mine", "a", not_=("(",)),
        Rule("github-token", "mine", "a"),
    ],
    ids=lambda rule: rule.name,
)
def test_a_rule_that_cannot_run_is_refused_at_once(rule: Rule) -> None:
    with pytest.raises(InvalidArgument):
        SECRETS.adding(rule)


def test_what_is_not_there_cannot_be_taken_away_and_what_is_no_text_not_cleaned() -> None:
    with pytest.raises(InvalidArgument):
        SECRETS.without("nonsense")
    with pytest.raises(InvalidArgument):
        SECRETS.clean(b"x")  # type: ignore[arg-type]


def test_a_rule_that_fails_refuses_the_text_and_shows_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str, *_: int) -> None:
        raise ValueError(text)

    monkeypatch.setitem(plausible.CHECKS, "luhn", fail)
    with pytest.raises(NotClean) as caught:
        PERSONAL.clean("card 4111 1111 1111 1111")
    assert "4111" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_built_in_sets_are_compiled_once() -> None:
    assert Sanitiser.secrets() is Sanitiser.secrets()
    assert {rule.name for rule in EVERYTHING.rules} == {rule.name for s in (SECRETS, PERSONAL) for rule in s.rules}


def test_a_uuid_is_no_card_whatever_its_digits_are() -> None:
    chance = random.Random(5)
    ids = ["".join(chance.choices("0123456789", k=32)) for _ in range(5_000)]
    for digits in ids:
        uuid = "-".join(("4" + digits[1:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))
        assert not [one for one in Sanitiser.personal().clean(uuid).findings if one.rule == "card"]
    assert Sanitiser.personal().clean("4111-1111-1111-1111 - thanks").findings  # the control: a card is one


@pytest.mark.parametrize("space", [" ", "\t"], ids=["space", "tab"])
@pytest.mark.parametrize("word", ["env", "ARG", "setenv", "export", "set"])
def test_a_directive_is_found_whatever_stands_after_it(word: str, space: str) -> None:
    assert "Xk29vqLw8" not in SECRETS.clean(f"{word}{space}DB_PASSWORD Xk29vqLw8").text


def test_without_re2_no_sanitiser_is_made_and_the_rest_works() -> None:
    """No sanitiser does nothing in silence."""
    script = """
import sys
sys.modules["re2"] = None
import hitherto
from hitherto.errors import MissingExtra
from hitherto.sanitiser import Rule, Sanitiser
with hitherto.open("memory:") as store:
    store.start().append(hitherto.Message.user("kept"))
for make in (Sanitiser.secrets, lambda: Sanitiser([Rule("mine", "own", "x")])):
    try:
        make()
    except MissingExtra as error:
        print(error, error.hint, isinstance(error, ImportError), sep="|")
"""
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=150)
    assert done.stdout == "google-re2 is not installed|pip install google-re2|True\n" * 2
