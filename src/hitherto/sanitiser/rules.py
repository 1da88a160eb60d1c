r"""What secrets and personal data look like, as data: the rules that `sanitiser` carries out.

A rule is a pattern in RE2's syntax, the literals of which one has to be there before the pattern is worth trying, and
what has to be true of a match besides. Formats come in families, and that is how they are written here: a vendor's
prefix and so many characters of an alphabet; a name that says "secret" with a value that looks random; a scheme with a
user and a password. A service that nobody has thought of is found by the second and by `vendor-token`, the shape that
most vendors have settled on.

`not_` names patterns; where one occurs in the secret, it is none: placeholders, templates, examples in manuals.
"""

# ruff: noqa: E501  # a pattern is easier to read whole than in pieces

from msgspec import Struct

from ..errors import InvalidArgument

_PROVIDER, _CLOUD, _TOKEN, _URL, _HTTP = "provider-key", "cloud", "token", "connection-string", "http-auth"
_ASSIGNED, _PERSONAL = "assignment", "personal"

TEMPLATES = (  # whole ones, and what begins like one: a password may have such signs in any order
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
)
_NAMES = (
    *("pass", "pw", "psk", "salt", "secret", "token", "key", "cred", "auth", "login", "bearer", "webhook"),
    *("kennwort", "wachtwoord", "contrase", "senha"),
    *("client_id", "client-id", "client.id", "clientid", "access_id", "access-id", "access.id", "accessid", "dsn"),
)
COMMON = frozenset(  # keywords that ordinary texts are full of: each is asked for once, not wherever it stands
    (*_NAMES, "://", "https://", "@", ":", "::", "-u", "x-", "basic", "cookie", "keys")
)


class Rule(Struct, frozen=True):
    """One kind of secret or personal data: what it looks like, and what else has to be true of it."""

    name: str  # small letters, digits and hyphens: it stands in the marker
    family: str
    pattern: str  # in RE2's syntax
    keywords: tuple[str, ...] = ()  # small letters; a match contains one of them. None: the pattern is always tried
    group: int = 0  # the part of the pattern that is the secret
    entropy: float = 0.0  # bits for each character that it has at least
    check: str = ""  # what else must be true of it: one of the names in `sanitiser.CHECKS`
    not_: tuple[str, ...] = ()  # patterns; where one occurs in the secret, it is none
    secret: bool = True  # False: personal data

    def __post_init__(self) -> None:
        """Refuse what is no rule where it is made. Whether the pattern is one is found out when it is compiled."""
        texts = (self.name, self.family, self.pattern, self.check)
        several = (self.keywords, self.not_)
        fits = all(isinstance(text, str) for text in texts)
        fits = fits and all(type(s) is tuple and all(isinstance(text, str) for text in s) for s in several)
        numbers = type(self.group) is int and type(self.entropy) in (int, float) and type(self.secret) is bool
        if not (fits and numbers):
            raise InvalidArgument(
                "a rule is made of texts, tuples of texts, and numbers", hint="Rule(name, family, pattern)"
            )


# Where something begins: where a word does, or behind an escape, which ends in a letter and is no word: `\n`, `%20`,
# `\u003d`, a colour of a terminal.
_START = r"(?:\b|%[0-9A-Fa-f]{2}|\\(?:[nrtbf]|u00[0-9A-Fa-f]{2}|x[0-9A-Fa-f]{2})|\[[0-9;]{1,8}m)"


def _of(
    family: str, name: str, keywords: str, pattern: str, *, entropy: float = 3.0, check: str = "", not_: str = ""
) -> Rule:
    """A token with a prefix of its vendor. Such a prefix also occurs by chance inside of base64; `rule_engine` knows."""
    none = (*PLACEHOLDERS, not_) if not_ else PLACEHOLDERS
    return Rule(name, family, rf"{_START}({pattern})", tuple(keywords.split()), 1, entropy, check, none)


_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"

PROVIDERS = (
    _of(_PROVIDER, "anthropic-key", "sk-ant-", r"sk-ant-[a-z0-9]{3,12}-[\w-]{20,}"),
    _of(_PROVIDER, "openai-key", "sk-", r"sk-(?:proj|svcacct|admin|None)-[\w-]{20,}|sk-[A-Za-z0-9]{30,}\b"),
    _of(_PROVIDER, "openrouter-key", "sk-or-", r"sk-or-v\d-[0-9a-f]{40,}"),
    _of(_PROVIDER, "vendor-sk-key", "sk-", r"sk-[a-z]{2,12}-(?:v\d-)?[A-Za-z0-9_-]{24,}", check="random"),
    _of(_PROVIDER, "langfuse-key", "sk-lf- pk-lf-", rf"[ps]k-lf-{_UUID}"),
    _of(_PROVIDER, "google-key", "aiza", r"AIza[\w-]{35}"),
    _of(_PROVIDER, "xai-key", "xai-", r"xai-[A-Za-z0-9]{40,}"),
    _of(_PROVIDER, "groq-key", "gsk_", r"gsk_[A-Za-z0-9]{40,}"),
    _of(_PROVIDER, "huggingface-token", "hf_ api_org_", r"hf_[A-Za-z0-9]{30,}\b|api_org_[A-Za-z]{34}\b"),
    _of(_PROVIDER, "replicate-token", "r8_", r"r8_[A-Za-z0-9]{37,}"),
    _of(_PROVIDER, "perplexity-key", "pplx-", r"pplx-[A-Za-z0-9]{32,}"),
    _of(_PROVIDER, "nvidia-key", "nvapi-", r"nvapi-[\w-]{40,}"),
    _of(_PROVIDER, "cerebras-key", "csk-", r"csk-[a-z0-9]{32,}"),
    _of(_PROVIDER, "fireworks-key", "fw_ fpk_", r"(?:fw|fpk)_[A-Za-z0-9]{22,}\b", check="random"),
    _of(_PROVIDER, "together-key", "tgp_v1_", r"tgp_v1_[\w-]{30,}"),
    _of(_PROVIDER, "langsmith-key", "lsv2_ ls__", r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}|ls__[0-9a-f]{32}"),
    _of(_PROVIDER, "tavily-key", "tvly-", r"tvly-(?:dev-|prod-)?[A-Za-z0-9]{20,}"),
    _of(_PROVIDER, "pinecone-key", "pcsk_", r"pcsk_[A-Za-z0-9_]{40,}"),
    _of(_PROVIDER, "jina-key", "jina_", r"jina_[A-Za-z0-9_-]{40,}"),
    _of(_PROVIDER, "voyage-key", "pa-", r"pa-[A-Za-z0-9_-]{43}", check="random"),
    _of(_PROVIDER, "e2b-key", "e2b_", r"e2b_[0-9a-f]{40}"),
    _of(_PROVIDER, "firecrawl-key", "fc-", r"fc-[0-9a-f]{32}\b"),
    _of(_PROVIDER, "friendli-key", "flp_", r"flp_[A-Za-z0-9]{40,}"),
    _of(_PROVIDER, "sk-underscore-key", "sk_", r"sk_[0-9a-f]{40,64}\b"),
)

CLOUDS = (
    Rule(
        "aws-access-key",
        _CLOUD,
        rf"(?i){_START}((?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{{16}})\b",
        ("akia", "asia", "abia", "acca", "a3t"),
        1,
        0.0,
        "one-case",
        (r"(?i)example$", r"(?i)x{5,}"),
    ),
    _of(
        _CLOUD,
        "aws-bedrock-key",
        "absk bedrock-api-key-",
        r"ABSK[A-Za-z0-9+/]{80,}={0,2}|bedrock-api-key-[\w+/=-]{40,}",
    ),
    _of(_CLOUD, "aws-mws-token", "amzn.mws.", rf"amzn\.mws\.{_UUID}"),
    _of(_CLOUD, "google-oauth-secret", "gocspx-", r"GOCSPX-[\w-]{20,}"),
    _of(_CLOUD, "google-oauth-token", "ya29.", r"ya29\.[\w-]{20,}"),
    _of(_CLOUD, "google-refresh-token", "1//", r"1//0[\w-]{40,}"),
    Rule(
        "azure-storage-key",
        _CLOUD,
        r"(?i)(?:account|access|shared|storage)_?key(?:[\"']?\s*[:=]+\s*|[\"']?[ \t]*value=)[\"']?([A-Za-z0-9+/]{40,88}={1,2})",
        (
            "accountkey",
            "account_key",
            "accesskey",
            "access_key",
            "sharedkey",
            "shared_key",
            "storagekey",
            "storage_key",
        ),
        1,
        3.5,
        "",
        PLACEHOLDERS,
    ),
    Rule(
        "azure-signature",
        _CLOUD,
        r"(?i)[?&](?:sig|signature|x-amz-signature|x-goog-signature)=([A-Za-z0-9%+/_-]{32,}(?:%3D|=){0,2})",
        ("sig=", "signature="),
        1,
        3.0,
        "",
        PLACEHOLDERS,
    ),
    _of(_CLOUD, "azure-client-secret", "q~", r"[\w~.-]{3}\dQ~[\w~.-]{31,34}"),
    _of(_CLOUD, "azure-devops-token", "azdo", r"[A-Za-z0-9]{70,80}AZDO[A-Za-z0-9]{4}\b"),
    _of(
        _CLOUD,
        "azure-signed-key",
        "jqqj99 +ast +acdb +aiot",
        r"[A-Za-z0-9]{40,60}JQQJ99[A-Za-z0-9]{20,40}|[A-Za-z0-9+/]{60,80}\+(?:ASt|ACDb|AIoT)[A-Za-z0-9+/]{2,8}={1,2}",
    ),
    _of(_CLOUD, "alibaba-access-key", "ltai", r"LTAI[A-Za-z0-9]{12,24}\b", check="random"),
    _of(_CLOUD, "tencent-secret-id", "akid", r"AKID[A-Za-z0-9]{32}\b", check="random"),
    _of(_CLOUD, "digitalocean-token", "_v1_", r"do[oprt]_v1_[0-9a-f]{64}"),
    _of(_CLOUD, "cloudflare-origin-ca-key", "v1.0-", r"v1\.0-[0-9a-f]{24}-[0-9a-f]{100,}"),
    _of(_CLOUD, "flyio-token", "fo1_ fm1 fm2", r"fo1_[\w-]{43}|fm[12][ar]?_[A-Za-z0-9+/=_-]{60,}"),
    _of(_CLOUD, "heroku-token", "hrku-", r"HRKU-[\w-]{30,}"),
    _of(_CLOUD, "scaleway-access-key", "scw", r"SCW[A-Z0-9]{17}\b", check="random"),
    _of(
        _CLOUD,
        "yandex-key",
        "aqvn yca t1.",
        r"AQVN[\w-]{35,38}|YCA[\w-]{37}|t1\.[A-Za-z0-9_-]{20,}=*\.[A-Za-z0-9_-]{80,}=*",
    ),
    _of(_CLOUD, "netlify-token", "nfp_ nfc_ nfo_ nfu_ nfb_", r"nf[pcoub]_[A-Za-z0-9_]{36,}"),
    _of(_CLOUD, "supabase-token", "sbp_ sb_secret_", r"sbp_[0-9a-f]{40}|sb_secret_[\w-]{20,}"),
    _of(_CLOUD, "neon-key", "napi_", r"napi_[a-z0-9]{40,}"),
    _of(_CLOUD, "planetscale-token", "pscale_", r"pscale_(?:tkn|pw|oauth)_[\w=.-]{30,64}"),
    _of(
        _CLOUD,
        "vercel-token",
        "vcp_ vck_ vci_ vca_ vcr_ vercel_",
        r"(?:vc[pkiar]|vercel(?:_\w{2,6})?)_[A-Za-z0-9_]{24,}",
        check="random",
    ),
    _of(_CLOUD, "render-key", "rnd_", r"rnd_[A-Za-z0-9]{26,}\b"),
    _of(_CLOUD, "clickhouse-key", "4b1d", r"4b1d[A-Za-z0-9]{38}\b", check="mixed"),
    _of(_CLOUD, "databricks-token", "dapi dose dkea", r"(?:dapi|dose|dkea)[0-9a-f]{32}(?:-\d)?\b"),
    _of(_CLOUD, "mongodb-atlas-secret", "mdb_sa_", r"mdb_sa_(?:sk|id)_[\w-]{20,}"),
    _of(_CLOUD, "terraform-token", ".atlasv1.", r"[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{50,}"),
    _of(_CLOUD, "vault-token", "hvs. hvb. hvr.", r"hv[sbr]\.[\w-]{24,}"),
    _of(_CLOUD, "vault-service-token", "", r"s\.[A-Za-z0-9]{24}\b", entropy=3.8, check="mixed"),
    _of(_CLOUD, "pulumi-token", "pul-", r"pul-[0-9a-f]{40}\b"),
    _of(_CLOUD, "doppler-token", "dp.", r"dp\.(?:pt|st|ct|sa|scim|audit|said)\.[A-Za-z0-9._-]{40,}"),
    _of(_CLOUD, "infracost-key", "ico-", r"ico-[A-Za-z0-9]{32}\b", check="random"),
    _of(_CLOUD, "openshift-token", "sha256~", r"sha256~[\w-]{43}"),
    _of(_CLOUD, "docker-token", "dckr_", r"dckr_(?:pat|oat)_[\w-]{20,}"),
    _of(_CLOUD, "tailscale-key", "tskey-", r"tskey-[a-z]{2,10}-[A-Za-z0-9-]{16,}"),
    _of(_CLOUD, "deno-token", "ddp_ ddo_", r"dd[po]_[A-Za-z0-9]{36}"),
    _of(_CLOUD, "sourcegraph-token", "sgp_ slk_", r"sgp_(?:[0-9a-f]{16}_|local_)?[0-9a-f]{40}|slk_[0-9a-f]{64}"),
    _of(_CLOUD, "artifactory-key", "akc cmvmdgtu", r"AKC[pP]?[A-Za-z0-9]{60,}|cmVmdGtu[A-Za-z0-9]{56,}"),
    Rule(
        "artifactory-assigned-key",
        _CLOUD,
        r"(?i)artif\w*[-_.]?(?:key|token|password)[\"']?[ \t]*[:=]+[ \t]*[\"']?((?-i:AKC|AP[0-9A-F])[A-Za-z0-9]{8,})\b",
        ("artif",),
        1,
    ),
    _of(_CLOUD, "nuget-key", "oy2", r"oy2[a-z0-9]{43}\b"),
    _of(
        _CLOUD,
        "1password-token",
        "ops_ey a3-",
        r"ops_eyJ[A-Za-z0-9+/_-]{40,}=*|A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}",
    ),
    _of(_CLOUD, "age-key", "age-secret-key-", r"AGE-SECRET-KEY-(?:PQ-)?1[0-9A-Z]{58,}"),
    _of(_CLOUD, "cloud-api-token", "cfut_ cfat_ cfk_", r"cf(?:ut|at|k)_[A-Za-z0-9_-]{40,}"),
)

TOKENS = (
    _of(
        _TOKEN, "github-token", "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_\w{36,}"
    ),
    _of(
        _TOKEN,
        "gitlab-token",
        "glpat- gldt- glrt- glrtr- glcbt- glptt- glft- glimt- glagent- glsoat- gloas- glsa- glffct- glwt- gr1348941",
        r"gl(?:pat|dt|rt|rtr|cbt|ptt|ft|imt|agent|soat|oas|sa|ffct|wt)-[\w.-]{20,}|GR1348941[\w-]{20,}",
    ),
    Rule("gitlab-session", _TOKEN, r"_gitlab_session=([0-9a-z]{32})", ("_gitlab_session=",), 1, 3.0),
    _of(_TOKEN, "atlassian-token", "atatt3 atctt3 atbb", r"AT(?:AT|CT)T3[\w=-]{60,}|ATBB[A-Za-z0-9]{32}"),
    _of(
        _TOKEN,
        "slack-token",
        "xoxa- xoxb- xoxc- xoxd- xoxe xoxo- xoxp- xoxr- xoxs- xapp- xwfp-",
        r"(?i:xox[abcdoprs]|xoxe(?:\.xox[bp])?|xapp|xwfp)-\d(?:[\w%+/=-]){9,}",
        entropy=2.8,
    ),
    _of(
        _TOKEN,
        "slack-legacy-token",
        "xoxa- xoxr- xoxo- xoxs-",
        r"xox[aros]-[0-9A-Za-z]+-?[0-9a-zA-Z]{8,48}",
        entropy=2.5,
        check="mixed",
    ),
    Rule(
        "slack-webhook",
        _TOKEN,
        r"hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/([A-Za-z0-9+/]{20,})",
        ("hooks.slack",),
        1,
        3.0,
        "",
        PLACEHOLDERS,
    ),
    Rule(
        "teams-webhook",
        _TOKEN,
        r"webhook\.office\.com/webhookb2/([\w@./-]{60,})",
        ("webhook.office.com",),
        1,
        3.0,
        "",
        PLACEHOLDERS,
    ),
    Rule(
        "discord-webhook",
        _TOKEN,
        r"discord(?:app)?\.com/api/(?:v\d+/)?webhooks/(\d{15,}/[\w-]{50,})",
        ("webhooks/",),
        1,
        3.0,
        "",
        PLACEHOLDERS,
    ),
    Rule(
        "chat-webhook",
        _TOKEN,
        r"(?:chat\.googleapis\.com/v1/spaces/[\w-]+/messages\?|hooks\.zapier\.com/hooks/catch/|outlook\.office\.com/webhook/)([\w&=%@/.-]{12,})",
        ("chat.googleapis", "hooks.zapier", "outlook.office"),
        1,
        3.0,
        "",
        PLACEHOLDERS,
    ),
    _of(
        _TOKEN, "discord-token", "", r"[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,38}", check="mixed"
    ),
    Rule(
        "telegram-token",
        _TOKEN,
        rf"(?m){_START}((?:bot)?[0-9]{{8,16}}:A[\w-]{{32,34}})(?:[^\w-]|$)",
        (),
        1,
        3.0,
        "mixed",
        PLACEHOLDERS,
    ),
    _of(
        _TOKEN,
        "stripe-key",
        "sk_ rk_ whsec_",
        r"[sr]k_(?:test|live|prod|sbox|dev)_[A-Za-z0-9]{10,}|whsec_[A-Za-z0-9+/]{24,}=*",
    ),
    _of(_TOKEN, "square-token", "sq0 eaaa", r"sq0[a-z]{3}-[\w^-]{20,}|EAAA[\w-]{60}"),
    _of(
        _TOKEN,
        "shopify-token",
        "shpat_ shpca_ shppa_ shpss_ shpua_ shptka_",
        r"shp(?:at|ca|pa|ss|ua|tka)_[0-9a-fA-F]{32}",
    ),
    _of(
        _TOKEN, "braintree-token", "access_token$", r"access_token\$(?:production|sandbox)\$[a-z0-9]{16}\$[0-9a-f]{32}"
    ),
    _of(_TOKEN, "flutterwave-key", "flwpubk flwseck", r"FLW(?:PUB|SEC)K(?:_TEST|_LIVE)?-?[0-9a-hA-H]{12,32}(?:-X)?"),
    _of(_TOKEN, "razorpay-key", "rzp_", r"rzp_(?:live|test)_[A-Za-z0-9]{14,}"),
    _of(_TOKEN, "plaid-token", "access-", rf"access-(?:sandbox|development|production)-{_UUID}", entropy=2.5),
    _of(_TOKEN, "lob-key", "", r"(?:live|test)(?:_pub)?_[0-9a-f]{30,40}\b"),
    _of(_TOKEN, "mollie-key", "", r"(?:live|test|sandbox)_[A-Za-z0-9]{30,}\b|live_[\w=-]{40}\b", check="random"),
    _of(_TOKEN, "easypost-key", "ezak eztk", r"EZ[AT]K[A-Za-z0-9]{54}\b"),
    _of(_TOKEN, "duffel-token", "duffel_", r"duffel_(?:test|live)_[\w=-]{40,}"),
    _of(_TOKEN, "dynatrace-token", "dt0", r"dt0[a-z]\d{2}\.[A-Z0-9]{24}\.[A-Z0-9]{64}"),
    _of(_TOKEN, "frameio-token", "fio-u-", r"fio-u-[\w=-]{60,}"),
    _of(_TOKEN, "adobe-secret", "p8e-", r"p8e-[A-Za-z0-9_-]{32,}"),
    _of(_TOKEN, "airtable-token", "", r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    _of(_TOKEN, "asana-token", "", r"[012]/\d{12,}(?:/\d+)?:[0-9a-f]{32}"),
    _of(_TOKEN, "clojars-token", "clojars_", r"(?i:CLOJARS)_[a-z0-9]{60}"),
    _of(_TOKEN, "clickup-token", "pk_", r"pk_\d+_[A-Z0-9]{32}"),
    _of(_TOKEN, "contentful-token", "cfpat-", r"CFPAT-[\w-]{40,}"),
    _of(_TOKEN, "circleci-token", "ccipat_ cciprj_", r"CCI(?:PAT|PRJ)_[A-Za-z0-9_]{40,}"),
    _of(_TOKEN, "buildkite-token", "bkua_ bkat_", r"bk(?:ua|at)_[0-9a-f]{40}"),
    _of(_TOKEN, "sonar-token", "squ_ sqp_ sqa_", r"sq[upa]_[0-9a-f]{40}"),
    _of(_TOKEN, "sentry-token", "sntrys_ sntryu_", r"sntrys_eyJ[A-Za-z0-9+/=_-]{40,}|sntryu_[0-9a-f]{64}"),
    Rule(
        "sentry-dsn",
        _URL,
        r"https://([0-9a-f]{32}(?::[0-9a-f]{32})?)@[\w.-]+/\d+",
        ("https://",),
        1,
        3.0,
        "",
        PLACEHOLDERS,
    ),
    _of(
        _TOKEN,
        "newrelic-key",
        "nrak- nrii- nrjs- nrra- nriq- nral",
        r"NR(?:AK|II|JS|RA|IQ|SP)-[\w-]{19,}|[0-9a-f]{36}NRAL",
    ),
    _of(
        _TOKEN,
        "grafana-token",
        "glc_ glsa_ eyjrijoi",
        r"glc_[A-Za-z0-9+/]{32,}={0,2}|glsa_[A-Za-z0-9]{32}_[0-9a-fA-F]{8}|eyJrIjoi[A-Za-z0-9+/]{60,}={0,2}",
    ),
    _of(_TOKEN, "honeycomb-key", "hcaik_ hcbik_ hcxik_ hcalk_ hcblk_ hcxlk_", r"hc[abx][il]k_[a-z0-9]{40,}"),
    _of(_TOKEN, "linear-key", "lin_", r"lin_(?:api|oauth|wh)_[A-Za-z0-9]{32,}"),
    _of(_TOKEN, "notion-token", "secret_ ntn_", r"(?:secret_|ntn_)[A-Za-z0-9]{43,50}\b", check="mixed"),
    _of(_TOKEN, "figma-token", "figd_ figo_ figor_ figu_ figur_", r"fig(?:d|o|or|u|ur)_[\w-]{36,}"),
    _of(_TOKEN, "postman-key", "pmak- pmat-", r"PMAK-[0-9a-fA-F]{24}-[0-9a-fA-F]{34}|PMAT-[0-9A-Z]{26}"),
    _of(_TOKEN, "readme-key", "rdme_", r"rdme_[a-z0-9]{60,}"),
    _of(_TOKEN, "rubygems-key", "rubygems_", r"rubygems_[0-9a-f]{48}"),
    _of(_TOKEN, "npm-token", "npm_", r"npm_[A-Za-z0-9]{36}\b"),
    Rule(
        "npm-auth",
        _TOKEN,
        r"_auth(?:Token)?[ \t]*=[ \t]*[\"']?([A-Za-z0-9+/=._-]{16,})",
        ("_auth",),
        1,
        3.0,
        "random",
        PLACEHOLDERS,
    ),
    _of(_TOKEN, "pypi-token", "pypi-", r"pypi-[A-Za-z0-9_-]{60,}"),
    _of(_TOKEN, "crates-token", "", r"cio[A-Za-z0-9]{32}\b", check="mixed"),
    _of(_TOKEN, "packagist-token", "packagist_", r"packagist_[ou][ru][gt]_[0-9a-f]{60,}"),
    _of(_TOKEN, "octopus-key", "api-", r"API-[A-Z0-9]{26}\b", check="mixed"),
    _of(_TOKEN, "prefect-key", "pnu_ pnb_", r"pn[ub]_[A-Za-z0-9]{36}"),
    _of(_TOKEN, "scalingo-token", "tk-us-", r"tk-us-[\w-]{48}"),
    _of(_TOKEN, "sendgrid-key", "sg.", r"SG\.[\w=-]{16,32}\.[\w=-]{16,64}"),
    _of(_TOKEN, "mailgun-key", "key-", r"(?:pub)?key-[0-9a-f]{32}\b"),
    _of(_TOKEN, "mailchimp-key", "-us", r"[0-9a-f]{32}-us\d{1,2}\b"),
    _of(_TOKEN, "brevo-key", "xkeysib- xsmtpsib-", r"x(?:key|smtp)sib-[0-9a-f]{64}-[A-Za-z0-9]{16}"),
    _of(_TOKEN, "mandrill-key", "md-", r"md-[A-Za-z0-9_-]{22}", check="mixed"),
    _of(_TOKEN, "twilio-key", "", r"(?:SK|AC)[0-9a-f]{32}\b"),
    _of(_TOKEN, "hubspot-token", "pat-", rf"pat-(?:na|eu|ap)\d-{_UUID}"),
    _of(_TOKEN, "salesforce-token", "00d", r"00D[A-Za-z0-9]{12,15}![\w.]{60,}"),
    _of(_TOKEN, "facebook-token", "eaa igq", r"(?:EAA|IGQ)[A-Za-z0-9_-]{60,}", check="mixed"),
    _of(_TOKEN, "facebook-app-token", "", r"\d{15,16}\|[\w-]{27,40}"),
    _of(_TOKEN, "twitter-bearer", "aaaaaaaaaa", r"A{20,26}[A-Za-z0-9%]{60,}"),
    _of(_TOKEN, "dropbox-token", "sl.", r"sl\.(?:u\.)?[\w=-]{100,}"),
    _of(_TOKEN, "typeform-token", "tfp_", r"tfp_[\w.=-]{40,}"),
    _of(
        _TOKEN,
        "authress-key",
        ".acc",
        r"(?:sc|ext|scauth|authress)_[\w]{5,30}\.[a-z0-9]{4,6}\.acc[_-][a-z0-9-]{10,32}\.[\w+/=-]{30,120}",
    ),
    _of(_TOKEN, "mapbox-token", "sk.ey pk.ey tk.ey", r"[pst]k\.eyJ[\w-]{30,}\.[\w-]{20,}"),
    _of(_TOKEN, "intra42-secret", "s-s4t2", r"s-s4t2(?:ud|af)-[0-9a-f]{64}"),
    _of(_TOKEN, "settlemint-token", "sm_", r"sm_(?:aat|pat|sat)_[A-Za-z0-9]{16}\b"),
    _of(_TOKEN, "maxmind-key", "_mmk", r"[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk"),
    _of(_TOKEN, "defined-networking-key", "dnkey-", r"dnkey-[\w=-]{26}-[\w=-]{52}"),
    _of(_TOKEN, "endor-token", "endr+", r"endr\+[\w-]{16,}"),
    _of(_TOKEN, "zuplo-key", "zpka_", r"zpka_[A-Za-z0-9_]{32,}"),
    _of(_TOKEN, "resend-key", "", r"re_[A-Za-z0-9]{8}_[A-Za-z0-9]{24}\b", check="mixed"),
    _of(_TOKEN, "launchdarkly-key", "sdk- mob- api-", rf"(?:sdk|mob|api)-{_UUID}"),
    _of(_TOKEN, "posthog-key", "phx_ phs_", r"ph[xs]_[A-Za-z0-9]{40,}"),
    _of(_TOKEN, "zoho-token", "1000.", r"1000\.[0-9a-f]{32}\.[0-9a-f]{32}"),
    _of(_TOKEN, "apify-token", "apify_api_", r"apify_api_[A-Za-z0-9]{34,}"),
    _of(_TOKEN, "harness-token", "pat. sat.", r"[ps]at\.[\w-]{22}\.[0-9a-f]{24}\.[A-Za-z0-9]{20}"),
    _of(_TOKEN, "wakatime-key", "waka_", rf"waka_{_UUID}"),
    _of(_TOKEN, "rootly-key", "rootly_", r"rootly_[0-9a-f]{64}"),
    _of(_TOKEN, "twitch-token", "oauth:", r"oauth:[a-z0-9]{30}\b", check="mixed"),
    _of(
        _TOKEN,
        "vendor-token",
        "",
        r"[A-Za-z][A-Za-z0-9]+_(?:live|test|prod|sandbox|api|pat|sk|secret|key|token|oat|sat)_[A-Za-z0-9]{20,}",
        entropy=3.3,
        check="random",
        not_=r"^pk_(?:live|test)_",  # which are to be seen by everybody
    ),
)

# The left side of an assignment: a word that says that what follows is kept from others. The pattern begins with that
# word; what stands before it in the same name is looked at by the check, together with what stands behind.
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
        _ASSIGNED,
        rf"(?i){_WORD}{_REST}(?:\[\w*\])?{_CLOSING}(?:{_IS}|[ \t]*,[ \t]*|{_CALLED}|[ \t]+)(?:\[[ \t]*|{_MADE}){_OPENING}([^\s\"'`\\]{{6,}})",
        _NAMES,
        1,
        0.0,
        "assigned",
        PLACEHOLDERS,
    ),
    Rule(
        "compared-secret",
        _ASSIGNED,
        rf"(?i)[\"'`]([^\s\"'`\\]{{6,}})[\"'`][ \t]*[!=]==?[ \t]*[\w.]*{_WORD}",
        _NAMES,
        1,
        0.0,
        "compared",
        PLACEHOLDERS,
    ),
    Rule(
        "assigned-line",  # to the end of the line, with signs that a piece of code would have in pairs
        _ASSIGNED,
        rf"(?im)^[ \t]*[\w.-]*{_WORD}{_REST}[ \t]*(?::=|[:=])[ \t]*([^\s\"'`]{{8,200}})[\"'`,;]?[ \t]*$",
        _NAMES,
        1,
        0.0,
        "assigned-line",
        PLACEHOLDERS,
    ),
    Rule(
        "assigned-value",
        _ASSIGNED,
        rf"(?i){_WORD}{_REST}{_CLOSING}(?:{_IS})([0-9A-Za-z_+/=.~^@!?&%*:#$-]{{6,}})",
        _NAMES,
        1,
        0.0,
        "assigned-bare",
        PLACEHOLDERS,
    ),
    Rule(
        "assigned-list",
        _ASSIGNED,
        rf"(?i){_WORDS}{_CLOSING}{_TYPE}[ \t]*(?::=|=>|[:=])[ \t]*({_LIST})",
        ("keys", "tokens", "secrets", "passwords", "credentials", "creds"),
        1,
        0.0,
        "assigned-list",
        (*PLACEHOLDERS, r"(?:a-z|A-Z|0-9).*(?:a-z|A-Z|0-9)"),  # of a regular expression
    ),
    Rule(
        "directive-secret",  # a name and its value with a space between: of a Dockerfile, of a shell
        _ASSIGNED,
        rf"(?im)^[ \t]*(?:env|arg|setenv|export|set)[ \t]+[\w.-]*{_WORD}{_REST}[ \t]+[\"']?([^\s\"'=]{{6,}})",
        ("env ", "env\t", "arg ", "arg\t", "export ", "export\t", "set ", "set\t"),
        1,
        0.0,
        "directive",
        PLACEHOLDERS,
    ),
    Rule(
        "mentioned-secret",  # in a sentence: "the token … does not work"
        _ASSIGNED,
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
        _ASSIGNED,
        r"(?i)<[\w.:-]*(?:secret|password|passphrase|token|apikey|privatekey)[\w.-]{0,40}>[ \t]*(\{[^<>{}\n]{12,}\})[ \t]*</",
        ("secret", "passw", "passphrase", "token", "key"),
        1,
    ),
    Rule(
        "dockerconfig",
        _ASSIGNED,
        r"dockerconfigjson[\"']?[ \t]*:[ \t]*[\"']?([A-Za-z0-9+/]{20,}=*)",
        ("dockerconfigjson",),
        1,
    ),
    Rule(
        "named-value",  # the name is a value itself: of Kubernetes, of Terraform
        _ASSIGNED,
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
        _ASSIGNED,
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
        _ASSIGNED,
        r"(?:Client|algoliasearch|Api|API)\((?:[ \t]*[\"'][^\s\"']+[\"'][ \t]*,)?[ \t]*[\"']([A-Za-z0-9+/=_-]{20,})[\"']",
        ("client(", "algoliasearch(", "api("),
        1,
        3.0,
        "random",
        PLACEHOLDERS,
    ),
    Rule(
        "lone-string",
        _ASSIGNED,
        r"(?m)^[\"'`]([A-Za-z0-9+/=_-]{20,200})[\"'`]$",
        (),
        1,
        3.0,
        "random",
        PLACEHOLDERS,
    ),
    Rule(
        "bundler-credentials",
        _ASSIGNED,
        r"BUNDLE_[A-Z0-9_]+__[A-Z]{2,10}[\"']?[ \t]*[:=][ \t]*[\"']?([0-9A-Za-z_.-]+:[0-9A-Za-z_.-]{6,})",
        ("bundle_",),
        1,
        2.5,
        "",
        PLACEHOLDERS,
    ),
    Rule(
        "password-field",
        _ASSIGNED,
        r"(?i)type=[\"']password[\"'](?:[ \t]+[\w:-]+(?:=[\"'][^\s\"'<>]*[\"'])?)*?[ \t]+value=[\"']([^\s\"'<>]{5,})",
        ("type='password", 'type="password'),
        1,
        0.0,
        "password",
        PLACEHOLDERS,
    ),
    Rule(
        "netrc-password",
        _ASSIGNED,
        r"(?i)\b(?:login|user)[ \t]+\S+[ \t]+password[ \t]+([^\s\"']{5,})",
        ("password",),
        1,
        0.0,
        "password",
        PLACEHOLDERS,
    ),
    Rule(
        "password-line",  # a line of its own in a file of settings
        _ASSIGNED,
        r"(?im)^[ \t]*(?:password|passwd|requirepass|masterauth|rootpw) [\"']?([^\s\"']{6,})[\"']?[ \t]*$",
        ("password ", "passwd ", "requirepass ", "masterauth ", "rootpw "),
        1,
        0.0,
        "password",
        PLACEHOLDERS,
    ),
    Rule(
        "pgpass-line",
        _ASSIGNED,
        r"(?m)^[\w.*-]+:(?:543[0-9]|643[0-9]|\*):[\w.*-]+:[\w.*-]+:([^\s:\"']{6,})$",
        (":543", ":643", ":*:"),
        1,
        0.0,
        "password",
        PLACEHOLDERS,
    ),
    Rule(
        "password-hash",  # as crypt(3) and its successors write it
        _ASSIGNED,
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

URLS = (
    Rule(
        "url-password",
        _URL,
        r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^\s:/?#@\"'`<>\[\]{}()\\]*:)?([^\s@\"'`<>{}\\]{2,})@[\w\[]",
        ("://",),
        1,
        0.0,
        "url-password",
        (*TEMPLATES, r"^\$", r"^[*x]+$", r"^\.+$"),
    ),
    Rule(
        "oracle-password",
        _URL,
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
        _HTTP,
        rf"(?i){_START}bearer[ \t]+[\"']?([\w.~+/-]{{12,}}=*)",
        ("bearer",),
        1,
        3.0,
        "random",
        PLACEHOLDERS,
    ),
    Rule(
        "basic-credentials",
        _HTTP,
        rf"(?i){_START}basic[ \t]+([A-Za-z0-9+/_-]{{6,}}={{0,2}})",
        ("basic",),
        1,
        2.0,
        "basic",
        TEMPLATES,
    ),
    Rule(
        "authorization-header",
        _HTTP,
        rf"(?i){_START}authorization[\"']?[ \t]*[:=,][ \t]*[\"']?(?:[a-z][\w-]{{2,16}}[ \t]+)?(?:token=|key=)?[\"']?([\w.~+/:-]{{12,}}=*)",
        ("authorization",),
        1,
        3.0,
        "random",
        PLACEHOLDERS,
    ),
    Rule(
        "header-key",
        _HTTP,
        rf"(?i){_START}(?:x-[a-z-]{{0,20}}(?:key|token|secret|auth)|private-token|cookie|set-cookie)[\"']?[ \t]*[:=][ \t]*[\"']?([\w.~+/:%-]{{12,}}=*)",
        ("x-", "private-token", "cookie"),
        1,
        3.0,
        "random",
        PLACEHOLDERS,
    ),
    Rule(
        "cookie",
        _HTTP,
        rf"(?i){_START}(?:set-)?cookie[\"']?[ \t]*[:=][ \t]*[\"']?([\w.-]+=[^\s;\"']*(?:;[ ]?[\w.-]+=[^\s;\"']*)*)",
        ("cookie",),
        1,
        0.0,
        "cookies",
    ),
    Rule(
        "http-signature",
        _HTTP,
        r"(?i)\b(?:response=\"|signature=\"?)([0-9a-f]{32}|[0-9a-f]{64}|[A-Za-z0-9+/]{43}=|[A-Za-z0-9+/]{86}==)(?:[\"\s,]|$)",
        ("response=", "signature="),
        1,
        3.0,
        "mixed",
    ),
    Rule(
        "command-line-password",
        _HTTP,
        r"(?im)(?:^|[ \t])(?:--?(?:pass(?:word|wd)?|token|secret|api-?key|access-?token|auth-?token)|sshpass[ \t]+-p)[ \t]+[\"']?([^\s\"'$<>{}\[\]()|]{6,})",
        ("-pass", "-token", "-secret", "-api-key", "-apikey", "-access", "-auth", "sshpass"),
        1,
        0.0,
        "password",
        PLACEHOLDERS,
    ),
    Rule(
        "command-password",  # the options of commands that everybody uses
        _HTTP,
        rf"(?im)(?:{_START}(?:(?:mysql\w*|mariadb[\w-]*){_OPTIONS}-p|redis-cli{_OPTIONS}-a[ \t]+|(?:docker|podman|registry|oras|az|oc|cf) login(?:[ \t]+[^\s-]\S*)?{_OPTIONS}-p[ \t]+"
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
        _HTTP,
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
        rf"{_START}(eyJ[\w-]{{14,}}\.[\w-]{{14,}}(?:\.[\w-]+){{0,3}}={{0,2}})",
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
        _PERSONAL,
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
        _PERSONAL,
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
        _PERSONAL,
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
        _PERSONAL,
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
        _PERSONAL,
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
        _PERSONAL,
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
