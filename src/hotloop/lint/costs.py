"""What wasted tokens cost: milliseconds by how fast prompts are read here, money by a table of prices."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median

from hotloop.core.prices import Prices
from hotloop.lint.finding import Waste
from hotloop.lint.run import LintedRun, LintedStep

PriceOf = Callable[[str], Prices | None]


@dataclass(frozen=True, slots=True)
class Costs:
    """Unknown speeds and prices leave the figures out; a speed that is not given is taken from what was measured."""

    price_of: PriceOf = lambda model: None
    prefill_tokens_per_s: float | None = None

    def price(self, waste: Waste, run: LintedRun) -> Waste:
        return replace(waste, ms=self._ms(waste, run), money=self._money(waste, run.last.asked.model))

    def _ms(self, waste: Waste, run: LintedRun) -> float | None:
        speed = self.prefill_tokens_per_s or measure_speed(run.steps)
        reading = waste.num_recomputed / speed * 1000 if speed else None
        waits = [step.asked.ttft_ms for step in run.steps if step.asked.ttft_ms is not None]
        if waste.num_round_trips and waits:
            return (reading or 0.0) + waste.num_round_trips * median(waits)
        return reading

    def _money(self, waste: Waste, model: str) -> float | None:
        """What was recomputed could have been cached; what was carried was, and need not have been there."""
        prices = self.price_of(model)
        if prices is None:
            return None
        again = prices.cost(waste.num_recomputed, 0, 0) - prices.cost(waste.num_recomputed, waste.num_recomputed, 0)
        return again + prices.cost(waste.num_carried, waste.num_carried, 0)


def measure_speed(steps: Iterable[LintedStep]) -> float | None:
    """Prompt tokens that had to be computed, by the time until first tokens came; None where either is not known."""
    num_prefilled, total_ms = 0, 0.0
    for step in steps:
        usage, ttft_ms = step.asked.answer.usage, step.asked.ttft_ms
        if usage and usage.num_cached is not None and ttft_ms:
            num_prefilled += usage.num_prompt - usage.num_cached
            total_ms += ttft_ms
    return num_prefilled / total_ms * 1000 if num_prefilled and total_ms else None
