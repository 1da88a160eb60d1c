"""The address of a provider: what is refused before a key is sent there, and that it is never shown.

Requirements: A9.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hitherto.chat._urls import PLACEHOLDERS, effective_base_url, validate_base_url
from hitherto.errors import InvalidArgument, InvalidBaseURL

GOOD = [
    "https://api.openai.com/v1",
    "HTTPS://API.openai.com",
    "https://proxy.corp.internal:8443/x",
    "https://gateway",
    "https://my_service:443/",
    "https://host.example.com.corp.internal/",  # ends in another name
    "https://notexample.com",
    "https://10.0.0.1:8080/v1?region=eu#here",
    "https://[fd00::1]:8443/v1",
    "https://[::ffff:10.0.0.1]",
    "https://api.openai.com./v1",
    "https://xn--bcher-kva.de/",
    "https://xn--strae-oqa.de/",
    "https://xn--4dbrk0ce/",  # written from the right
    "https://h.com/a%20b/ü",
]

# Full-width, a capital, not composed, a joiner and a selector nobody sees, a mark first, two directions, no letter.
NO_NAMES = ["\uff41b", "\u00dcber", "u\u0308", "a\u034f", "a\ufe00", "\u0301a", "a\u05d0", "\u05d0a", "\u2603"]

BAD: dict[str, list[str]] = {
    "length": ["https://h.com/" + "a" * 3000, "https://h.com/" + "ü" * 1020, "x" * 2049, "\x00" * 3000],
    "characters": [
        *("https://h.com/\x00", "https://h.com/\x85", "https://h.com\n", "https://h\t.com", "\thttps://h.com"),
        *("https://h.com/\x7f", "https://h.com/\x9f", "ht\ntps://h.com", "http://u:p@h.com\r"),
    ],
    "parse": [
        *("", " https://h.com", "https://h.com ", "https://h .com", "https://h.com/a b", "https://h.com/\u2028"),
        *("https://h.com/\u3000", "https://h.com\\@evil.com", "https:\\\\h.com", "https://h.com/\ud800"),
        *("https://h:99999/", "https://h:65536", "https://h:", "https://h:-1", "https://h:8a", "https://h:8:8"),
        *("https://[::1", "https://::1]", "https://::1", "https://[::1]x", "https://a[b]", "https://h.com/%zz"),
        *("https://h.com/%", "http://h:99999", "https://u:p@h:99999", "https://h:٣"),
    ],
    "userinfo": ["https://user:p@h.com/", "https://@h.com/", "https://a@b@h.com", "http://:p@h.com", "ftp://u@h.com"],
    "scheme": [
        *("http://api.openai.com", "ftp://h.com", "javascript:alert(1)", "h.com/v1", "//h.com", "/v1", "ws://h.com"),
        *("httpss://h.com", "1https://h.com", "file:///etc/passwd", "data:,x", "localhost:11434", "://h.com"),
    ],
    "host": [
        *("https://", "https:///x", "https://:8080", "https:h.com"),
        *("https:/h.com", "https:", "https://?x", "https://#x"),
        *("https://.", "https://..", "https://a..b"),
        *("https://.a", "https://-a.com", "https://a-.com", "https://h%2ecom"),
        *("https://%41.com", "https://a|b", "https://a^b", "https://a<b", "https://a*b", "https://a'b", "https://a,b"),
        *("https://127.1", "https://0x7f.1", "https://2130706433", "https://1.2.3", "https://1.2.3.4.5", "https://a.1"),
        *("https://256.0.0.1", "https://01.2.3.4", "https://1.2.3.0x", "https://1.2.3.4.", "https://4294967296"),
        *("https://[::1%25eth0]", "https://[fe80::1%1]", "https://[1::2::3]", "https://[]", "https://[1.2.3.4]"),
        *("https://ｅｘａｍｐｌｅ.com", "https://example。com", "https://example．com", "https://exa\u00admple.com"),
        *(
            "https://exampl\u0435.com",
            "https://\u212aiwi.com",
            "https://h\u200d.com",
            "https://ⓔxample.com",
            "https://😀",
        ),
        *("https://xn--", "https://xn--a", "https://xn--0", "https://xn--example", "https://xn--abc-"),
        *("https://a.xn--bcher-kvb9a9999999999", "https://" + "a" * 64, "https://" + "a." * 130 + "b"),
        *(f"https://xn--{word.encode('punycode').decode()}.com" for word in NO_NAMES),
    ],
    "placeholder": [
        *("https://example.com", "https://EXAMPLE.com/v1", "https://a.b.example.org/", "https://example.com./"),
        *("https://api.example.net:8443", "https://localhost.localdomain", "https://x.LocalHost.localdomain./v1"),
    ],
}


@pytest.mark.parametrize("url", GOOD)
def test_an_https_address_with_a_host_is_taken(url: str) -> None:
    validate_base_url(url)
    validate_base_url(url, allow_insecure=True)


@pytest.mark.parametrize(("rule", "url"), [(rule, url) for rule, urls in BAD.items() for url in urls])
def test_the_first_rule_that_is_broken_is_named(rule: str, url: str) -> None:
    with pytest.raises(InvalidBaseURL) as caught:
        validate_base_url(url)
    assert caught.value.rule == rule
    assert isinstance(caught.value, InvalidArgument)
    assert caught.value.hint


def test_each_rule_has_its_own_words() -> None:
    said = {rule: refusal(urls[0]) for rule, urls in BAD.items()}
    assert len(set(said.values())) == len(BAD) == 7


def refusal(url: str, *, allow_insecure: bool = False) -> str:
    with pytest.raises(InvalidBaseURL) as caught:
        validate_base_url(url, allow_insecure)
    return str(caught.value)


def test_no_part_of_a_refused_address_is_shown() -> None:
    bad = [url for urls in BAD.values() for url in urls]
    for url in [*bad, "https://user:sesame@h.com", "http://sesame.internal", "sesame://x", "https://sesame\\h"]:
        with pytest.raises(InvalidBaseURL) as caught:
            validate_base_url(url)
        said = f"{caught.value} {caught.value.hint} {caught.value.args} {caught.value.__cause__}"
        assert "sesame" not in said
        assert not url or url not in said


def test_http_is_taken_only_where_it_is_allowed() -> None:
    validate_base_url("http://127.0.0.1:8080/v1", allow_insecure=True)
    validate_base_url("http://localhost:11434", allow_insecure=True)
    assert "https" in refusal("http://127.0.0.1:8080/v1")


@pytest.mark.parametrize("rule", [rule for rule in BAD if rule != "scheme"])
def test_allowing_http_lifts_no_other_rule(rule: str) -> None:
    for url in BAD[rule]:
        refusal(url, allow_insecure=True)
        refusal(url.replace("https:", "http:"), allow_insecure=True)
    refusal("ftp://h.com", allow_insecure=True)


def test_a_text_from_a_configuration_file_does_not_allow_http() -> None:
    with pytest.raises(InvalidBaseURL):
        validate_base_url("http://127.0.0.1", allow_insecure="false")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, b"https://h.com", 7, ["https://h.com"]])
def test_what_is_no_text_is_refused_as_an_address(value: object) -> None:
    with pytest.raises(InvalidBaseURL):
        validate_base_url(value)  # type: ignore[arg-type]


ODD = st.sampled_from(
    [
        *("@:/?#[]%\\.-_|^<>`{}~!$&'()*+,;= \t\x00\x85"),
        *("xn--", "xn--a", "0x", "127", "::1", "[::1]", ":80", "://", "https", "example", "com"),
        *("\uff0e", "\u3002", "\uff21", "\u00df", "\u200d", "\u00ad", "\u0301", "\u05d0", "\u0660", "\ud800", "\u2028"),
    ]
)


@given(st.sampled_from(["https://", "http://", "https:", ""]), st.lists(ODD | st.text(max_size=4), max_size=8))
@example("https://", ["xn--", "99999999"])
@example("https://", ["[", "v1.x", "]"])
def test_whatever_is_given_is_taken_or_refused_in_the_same_way(scheme: str, parts: list[str]) -> None:
    try:
        validate_base_url(scheme + "".join(parts), allow_insecure=True)
    except InvalidBaseURL:
        return
    host = "".join(parts).split("/")[0].split("?")[0].split("#")[0]
    assert host.isascii()
    assert "@" not in host


@given(st.sampled_from(PLACEHOLDERS), st.from_regex(r"([a-z]{1,5}\.){0,3}", fullmatch=True), st.randoms())
def test_a_placeholder_is_refused_in_every_spelling(name: str, below: str, chance: object) -> None:
    assert hasattr(chance, "choice")
    host = "".join(chance.choice([c, c.upper(), wide(c)]) for c in below + name) + chance.choice(["", "."])
    refusal(f"https://{host}/v1")


def wide(c: str) -> str:
    return chr(ord(c) + 0xFEE0)


def test_the_address_given_comes_first_then_the_environment_then_the_default() -> None:
    environ = {"FIRST": "", "SECOND": "https://second", "THIRD": "https://third"}
    names = ("ABSENT", "FIRST", "SECOND", "THIRD")
    assert effective_base_url("https://given", names, "https://default", environ) == "https://given"
    assert effective_base_url(None, names, "https://default", environ) == "https://second"
    assert effective_base_url(None, names[:2], "https://default", environ) == "https://default"
    assert effective_base_url(None, (), None, environ) is None


def test_an_empty_address_that_was_given_does_not_fall_back_in_silence() -> None:
    """The environment must not decide where the key goes when somebody meant to."""
    found = effective_base_url("", ["VARIABLE"], "https://default", {"VARIABLE": "https://variable"})
    assert found is not None
    refusal(found)


def test_the_longest_address_that_is_taken_is_public() -> None:
    from hitherto.chat import MAX_BASE_URL_LENGTH

    start = "https://gateway.corp.internal/"
    validate_base_url(start + "x" * (MAX_BASE_URL_LENGTH - len(start)))
    with pytest.raises(InvalidBaseURL):
        validate_base_url(start + "x" * (MAX_BASE_URL_LENGTH - len(start) + 1))
