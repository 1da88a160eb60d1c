"""How fast a text is cleaned, and how well: megabytes a second, recall and false findings.

There is no raw side: a raw table keeps what it is given. What is labelled as a secret or as none comes from the shared
corpora, where they are there; ordinary code is Python's own library.
"""

import base64
import json
import statistics
import sysconfig
import time
from collections import defaultdict
from pathlib import Path

from ._corpus import messages
from ._messages import to_message
from ._table import Bench, Row, at_least, at_most

_CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpora" / "secrets" / "training.json"
_SHORT = (
    "The build fails because the linker cannot find the library; try to install it again, and then look at the log. "
)


def sanitising(bench: Bench) -> list[Row]:
    from hitherto import Sanitiser

    cleaner, rounds = Sanitiser.secrets(), bench.pick(5, 15)
    chat = "\n".join(to_message(message).text for message in messages(2_000))
    library = Path(sysconfig.get_paths()["stdlib"])
    code = "\n".join(file.read_text("utf-8", "replace") for file in sorted(library.glob("*.py")))

    def rate(text: str, clean: Sanitiser) -> list[float]:
        return [len(text) / 1e6 / _seconds(clean, text) for _ in range(rounds)]

    found = [finding.rule for finding in cleaner.clean(code).findings]
    short = _SHORT * 2
    return [
        at_least("clean chat, MB/s", rate(chat, cleaner), 30, f"{len(chat) / 1e6:.1f} MB"),
        at_least("clean chat, personal data too, MB/s", rate(chat, Sanitiser.everything()), 15),
        at_most("clean source code, MB/s", rate(code, cleaner), None, f"{len(code) / 1e6:.1f} MB"),
        at_most("clean 220 characters, µs", [_seconds(cleaner, short, 500) * 1e6 for _ in range(rounds)], 30),
        at_most("findings in a MB of source code", [len(found) / len(code) * 1e6], 3, ", ".join(sorted(set(found)))),
        *_labelled(cleaner),
    ]


def _seconds(cleaner: object, text: str, times: int = 1) -> float:
    clean = cleaner.clean  # type: ignore[attr-defined]  # a Sanitiser, which is imported only when measured
    began = time.process_time()
    for _ in range(times):
        clean(text)
    return (time.process_time() - began) / times


def _labelled(cleaner: object) -> list[Row]:
    """Recall by family of the rule that a file is labelled with, and what is found where nothing should be."""
    if not _CORPUS.exists():
        return []
    hits: dict[bool, dict[str, list[bool]]] = {True: defaultdict(list), False: defaultdict(list)}
    families: dict[str, list[bool]] = defaultdict(list)
    for row in json.loads(_CORPUS.read_text("utf-8")):
        text = row.get("text") or base64.b64decode(row["text_base64"]).decode()
        cleaned = cleaner.clean(text)  # type: ignore[attr-defined]  # as above
        hits[row["is_secret"]][row["rule"]].append(bool(cleaned.findings))
        for family in {finding.family for finding in cleaned.findings}:
            families[family].append(row["is_secret"])
    recall = statistics.fmean(any(found) for found in hits[True].values())
    wrong = statistics.fmean(statistics.fmean(found) for found in hits[False].values())
    return [
        at_least("labelled secrets: recall by rule", [recall], 0.8, f"{len(hits[True])} rules"),
        at_most("labelled as none: found by rule", [wrong], 0.3, f"{len(hits[False])} rules"),
        *(
            at_most(f"labelled: precision of {family}", [statistics.fmean(right)], None, f"{len(right)} texts")
            for family, right in sorted(families.items())
        ),
    ]
