"""What drafting costs and what it brings, in seconds, all of it measured.

`best_length` is the rule. It compares steps with drafts to steps without, so both kinds have to be known: `StepCost`
says when a step without drafts is due to be measured.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hotloop.core.request import Request
from hotloop.engine.drafting.drafter import DraftModel
from hotloop.engine.step import Step

log = logging.getLogger(__name__)

_REMEASURE = 64  # drafts in a row after which a step is measured without one
_PROBING = 0.01  # share of the time that is spent on seeing whether a draft model would pay
_PROBE_TOKENS = 4
_OUTPUT_TOKENS = 100  # that a request writes, as long as none has ended
_LEAST_S = 1e-6  # that a step takes, whatever a clock says
_QUICKER, _SLOWER = 0.5, 0.125  # what a new duration counts for
_LEAST_HOPED = 0.1  # of what a size took, however long ago that was
_HOPE, _PATIENCE = 0.02, 40  # how much cheaper a size seems with each step, divided by how often it was measured


@dataclass(slots=True)
class Average:
    """Of the last `memory` values or so; the first estimate counts as `weight` of them."""

    mean: float
    memory: int
    weight: int = 0

    def observe(self, value: float) -> None:
        self.weight = min(self.weight + 1, self.memory)
        self.mean += (value - self.mean) / self.weight


class StepCost:
    """What a step takes, by its number of tokens: as recent ones did, with straight lines between the sizes measured.

    One line for all would not do: on a CPU two tokens may take more than twice as long as one, and a hundred less than
    half as long each. Steps that others disturb take longer: what was quicker counts for more, and what took more than
    twice as long as expected for no more than that.
    """

    def __init__(self) -> None:
        self._sizes: list[int] = []  # that were measured, in order; the other lists go with it
        self._seconds: list[float] = []
        self._hoped: list[float] = []
        self._counts: list[int] = []
        self._num_asked: dict[int, int] = {}  # since a step of that size was measured
        self._host_s = Average(0.0, memory=16)

    @property
    def is_known(self) -> bool:
        return bool(self._sizes)

    @property
    def stall_s(self) -> float:
        """What a step takes longer that has drafts, where others overlap: it waits until the host has settled the one
        before. That is in no duration here.
        """
        return self._host_s.mean

    def observe_host(self, host_s: float) -> None:
        self._host_s.observe(host_s)

    def observe(self, num_tokens: int, duration_s: float) -> None:
        duration_s = max(duration_s, _LEAST_S)
        size = _rounded(num_tokens)
        i = bisect_left(self._sizes, size)
        if size not in self._sizes[i : i + 1]:
            first_s = min(duration_s, 2 * self.seconds(size)) if self._sizes else duration_s
            self._sizes.insert(i, size)
            self._counts.insert(i, 0)
            self._seconds.insert(i, first_s)
            self._hoped.insert(i, first_s)
        before_s, is_new = self._seconds[i], self._counts[i] < 4
        share = _QUICKER if is_new or duration_s < before_s else _SLOWER
        self._seconds[i] += share * (min(duration_s, 2 * before_s) - before_s)
        self._counts[i] = min(self._counts[i] + 1, _PATIENCE)
        self._hoped = [
            max(hoped * (1 - _HOPE / count), _LEAST_HOPED * known_s)
            for hoped, count, known_s in zip(self._hoped, self._counts, self._seconds, strict=True)
        ]
        self._hoped[i] = self._seconds[i]
        self._num_asked[size] = 0

    def is_due(self, num_tokens: int) -> bool:
        """Whether a step of just so many was not measured, or not for long; to be asked before each draft."""
        size = _rounded(num_tokens)
        self._num_asked[size] = self._num_asked.get(size, _REMEASURE) + 1
        return self._num_asked[size] > _REMEASURE

    def seconds(self, num_tokens: float) -> float:
        return self._between(self._seconds, num_tokens)

    def optimistic_s(self, num_tokens: float) -> float:
        """The same, but that a size seems a little cheaper with each step that is not of it, and so is tried again."""
        return self._between(self._hoped, num_tokens)

    def _between(self, seconds: list[float], num_tokens: float) -> float:
        sizes = self._sizes
        if not sizes:
            return (30 + num_tokens) / 1000  # nothing measured yet: as on a small machine
        i = bisect_left(sizes, num_tokens)
        if 0 < i < len(sizes):
            low, high = sizes[i - 1], sizes[i]
            return seconds[i - 1] + (seconds[i] - seconds[i - 1]) * (num_tokens - low) / (high - low)
        nearest = min(i, len(sizes) - 1)
        return seconds[nearest] * (30 + num_tokens) / (30 + sizes[nearest])


def _rounded(num_tokens: int) -> int:
    """Down to four binary digits: up to 16 each number stands for itself."""
    shift = max(0, num_tokens.bit_length() - 4)
    return num_tokens >> shift << shift


@dataclass(frozen=True, slots=True)
class DraftScenario:
    """A way to draft: for how many requests, how likely a token is right if those before it are, and what it takes."""

    num_requests: int
    chance: float
    sure: float = 1.0  # how likely there is one more token to draft
    step_s: float = 0.0  # what it takes to make one for all the requests
    stall_s: float = 0.0  # what the host does, if the step has drafts, while the device waits


def best_length(
    seconds: Callable[[float], float], num_tokens: int, num_running: int, way: DraftScenario, max_length: int
) -> tuple[int, float]:
    """How many tokens to draft for each request, and the seconds that are saved by it for each token written.

    Without drafts a step takes seconds(num_tokens), and writes one token for each of `num_running` requests. With
    drafts of up to k tokens for g of them:

        time(k)   = step_s * (1 + sure + ... + sure^(k-1)) + seconds(num_tokens + g * (sure + sure^2 + ... + sure^k))
                    + stall_s
        tokens(k) = num_running + g * (right + right^2 + ... + right^k)           right = sure * chance

    The best k has the most tokens(k) / time(k); it is 0 where no draft pays for itself. All are looked at, since one
    token may cost more than it brings where eight do not. No draft makes a step shorter. (Steps to draft go on while
    any of the g has one more token: of many more are taken than the first line says, and are counted here.)
    """
    base_s = seconds(num_tokens)
    best, plain_s = 0, base_s / num_running
    best_s = plain_s
    written, computed, drafting_s = float(num_running), float(num_tokens), way.stall_s
    goes_on, is_right = 1.0, 1.0
    for length in range(1, max_length + 1):
        drafting_s += way.step_s * (1 - (1 - goes_on) ** way.num_requests)
        goes_on *= way.sure
        is_right *= way.sure * way.chance
        computed += way.num_requests * goes_on
        written += way.num_requests * is_right
        token_s = (drafting_s + max(base_s, seconds(computed))) / written
        if token_s < best_s:
            best, best_s = length, token_s
    return best, plain_s - best_s


class ModelPayoff:
    """How many tokens a draft model proposes: as many as pay, with what it has to read of a request first.

    Where it does not pay it rests, but for a probe now and then, to see whether it would. Probes have a share of the
    time to spend: a draft model that never pays costs no more than that.
    """

    def __init__(self, model: DraftModel, cost: StepCost, max_length: int) -> None:
        self.length = 0  # how many tokens it was last asked for; 0: it does not pay
        self.is_probing = False
        self._model = model
        self._cost = cost
        self._max_length = max_length
        self._num_output = Average(_OUTPUT_TOKENS, memory=20, weight=1)  # of a request
        self._probing_s = 0.0  # time that probes may take
        self._is_told = False

    def lengths(self, requests: Sequence[Request], chance: float, num_running: int) -> dict[Request, int]:
        """How many tokens to ask for, for those of these requests where it pays. First tokens do not wait for it.

        What a draft model has to read is paid for by all the tokens that a request is yet to write. So it is reckoned
        with steps that prefill nothing.
        """
        requests = [request for request in requests if request.num_output]
        if not requests:
            return {}
        model = self._model
        way = DraftScenario(len(requests), chance, model.sure, model.step_s(len(requests)), self._cost.stall_s)
        length, saved_s = best_length(self._cost.seconds, num_running, num_running, way, self._max_length)
        paying = [each for each in requests if length and model.read_s(each) <= saved_s * self._num_left(each)]
        self.length = length if paying else 0
        self.is_probing = not paying and self._can_probe(requests[0], num_running)
        if not length:
            self._tell(way, num_running)
        return {requests[0]: _PROBE_TOKENS} if self.is_probing else dict.fromkeys(paying, length)

    def spend(self, drafting_s: float, num_before: int, num_tokens: int) -> None:
        """A probe was made, and its step has so many tokens instead of those before."""
        self._probing_s -= drafting_s + max(0.0, self._cost.seconds(num_tokens) - self._cost.seconds(num_before))

    def learn(self, step: Step, duration_s: float) -> None:
        self._probing_s += _PROBING * duration_s
        for part in step.slices:
            if part.request.is_finished:
                self._num_output.observe(part.request.num_output)

    def _num_left(self, request: Request) -> float:
        """Tokens it may yet write: on average, however many it has written."""
        return min(self._num_output.mean, request.max_tokens - request.num_output)

    def _can_probe(self, request: Request, num_tokens: int) -> bool:
        """Whether there is time to draft where it does not pay. Time for more than one probe is not saved up."""
        more_s = max(0.0, self._cost.seconds(num_tokens + _PROBE_TOKENS) - self._cost.seconds(num_tokens))
        probe_s = _PROBE_TOKENS * self._model.step_s(1) + more_s
        if self._probing_s < probe_s:
            return False
        probe_s += self._model.read_s(request)
        self._probing_s = min(self._probing_s, probe_s)
        return self._probing_s >= probe_s

    def _tell(self, way: DraftScenario, num_tokens: int) -> None:
        if not self._is_told:
            self._is_told = True
            log.warning(
                "the draft model does not pay off and is paused: %.0f%% of its drafts are right, its step takes"
                " %.1f ms, one of the model %.1f ms, and %.1f ms with four drafts; it is retried from time to time",
                100 * way.chance,
                1000 * way.step_s,
                1000 * self._cost.seconds(num_tokens),
                1000 * self._cost.seconds(num_tokens + 4),
            )
