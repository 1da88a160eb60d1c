"""What the pages show, as values: each page is drawn from one of these, and its JSON twin is the same value.

The OpenAPI description is made from them, so their field names are a contract: fields are added, none is renamed.
"""

from datetime import datetime

from msgspec import Struct

__all__ = [
    "BranchMap",
    "Comparison",
    "ConversationCard",
    "ConversationList",
    "ConversationUsage",
    "ConversationWindow",
    "Found",
    "Header",
    "MapRow",
    "MessageRecord",
    "Place",
    "Problem",
    "Prompt",
    "Prompts",
    "RetentionItem",
    "RetentionPlan",
    "SearchHit",
    "SearchResults",
    "Siblings",
    "Skeleton",
    "StoreState",
    "StoreUsage",
    "Tokens",
    "UsageShare",
]


class Place(Struct, frozen=True, kw_only=True):
    """Whether and when retention takes a conversation."""

    held: bool = False
    due_at: datetime | None = None
    why: str = "kept: retention is off"


class ConversationCard(Struct, frozen=True, kw_only=True):
    """A conversation in a list."""

    id: str
    title: str
    first_prompt: str = ""
    kind: str = "chat"
    project: str | None = None
    source: str | None = None
    model: str | None = None
    messages: int = 0
    branches: int = 0
    approximate_tokens: int = 0
    created_at: datetime | None = None
    active_at: datetime | None = None
    retention: Place = Place()
    problem: str | None = None


class StoreState(Struct, frozen=True, kw_only=True):
    """The store behind the page."""

    sealed: bool
    read_only: bool
    verified_at: datetime | None = None  # when `hitherto verify --note` found it sound last


class ConversationList(Struct, frozen=True, kw_only=True):
    """A page of conversations, the most recently active first. `next` is the cursor of the next page."""

    conversations: list[ConversationCard]
    next: str | None = None
    total: int | None = None
    kinds: list[str] = []
    store: StoreState


class Siblings(Struct, frozen=True, kw_only=True):
    """The continuations that a message is one of."""

    position: int  # from 1
    ids: list[str]


class MessageRecord(Struct, frozen=True, kw_only=True):
    """A message on a path."""

    id: str
    position: int  # on the path, from 0
    role: str
    created_at: datetime
    blocks: list[dict[str, object]]
    label: str | None = None
    error: bool = False
    usage: dict[str, int] | None = None
    siblings: Siblings | None = None
    agents: list[str] = []  # the first messages of sub-agents that it started
    sums_up: str | None = None  # the message up to which a compaction sums up
    problem: str | None = None


class Header(Struct, frozen=True, kw_only=True):
    """What is the same on all pages of a conversation."""

    id: str
    title: str
    key: str | None = None
    project: str | None = None
    metadata: dict[str, str] = {}
    provider: str = ""
    model: str = ""
    system_prompt: str = ""
    messages: int = 0
    branches: int = 0
    forks: int = 0
    head: str | None = None
    created_at: datetime | None = None
    active_at: datetime | None = None
    exportable: bool = True
    retention: Place = Place()


class ConversationWindow(Struct, frozen=True, kw_only=True):
    """A part of a path: the messages at the positions `start` to `start + len(messages)` of `length`."""

    conversation: Header
    leaf: str | None  # the end of the path
    on_trunk: bool  # the path is the one that leads to the head
    start: int
    length: int
    target: str | None = None  # the message that was asked for
    subagent: str | None = None  # the label, if the path is the trace of a sub-agent
    started_by: str | None = None  # the message that started it
    messages: list[MessageRecord]


class SearchHit(Struct, frozen=True, kw_only=True):
    """A message that was found. `spans` are the places in the snippet that matched."""

    message: str
    conversation: str
    title: str
    role: str
    created_at: datetime
    snippet: str
    spans: list[tuple[int, int]]


class SearchResults(Struct, frozen=True, kw_only=True):
    """The result of a search, `limit` hits from `offset` on."""

    query: str
    hits: list[SearchHit]
    offset: int = 0
    more: bool = False
    hint: str | None = None
    tier: str = "match"  # or "nearest", if no message has all of the words


class Found(Struct, frozen=True, kw_only=True):
    """The messages of a path that hold a text, in order, and how many on other branches do."""

    query: str
    ids: list[str]
    positions: list[int]
    elsewhere: int = 0
    first_elsewhere: str | None = None


class Skeleton(Struct, frozen=True, kw_only=True):
    """The places on a path that one jumps to: position and id of each."""

    prompts: list[tuple[int, str]]
    forks: list[tuple[int, str]]
    ends: list[tuple[int, str]]  # the first message and the last


class Prompt(Struct, frozen=True, kw_only=True):
    """A prompt on a path, with its first words."""

    position: int
    id: str
    text: str


class Prompts(Struct, frozen=True, kw_only=True):
    """The prompts of a path. Those that hold nothing but what a program added are left out."""

    prompts: list[Prompt]
    total: int  # of the path; of very many only the first are here


class Comparison(Struct, frozen=True, kw_only=True):
    """Two paths of a conversation: how many messages they share, and what each has after that."""

    conversation: Header
    shared: int
    fork: str | None  # the last message that they share
    left: list[MessageRecord]
    right: list[MessageRecord]
    left_length: int
    right_length: int


class MapRow(Struct, frozen=True, kw_only=True):
    """A stretch of messages without forks."""

    first: str
    last: str
    count: int
    lane: int
    kind: str  # "branch", "compaction" or "subagent"
    parent: int | None  # the row that it leaves
    active: bool  # it is on the path that is shown
    position: int | None = None  # of its first message there
    head: bool  # the head is in it
    begun_at: datetime
    active_at: datetime
    label: str | None = None
    text: str = ""
    level: int = 1


class BranchMap(Struct, frozen=True, kw_only=True):
    """The tree of a conversation, with stretches without forks as one row each."""

    conversation: Header
    rows: list[MapRow]
    lanes: int
    hidden_agents: int = 0  # traces of sub-agents that are left out: ask with all=1


class RetentionItem(Struct, frozen=True, kw_only=True):
    """A conversation that a sweep takes, or keeps, and why."""

    conversation: str
    title: str
    active_at: datetime | None
    due_at: datetime | None
    action: str
    reason: str


class RetentionPlan(Struct, frozen=True, kw_only=True):
    """What the next sweep would do now."""

    days: int | None  # the policy; None: retention is off
    floor_days: int | None  # for so many days nothing is destroyed
    total: int
    due: int  # how many conversations are to go
    held: int  # how many are due, and on hold
    takes: list[RetentionItem]  # the first of those
    next: list[RetentionItem]  # the first that become due after that
    holds: list[RetentionItem]


class Tokens(Struct, frozen=True, kw_only=True):
    """A sum of tokens, as providers counted them. `answers` are the messages that say so."""

    answers: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


class ConversationUsage(Struct, frozen=True, kw_only=True):
    """The tokens of a path, and of the whole tree, in which a shared prefix counts once."""

    conversation: Header
    path: Tokens
    tree: Tokens


class UsageShare(Struct, frozen=True, kw_only=True):
    """The tokens of a day, a model, a project or a source, and the cost of those with a price."""

    name: str
    tokens: Tokens
    cost: float = 0.0
    unpriced: int = 0  # answers of models without a price


class StoreUsage(Struct, frozen=True, kw_only=True):
    """The tokens of the last days, and their cost, as `hitherto usage` counts them. Each answer counts once."""

    days: int
    total: Tokens
    cost: float  # of the answers whose models have a price
    currency: str
    prices_of: str  # the date of the prices
    unpriced_models: list[str]
    unreadable: int  # conversations that cannot be read, and are not counted
    by_day: list[UsageShare]
    by_model: list[UsageShare]
    by_project: list[UsageShare]
    by_source: list[UsageShare]


class Problem(Struct, frozen=True, kw_only=True):
    """An error, with what to do now."""

    error: str
    hint: str | None = None
    candidates: list[str] = []
