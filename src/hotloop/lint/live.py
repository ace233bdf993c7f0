"""Requests linted as they come: each beside the few before it in its conversation."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hotloop.lint.conversations import ConversationSorter
from hotloop.lint.costs import Costs
from hotloop.lint.engine import lint_run
from hotloop.lint.finding import Finding, Severity, Waste
from hotloop.lint.meter import Meter
from hotloop.lint.requests import LintedRequest
from hotloop.lint.rules.rule import Rule
from hotloop.lint.run import LintedRun, LintedStep

_WINDOW = 3
_MAX_RUNS = 256


@dataclass(slots=True)
class _Told:
    """The latest requests of a conversation, and what was told of it."""

    steps: deque[LintedStep] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    keys: set[tuple[str, Severity, str]] = field(default_factory=set)


class LiveLint:
    """Tells of each finding once a conversation, and counts what all of them cost. May be fed from any thread."""

    def __init__(
        self, rules: Sequence[Rule], tell: Callable[[Finding], None], *, meter: Meter, costs: Costs | None = None
    ) -> None:
        self.num_requests = 0
        self.waste = Waste()
        self._rules = rules
        self._tell = tell
        self._costs = costs or Costs()
        self._sorter = ConversationSorter(meter)
        self._told: dict[str, _Told] = {}
        self._lock = threading.Lock()

    def see(self, exchange: LintedRequest) -> None:
        with self._lock:
            run_id, step = self._sorter.step(exchange)
            told = self._told.pop(run_id, None) or _Told()
            self._told[run_id] = told  # the latest used last
            told.steps.append(step)
            self.num_requests += 1
            found = [*lint_run(LintedRun(run_id, tuple(told.steps)), self._rules, self._costs, begin=step.asked.index)]
            for finding in found:
                self._count(finding, told)
            if len(self._told) > _MAX_RUNS:
                del self._told[next(iter(self._told))]

    def _count(self, finding: Finding, told: _Told) -> None:
        self.waste += finding.waste
        key = (finding.rule, finding.severity, finding.place.path.partition("[")[0])
        if key not in told.keys:
            told.keys.add(key)
            self._tell(finding)
