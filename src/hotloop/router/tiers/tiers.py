"""Chooses the tier of a request that names a route: what is asked for first, then what its session has cached; and
counts what that saves.

A session stays on its tier while it is in the middle of a tool loop, unless something fails there; and while what is
cached for it there is worth more than a smaller tier would save. Up it goes else at once, since a rule asked for more;
only the way down has a price. `choose` only looks; `learn` is told afterwards.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cachetools import FIFOCache

from hotloop.router.placement.placement import OUTPUT_COST
from hotloop.router.tiers.classify import Centres, labels_body, read_scores
from hotloop.router.tiers.config import Route, Task, Tier, TierRule, TiersConfig
from hotloop.router.tiers.features import Features
from hotloop.wire.usage import ApiUsage, read_usage

MAX_SESSIONS = 50_000
TOOL_ERROR = "tool error"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole chat completion and how long it took; no answer where asking failed, in whatever way."""

    answer: Mapping[str, Any] | None
    latency_s: float = 0.0
    doubt: str = ""
    """Why it was not heard to its end."""
    is_live: bool = False
    """Whether it was judged by its beginning, will do, and goes on."""

    @property
    def usage(self) -> ApiUsage:
        return read_usage((self.answer or {}).get("usage")) or ApiUsage()


AskModel = Callable[[Tier, dict[str, Any]], Awaitable[Reply]]
"""Sends a chat request to the replicas of a tier; the body names its model already. Never raises for what they do."""


@dataclass(frozen=True, slots=True)
class TierChoice:
    """The tier, the model to ask for, and why: one line of plain words."""

    tier: str
    model: str
    reason: str


@dataclass(slots=True)
class Stay:
    """Where a session was last, and how many of its tokens each tier has cached since when. Time comes from outside."""

    tier: str = ""
    held: dict[str, tuple[int, float]] = field(default_factory=dict)
    has_failed: bool = False
    """Whether its last request there had no answer, or only half of one."""


class Tiers:
    """One for all replicas. Bounded memory: a few numbers for each of the last sessions."""

    def __init__(self, config: TiersConfig) -> None:
        self.config = config
        self._stays: FIFOCache[str, Stay] = FIFOCache(MAX_SESSIONS)
        self._centres = {
            route.name: Centres(route.examples) for route in config.routes if route.classifier == "embedding"
        }

    async def classify(self, model: str, features: Features, ask: AskModel) -> tuple[Task | None, Reply | None]:
        """The task: what the client says, else what the classifier sees, if any rule cares; and the reply that told it,
        where a model was asked."""
        route = self._route(model)
        if features.hint or route.classifier == "none" or not can_need_task(route, features):
            return features.hint, None
        if route.classifier == "embedding":
            task, score = self._centres[route.name].nearest(features.text) or (None, 0.0)
            return (task if score >= route.min_score else None), None
        tier = self.config.tiers[0]
        reply = await ask(tier, labels_body(tier.model, features.text))
        scores = read_scores(reply.answer or {})
        likeliest = max(scores, key=lambda task: scores[task], default=None)
        is_sure = likeliest is not None and scores[likeliest] >= route.min_score
        return (likeliest if is_sure else None), reply

    def choose(
        self,
        model: str,
        features: Features,
        *,
        task: Task | None = None,
        session: str = "",
        num_output: int = 0,
        now: float = 0.0,
    ) -> TierChoice:
        """`model` is a route, `num_output` what is expected."""
        route = self._route(model)
        wanted, reason = self._wanted(route, features, task or features.hint)
        stay, names = self._stays.get(session), self.config.names
        if stay and route.sticky_s and self._is_steady(stay, features, reason):
            here = self.config.tier(stay.tier)
            return TierChoice(here.name, here.model, "in a tool loop")
        if not stay or not route.sticky_s or names.index(wanted.name) >= names.index(stay.tier):
            return TierChoice(wanted.name, wanted.model, reason)

        def cost(tier: Tier) -> float:
            """Of this turn, given what is cached there. Without prices nothing is worth staying for."""
            num_tokens, at = stay.held.get(tier.name, (0, now))
            num_cached = min(num_tokens, features.num_tokens) if now - at <= route.sticky_s else 0
            return tier.cost(ApiUsage(features.num_tokens, num_cached, num_output))

        here = self.config.tier(stay.tier)
        if cost(here) < cost(wanted):
            return TierChoice(here.name, here.model, f"cache worth more than {wanted.name} saves ({reason})")
        return TierChoice(wanted.name, wanted.model, reason)

    def learn(self, session: str, tier: str, usage: ApiUsage, now: float) -> None:
        """An answer came from the tier, which then has the prompt and the answer cached."""
        if session:
            stay = self._stays.get(session) or Stay()
            stay.tier, stay.has_failed = tier, False
            stay.held[tier] = usage.num_prompt + usage.num_output, now
            self._stays[session] = stay

    def fail(self, session: str) -> None:
        """A request of the session had no whole answer: it may go elsewhere, whatever it is in the middle of."""
        if stay := self._stays.get(session):
            stay.has_failed = True

    def _is_steady(self, stay: Stay, features: Features, reason: str) -> bool:
        """Whether the session's model is to stay: it is using tools, and neither it nor its last call has failed."""
        is_known = stay.tier in self.config.names
        return is_known and features.is_tool_loop and not stay.has_failed and reason != TOOL_ERROR

    def _route(self, model: str) -> Route:
        route = self.config.route(model)
        assert route, f"{model} is no route"
        return route

    def _wanted(self, route: Route, features: Features, task: Task | None) -> tuple[Tier, str]:
        """What the rules ask for; one more where the last call failed and the cascade minds that."""
        name, reason = decide(route, features, task)
        tier = self.config.tier(name) if name else self.config.largest
        if reason == DEFAULT and not any(rule.tasks for rule in route.rules) and (usual := self.config.usual(task)):
            tier, reason = usual, f"task {task}"
        above = self.config.above(tier.name)
        if above and features.has_tool_error and route.cascade and "tool_error" in route.cascade.on:
            return above, TOOL_ERROR
        return tier, reason


def decide(route: Route, features: Features, task: Task | None) -> tuple[str, str]:
    """The tier of the first rule that fits, or the default, which is empty for the largest; and why."""
    for rule in route.rules:
        if _fits(rule, features, task):
            return rule.tier, ", ".join(words for words, _ in _conditions(rule, features, task)) or "rule"
    return route.default, DEFAULT


def can_need_task(route: Route, features: Features) -> bool:
    """Whether knowing the task could change the decision: only then is it worth asking for."""
    for rule in route.rules:
        if rule.tasks and any(_fits(rule, features, task) for task in rule.tasks):
            return True
        if not rule.tasks and _fits(rule, features, None):
            return False
    return False


def _fits(rule: TierRule, features: Features, task: Task | None) -> bool:
    return all(holds for _, holds in _conditions(rule, features, task))


def _conditions(rule: TierRule, features: Features, task: Task | None) -> Iterator[tuple[str, bool]]:
    """What a rule asks for, in short words that go into a header, and whether that holds."""
    if rule.tasks:
        yield f"task {task}", task in rule.tasks
    for name in ("tokens", "turns", "tools"):
        value = getattr(features, f"num_{name}")
        least, most = getattr(rule, f"min_{name}"), getattr(rule, f"max_{name}")
        if least is not None:
            yield f"{name} >= {least}", value >= least
        if most is not None:
            yield f"{name} <= {most}", value <= most
    for name in ("shape", "code"):
        wanted = getattr(rule, f"has_{name}")
        if wanted is not None:
            yield name if wanted else f"no {name}", getattr(features, f"has_{name}") == wanted


@dataclass(slots=True)
class TierTotals:
    """What a tier wrote. Discarded are answers that a cascade did not take, and steps of a classifier."""

    tier: Tier
    num_answers: int = 0
    num_discarded: int = 0
    answered: ApiUsage = field(default_factory=ApiUsage)
    discarded: ApiUsage = field(default_factory=ApiUsage)
    latency_s: float = 0.0

    @property
    def cost(self) -> float:
        return self.tier.cost(self.answered + self.discarded)

    @property
    def work_tokens(self) -> float:
        """Of the answers: prompt tokens that were not cached, and output tokens at their weight."""
        return self.answered.num_prompt - (self.answered.num_cached or 0) + OUTPUT_COST * self.answered.num_output


class Saved:
    """What tiers save against always asking the largest: money by its prices, time by what its own answers took for as
    much work. It is taken to need as many tokens."""

    def __init__(self, tiers: tuple[Tier, ...]) -> None:
        self.tallies = {tier.name: TierTotals(tier) for tier in tiers}

    def record(self, name: str, usage: ApiUsage, latency_s: float, *, is_answer: bool = True) -> None:
        """An answer that reached its client, or one that was thrown away and only cost."""
        tally = self.tallies[name]
        tally.latency_s += latency_s
        if is_answer:
            tally.num_answers += 1
            tally.answered += usage
        else:
            tally.num_discarded += 1
            tally.discarded += usage

    @property
    def money(self) -> float:
        tallies = [*self.tallies.values()]
        return sum(tallies[-1].tier.cost(tally.answered) - tally.cost for tally in tallies)

    @property
    def time_s(self) -> float:
        """0 while the largest has not answered yet."""
        tallies = list(self.tallies.values())
        if not tallies or not tallies[-1].work_tokens:
            return 0.0
        large_s_per_token = tallies[-1].latency_s / tallies[-1].work_tokens
        return sum(tally.work_tokens * large_s_per_token - tally.latency_s for tally in tallies)
