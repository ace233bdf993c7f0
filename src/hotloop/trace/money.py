"""What tokens cost where a hosted model prefills and decodes them: prices by the model's name.

`LISTED` has what the large vendors once listed, for a first idea: nothing keeps it up to date. What is paid is in the
contract, so prices of one's own go before it. A model without a price, such as one's own, costs nothing here.
"""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from cachetools import FIFOCache

from hotloop.core.errors import ConfigError
from hotloop.core.prices import Prices

_MAX_NAMES = 1_000
_FIELDS = ("prompt", "cached", "output")

LISTED: Mapping[str, Prices] = {
    "claude-opus-4-5*": Prices(prompt=5.0, cached=0.5, output=25.0),
    "claude-opus-4*": Prices(prompt=15.0, cached=1.5, output=75.0),
    "claude-sonnet-4*": Prices(prompt=3.0, cached=0.3, output=15.0),
    "claude-haiku-4*": Prices(prompt=1.0, cached=0.1, output=5.0),
    "gpt-4o-mini*": Prices(prompt=0.15, cached=0.075, output=0.6),
    "gpt-4o*": Prices(prompt=2.5, cached=1.25, output=10.0),
    "gpt-4.1-nano*": Prices(prompt=0.1, cached=0.025, output=0.4),
    "gpt-4.1-mini*": Prices(prompt=0.4, cached=0.1, output=1.6),
    "gpt-4.1*": Prices(prompt=2.0, cached=0.5, output=8.0),
    "gpt-5-nano*": Prices(prompt=0.05, cached=0.005, output=0.4),
    "gpt-5-mini*": Prices(prompt=0.25, cached=0.025, output=2.0),
    "gpt-5*": Prices(prompt=1.25, cached=0.125, output=10.0),
}
"""US dollars a million tokens: list prices as they were known at the end of 2025, not looked up anew and without
discounts, batches or the price of writing to a cache. They may be out of date. The first pattern that fits is taken.
"""


class PriceTable:
    """Prices by patterns of names, as a shell has them; one's own before the listed ones."""

    def __init__(self, own: Mapping[str, Prices] | None = None) -> None:
        self._found: FIFOCache[str, Prices | None] = FIFOCache(_MAX_NAMES)
        self._prices = {**(own or {}), **{name: price for name, price in LISTED.items() if name not in (own or {})}}

    @classmethod
    def parse(cls, tables: Any, place: str) -> "PriceTable":
        """From tables by pattern: `["my-model*"]`, `prompt = 1.0`, `output = 4.0`. Raises ConfigError."""
        if not isinstance(tables, dict):
            raise ConfigError(f"{place}: prices must be tables of {', '.join(_FIELDS)}, by the names of models")
        return cls({name: _parse_prices(place, name, table) for name, table in tables.items()})

    def find(self, model: str) -> Prices | None:
        """None for a model without a price. A vendor's name before it, as in `openai/gpt-5`, is looked past."""
        if model not in self._found:
            name = model.rpartition("/")[2]
            fits = (each for pattern, each in self._prices.items() if fnmatchcase(name, pattern))
            self._found[model] = next(fits, None)
        return self._found.get(model)

    def cost(self, model: str, *, num_prompt: int, num_cached: int, num_output: int) -> float:
        prices = self.find(model)
        return prices.cost(num_prompt, num_cached, num_output) if prices else 0.0


def _parse_prices(place: str, name: str, table: Any) -> Prices:
    if not isinstance(table, dict) or not set(table) <= set(_FIELDS):
        raise ConfigError(f"{place}: {name!r} must be a table of {', '.join(_FIELDS)}")
    for field, price in table.items():
        if not isinstance(price, int | float) or isinstance(price, bool) or not 0 <= price < 1e9:
            raise ConfigError(f"{place}: {field} of {name!r} must be a price, not {price!r}")
    return Prices(**{field: float(price) for field, price in table.items()})
