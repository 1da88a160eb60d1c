"""How much the sweeps try.

Some tests repeat one check at every operation, for every row and value, or from several seeds. Day by day they try a
part that has each kind of case in it, the same one every time; with `HITHERTO_THOROUGH=1` in the environment they try
everything, which takes minutes. Each sweep says what its part is.
"""

import os

THOROUGH = bool(os.environ.get("HITHERTO_THOROUGH"))


def examples(many: int = 100) -> int:
    """How many a property is tried with: so many, or day by day a third of them."""
    return many if THOROUGH else many // 3
