"""Each request on its way past the limits of its key, and what its answer took into the book."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hotloop.core.request import Priority
from hotloop.http.keys import KeyLimits
from hotloop.router.errors import RouteError
from hotloop.router.request import RoutedRequest
from hotloop.router.spending.book import Charge, SpendBook
from hotloop.router.spending.quotas import Admitted, Quotas
from hotloop.router.summary import AnswerSummary
from hotloop.wire.hints import PRIORITY_HEADER
from hotloop.wire.usage import ApiUsage

Cost = Callable[[str, ApiUsage], float]
"""What an answer of this model costs."""

_MAX_PAIRS = 1_000
_OTHERS = "(others)", "(others)"


@dataclass(slots=True, eq=False)
class Metered:
    """One request, from its admission to its end. `summary` is told when it is known, `has_begun` when a replica has
    taken it: what was not refused costs its estimate where nothing better is known."""

    request: RoutedRequest
    admitted: Admitted
    has_begun: bool = False
    is_refused: bool = False
    summary: AnswerSummary | None = None
    discarded: Sequence[tuple[str, ApiUsage]] = ()
    """What else it took, by model: answers that a cascade did not take, and questions of a classifier."""

    @property
    def usage(self) -> ApiUsage:
        summary, request = self.summary, self.request
        if not self.has_begun or self.is_refused or request.is_question:
            return ApiUsage()
        if summary is None or summary.num_prompt is None:
            return ApiUsage(request.num_tokens, 0, request.num_output)
        return ApiUsage(summary.num_prompt, summary.num_cached or 0, summary.num_output or 0)


@dataclass(slots=True)
class Spending:
    """`cost` is asked anew for every answer: prices may be reloaded."""

    cost: Cost
    book: SpendBook
    quotas: Quotas = field(default_factory=Quotas)
    totals: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """By key and model: requests, new, cached and output tokens, and money, since this process began."""

    def __post_init__(self) -> None:
        for key, month, used in self.book.used():
            self.quotas.restore(key, month, used)

    def admit(self, request: RoutedRequest) -> Metered:
        """Raises RouteError."""
        limits, usage = request.tenant.limits, ApiUsage()
        if not limits.allows(request.model):
            message = f"the API key {request.tenant.label!r} may not use the model {request.model!r:.200}"
            raise RouteError(403, "model_not_allowed", message, param="model")
        if not request.is_question:
            usage = ApiUsage(request.num_tokens, 0, request.num_output)
        money = self.cost(request.model, usage)
        return Metered(request, self.quotas.admit(request.tenant, tokens=usage.num_tokens, money=money))

    def settle(self, metered: Metered) -> None:
        taken = [(model, self._charge(model, usage, 0)) for model, usage in metered.discarded]
        if metered.has_begun and not metered.is_refused:
            taken.append((metered.request.model, self._charge(metered.request.model, metered.usage, 1)))
        tokens = sum(charge.num_prompt + charge.num_output for _, charge in taken)
        self.quotas.settle(metered.admitted, tokens=tokens, money=sum(charge.money for _, charge in taken))
        for model, charge in taken:
            self._count(metered, model, charge)

    def _charge(self, model: str, usage: ApiUsage, num_requests: int) -> Charge:
        num_cached, money = usage.num_cached or 0, self.cost(model, usage)
        return Charge(num_requests, usage.num_prompt, num_cached, usage.num_output, money)

    def _count(self, metered: Metered, model: str, charge: Charge) -> None:
        request, key = metered.request, metered.request.tenant.label
        tree = self.book.root(key, request.session_name, request.parent)
        self.book.add(metered.admitted.month, key, model, tree, charge)
        is_listed = (key, model) in self.totals or len(self.totals) < _MAX_PAIRS
        totals = self.totals.setdefault((key, model) if is_listed else _OTHERS, [0.0] * 5)
        num_new = charge.num_prompt - charge.num_cached
        for i, amount in enumerate((charge.num_requests, num_new, charge.num_cached, charge.num_output, charge.money)):
            totals[i] += amount


def open_spending(path: str | None, cost: Cost) -> Spending:
    """Raises ConfigError."""
    return Spending(cost, SpendBook(Path(path).expanduser() if path else None))


def hold_class(request: RoutedRequest, limits: KeyLimits) -> RoutedRequest:
    """The request in no more urgent a class than its key may ask for, here and at its replica. A number, whose meaning
    is the engine's, is left out where there is a ceiling."""
    if limits.priority is Priority.INTERACTIVE:
        return request
    is_number = type(request.given_priority) is int
    if request.priority >= limits.priority and not is_number:
        return request
    priority = max(request.priority, limits.priority)
    name = priority.name.lower()
    headers, raw = {**request.headers, PRIORITY_HEADER: name}, request.replace({"priority": name})
    return replace(request, raw=raw, headers=headers, priority=priority, given_priority=name)
