"""Tokens and what they cost: counted from the answers that a store keeps.

    report = hitherto.usage.count_usage(store, by="model")
    for row in report.rows:
        print(row.name, row.usage.output_tokens, row.cost)

Each answer is one message, so it counts once, whatever copied it. Prices are data: `prices.json` in this package, or a
file of the same form.
"""

from .counting import UsageReport, UsageRow, count_usage
from .prices import Price, Prices

__all__ = ["Price", "Prices", "UsageReport", "UsageRow", "count_usage"]
