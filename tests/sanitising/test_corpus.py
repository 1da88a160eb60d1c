"""How much of what is a secret is found, and how little of what is none: by service, by family, and in ordinary text.

Tokens are made here, from a fixed seed and what is publicly known of their formats, in the forms in which they stand in
files and chats. Where the folder of shared corpora is there, its labelled examples are looked at, too.

Requirements: D8.
"""

import base64
import json
import random
import re
import string
import sysconfig
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hitherto import Sanitiser
from hitherto.sanitiser import rules

CORPUS = Path(__file__).resolve().parents[3] / "shared" / "corpora" / "secrets" / "training.json"
SECRETS = Sanitiser.secrets()
ALPHABETS = {
    "x": "0123456789abcdef",
    "d": string.digits,
    "a": string.ascii_lowercase + string.digits,
    "A": string.ascii_uppercase + string.digits,
    "b": string.ascii_letters + string.digits,
    "u": string.ascii_letters + string.digits + "-_",
    "s": string.ascii_letters + string.digits + "+/",
    "l": string.ascii_letters,
}

# What a token of each looks like: {alphabet and count}. U: a UUID.
FORMATS = {
    "openai": "sk-proj-{u74}",
    "openai, old": "sk-{b20}T3BlbkFJ{b20}",
    "anthropic": "sk-ant-api03-{u93}AA",
    "openrouter": "sk-or-v1-{x64}",
    "google": "AIza{u35}",
    "xai": "xai-{b80}",
    "groq": "gsk_{b52}",
    "huggingface": "hf_{l34}",
    "replicate": "r8_{b37}",
    "perplexity": "pplx-{b48}",
    "aws": "AKIA{A16}",
    "google oauth": "GOCSPX-{u28}",
    "google access": "ya29.a0{u80}",
    "azure ad": "{b3}8Q~{b34}",
    "alibaba": "LTAI{b20}",
    "digitalocean": "dop_v1_{x64}",
    "databricks": "dapi{x32}",
    "doppler": "dp.pt.{b43}",
    "heroku": "HRKU-{u60}",
    "vault": "hvs.{u90}",
    "pulumi": "pul-{x40}",
    "fly.io": "fo1_{u43}",
    "vercel": "vcp_{b40}",
    "supabase": "sbp_{x40}",
    "neon": "napi_{a64}",
    "netlify": "nfp_{b36}",
    "planetscale": "pscale_tkn_{u43}",
    "docker": "dckr_pat_{u27}",
    "tailscale": "tskey-auth-{b12}CNTRL-{b32}",
    "github": "ghp_{b36}",
    "github, fine-grained": "github_pat_{b22}_{b59}",
    "gitlab": "glpat-{u20}",
    "atlassian": "ATATT3xFfGF0{u180}",
    "slack": "xoxb-{d12}-{d12}-{b24}",
    "discord": "MTk4{b21}.G{b5}.{u38}",
    "telegram": "{d10}:AA{u33}",
    "stripe": "sk_live_{b24}",
    "stripe hook": "whsec_{b32}",
    "checkout": "sk_test_{U}",
    "shopify": "shpat_{x32}",
    "square": "sq0atp-{u22}",
    "npm": "npm_{b36}",
    "pypi": "pypi-AgEIcHlwaS5vcmc{u80}",
    "rubygems": "rubygems_{x48}",
    "nuget": "oy2{a43}",
    "sendgrid": "SG.{u22}.{u43}",
    "mailgun": "key-{x32}",
    "mailchimp": "{x32}-us12",
    "twilio": "SK{x32}",
    "linear": "lin_api_{b40}",
    "notion": "ntn_{b46}",
    "figma": "figd_{u40}",
    "sentry": "sntryu_{x64}",
    "newrelic": "NRAK-{A27}",
    "dynatrace": "dt0c01.{A24}.{A64}",
    "grafana": "glsa_{b32}_{x8}",
    "postman": "PMAK-{x24}-{x34}",
    "airtable": "pat{b14}.{x64}",
    "facebook": "EAA{b120}",
    "hubspot": "pat-na1-{U}",
    "age": "AGE-SECRET-KEY-1{A58}",
    "1password": "ops_eyJ{b200}",
    "terraform": "{b14}.atlasv1.{u67}",
    "nobody's, but like all": "acme_live_{b32}",
    "nobody's, a personal one": "acme_pat_{b40}",
}

# Services whose tokens look like nothing in particular: it is their name that tells.
NAMED = {
    "mistral": "{b32}",
    "cohere": "{b40}",
    "datadog": "{x32}",
    "cloudflare": "{u40}",
    "okta": "00{u40}",
    "linkedin": "{b16}",
    "fastly": "{u32}",
    "heroku": "{U}",
    "ibm_cloud": "{u44}",
    "aws_secret": "{s40}",
    "algolia": "{x32}",
    "spotify": "{x32}",
    "zendesk": "{b40}",
    "trello": "{x64}",
    "asana": "{x32}",
}
FORMS = [
    "{name}_token = '{value}'",
    '{name}Token: "{value}"',
    "{NAME}_API_KEY={value}",
    '{{"{name}_secret": "{value}"}}',
    '{{"{name}_api_key":"{value}","x":1}}',
    "{name}_api_key: {value}",
    'var {name}Token string = "{value}"',
    '{name}_token := "{value}"',
    '"{name}_token" => "{value}",',
    'System.setProperty("{NAME}_TOKEN", "{value}")',
    "<{name}Token>\n    {value}\n</{name}Token>",
    "const {name}ApiKey = `{value}`;",
    "--{name}-api-key={value}",
    "https://api.example.org/v1?{name}_token={value}&page=2",
    "curl -H 'X-{name}-Token: {value}' https://example.org",
]


def filled(template: str, dice: random.Random) -> str:
    def one(match: re.Match[str]) -> str:
        if match[1] == "U":
            return "-".join("".join(dice.choices(ALPHABETS["x"], k=n)) for n in (8, 4, 4, 4, 12))
        return "".join(dice.choices(ALPHABETS[match[1]], k=int(match[2])))

    return re.sub(r"\{([a-zA-Z])(\d*)\}", one, template)


@pytest.mark.parametrize("service", FORMATS)
def test_a_token_is_found_wherever_it_stands(service: str) -> None:
    dice = random.Random(service)
    for _ in range(10):
        token = filled(FORMATS[service], dice)
        for before, after in [
            ("", ""),
            ("use ", " for now"),
            ("it is `", "`."),
            ('{"a": "', '"}'),
            ("--x=", "\n"),
            ("\x1b[1m", "\x1b[0m"),
            ("%20", " ok"),
        ]:
            cleaned = SECRETS.clean(before + token + after).text
            assert token[8:] not in cleaned
            assert cleaned.startswith(before)
            assert cleaned.endswith(after)


@pytest.mark.parametrize("service", NAMED)
def test_a_value_whose_name_tells_is_found_in_every_form(service: str) -> None:
    dice = random.Random(service)
    missed = []
    for form in FORMS:
        for _ in range(4):
            value = filled(NAMED[service], dice)
            text = form.format(name=service, NAME=service.upper(), value=value)
            if value[4:-4] in SECRETS.clean(text).text:
                missed.append(text)
    assert len(missed) <= len(FORMS) * 4 * 0.1  # sixteen random letters may spell words


def test_the_same_values_without_a_telling_name_are_left_alone() -> None:
    """The control: it is the name by which they were found."""
    dice = random.Random(1)
    for service, template in NAMED.items():
        for form in ("{name}_version = '{value}'", '{{"{name}_digest": "{value}"}}', "{name}: see {value}"):
            text = form.format(name=service.replace("secret", "s"), value=filled(template, dice))
            assert SECRETS.clean(text).text == text


WITH_KEYWORDS = [rule for rule in rules.SECRETS if rule.keywords and rule.check != "block"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_what_a_pattern_matches_contains_a_keyword_of_its_rule(data: st.DataObject) -> None:
    """Otherwise the pattern would not be tried, and the rule would be dead."""
    rule = data.draw(st.sampled_from(WITH_KEYWORDS))
    pattern = re.sub(r"\\x\{([0-9a-f]{4})\}", r"\\u\1", rule.pattern)  # as Python writes it
    text = data.draw(st.from_regex(pattern, alphabet=st.characters(max_codepoint=127)))
    assert any(word in text.lower() for word in rule.keywords)


def test_source_code_and_prose_hold_hardly_any() -> None:
    library = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(library.glob("*.py")) + sorted(library.glob("email/*.py")) + sorted(library.glob("asyncio/*.py"))
    texts = [file.read_text(errors="replace") for file in files][:160]
    found = [finding.rule for text in texts for finding in SECRETS.clean(text).findings]
    size = sum(map(len, texts)) / 1e6
    assert size > 2
    assert len(found) <= 3 * size, found


def scored() -> tuple[dict[str, list[bool]], dict[str, list[bool]]]:
    found: dict[bool, dict[str, list[bool]]] = {True: defaultdict(list), False: defaultdict(list)}
    for row in json.loads(CORPUS.read_text()):
        text = row.get("text") or base64.b64decode(row["text_base64"]).decode()
        found[row["is_secret"]][row["rule"]].append(SECRETS.clean(text).text != text)
    return found[True], found[False]


@pytest.mark.skipif(not CORPUS.exists(), reason="the shared corpora are not there")
def test_labelled_examples_are_told_apart() -> None:
    secrets, harmless = scored()
    assert sum(any(hits) for hits in secrets.values()) / len(secrets) >= 0.95
    assert sum(sum(hits) for hits in secrets.values()) / sum(map(len, secrets.values())) >= 0.95
    # Some of these are secrets, only not of the service in question.
    assert sum(sum(hits) / len(hits) for hits in harmless.values()) / len(harmless) <= 0.2


PAGE = Path(__file__).resolve().parents[2] / "docs" / "sanitiser.md"


def row(rule: rules.Rule) -> str:
    """A rule, as a line of the table in the documentation."""
    words = " ".join(f"`{word}`" for word in rule.keywords) or "none"
    besides = ", ".join(filter(None, [f"{rule.entropy:g}" if rule.entropy else "", rule.check and f"`{rule.check}`"]))
    return f"| `{rule.name}` | {rule.family} | {words} | {besides} |".replace("`|`", "`\\|`")


def test_the_documentation_has_every_rule_as_it_is() -> None:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| `")]
    assert lines == [row(rule) for rule in (*rules.SECRETS, *rules.PERSONAL)]
