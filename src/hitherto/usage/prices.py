"""Prices of models: a dated file of numbers, and what an answer costs by it.

The file that comes with hitherto gets old. A file of the same form replaces it: one object with a date, a currency, the
number of tokens that the prices are per, and the models with their prices for input, output, and tokens that are read
from a cache or written to one. A model without a price has no cost, and is never guessed.
"""

import os
import re
from functools import cache
from importlib.resources import files
from pathlib import Path

import msgspec
from msgspec import Struct

from .._system import config_file
from ..errors import CannotOpen, InvalidArgument
from ..model import Usage

_DATED = re.compile(r"(?:-\d{8}|-\d{4}-\d\d-\d\d|-latest|@\d{8}|\[\w+\])+$")  # versions of a model have its price


class Price(Struct, frozen=True):
    """The prices of a model. What has no price of its own costs as much as other input."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    def cost(self, usage: Usage) -> float:
        """Return the cost of an answer, times the number of tokens that the prices are per."""
        read, written = usage.cache_read_tokens, usage.cache_write_tokens
        fresh = max(0, usage.input_tokens - read - written)
        cost = fresh * self.input + usage.output_tokens * self.output
        cost += read * (self.input if self.cache_read is None else self.cache_read)
        return cost + written * (self.input if self.cache_write is None else self.cache_write)


class Prices(Struct, frozen=True):
    """Prices of models on some day."""

    date: str
    models: dict[str, Price]
    currency: str = "USD"
    per: int = 1_000_000  # tokens

    @classmethod
    def ours(cls) -> "Prices":
        """Return the prices that come with hitherto."""
        return _ours()

    @classmethod
    def from_file(cls, path: str | Path) -> "Prices":
        """Read prices from a file. Raises `InvalidArgument` if it is in another form."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except OSError as error:
            raise CannotOpen(f"{str(path)!r:.200}: {error.strerror}", hint="give the path of a file") from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            hint = '{"date": "2026-07-24", "models": {"a-model": {"input": 3, "output": 15}}}'
            raise InvalidArgument(f"{str(path)!r:.200} is no file of prices: {error}", hint=hint) from None

    def price_of(self, model: str) -> Price | None:
        """Return the price of a model, by its name with or without a provider and a date; None if it has none.

        >>> Prices("2026-01-01", {"a-model": Price(3, 15)}).price_of("some/a-model-20260101").output
        15
        """
        for name in (model, model.rpartition("/")[2]):
            for known in (name, _DATED.sub("", name)):
                if known in self.models:
                    return self.models[known]
        return None

    def cost(self, model: str, usage: Usage) -> float | None:
        """Return what an answer cost, or None if the model has no price. Thoughts are part of the output."""
        price = self.price_of(model)
        return None if price is None else price.cost(usage) / self.per


def load_prices() -> Prices:
    """Return the prices in `prices.json` beside the configuration file, or those that come with hitherto."""
    own = os.path.join(os.path.dirname(config_file.path()), "prices.json")
    return Prices.from_file(own) if os.path.exists(own) else Prices.ours()


@cache
def _ours() -> Prices:
    return msgspec.json.decode(files(__package__).joinpath("prices.json").read_bytes(), type=Prices)
