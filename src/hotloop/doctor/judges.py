"""Judges: facts in, findings out, pure. Every threshold stands here, with its reason.

A judge says what was measured whatever its verdict is. Times decide only where they differ by far; between that and no
difference at all it cannot be told. What to do about a finding is looked up elsewhere.
"""

import ipaddress
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from hotloop.doctor import advice
from hotloop.doctor.facts import (
    Batched,
    CallCounts,
    Connected,
    ExposureProbe,
    HungUp,
    Repeated,
    TimedAnswer,
    TurnsProbe,
)


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    UNKNOWN = "unknown"
    """It could not be told."""


class Judged(NamedTuple):
    """`trouble` says which of the check's troubles it is, where there are several: advice is looked up by it."""

    verdict: Verdict
    measured: str
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """`advice` is what to do, and empty where nothing needs doing."""

    check: str
    verdict: Verdict
    measured: str
    advice: str = ""


OK, WARNING, FAILURE, UNKNOWN = Verdict

_MIN_HIT = 0.5  # blocks, and what hosted APIs round to, take a part of a prompt; half of it is a hit for certain
_SAVED, _NOT_SAVED = 0.5, 0.2  # of the time that reading a long prompt takes: a hit, and noise
_MIN_READ_S, _MIN_READ_SHARE = 0.05, 0.5  # reading must take so long, and so much of a short prompt's time, to show
_MIN_SPREAD = 0.1  # an answer that arrives in the last tenth of its time was held back
_FAST_S = 0.05  # shorter answers tell nothing of how they were computed
_MIN_SPEEDUP, _WEAK_SPEEDUP = 1.5, 1.15  # of eight at once; one after the other, or in turns, would be 1
_MIN_OVERLAP = 1.3  # likewise
_MIN_KEPT = 0.9  # of the ids of a turn; what invites the answer may differ
_MIN_TURN_HIT = 0.8  # of the prompt of a turn
_MIN_SLOWDOWN = 1.25  # beside other answers, for their end to show
_SAYS_NOTHING = (None, 429, 503)  # of who may ask: it has no time for anybody
_RELIEVED, _NOT_RELIEVED = 0.7, 0.3  # how much of that slowdown is gone after they were given up


def judge_cache(rounds: Sequence[Repeated]) -> Judged:
    """By cached tokens where they are told, or else by the time to the first token."""
    share, saved = _cached_share(rounds), _saved_share(rounds)
    hit = f"{share:.0%} cached the second time; " if share is not None else ""
    first_s, second_s, short_s = _ttfts(rounds)
    measured = f"{hit}first token {_ms(first_s)}, then {_ms(second_s)}; of a short prompt {_ms(short_s)}"
    if (share or 0.0) >= _MIN_HIT or (saved or 0.0) >= _SAVED:
        return Judged(OK, measured)
    if when := _first_hit(rounds):
        return Judged(FAILURE, f"{measured}; cached when asked {when} times", advice.SCATTERED)
    if share is None and saved is None:
        return Judged(UNKNOWN, f"no cached tokens reported, and too fast to tell; {measured}")
    if share is None and (saved or 0.0) > _NOT_SAVED:
        return Judged(UNKNOWN, f"no cached tokens reported, and times are inconclusive; {measured}")
    return Judged(FAILURE, measured)


def judge_cache_usage(rounds: Sequence[Repeated]) -> Judged:
    repeats = [answer for each in rounds for answer in (each.second, *each.later)]
    by_cached = {each.num_cached: each.num_prompt for each in repeats if each.num_cached is not None}
    if not any(each.second.num_prompt for each in rounds):
        return Judged(WARNING, "no usage at all in a stream")
    if not by_cached:
        return Judged(WARNING, "usage has no cached_tokens")
    if not any(by_cached) and (_saved_share(rounds) or 0.0) >= _SAVED:
        return Judged(WARNING, "usage reports 0, but the first token came sooner")
    return Judged(OK, f"usage says {max(by_cached):,} of {by_cached[max(by_cached)] or 0:,}")


def judge_stream(answers: Sequence[TimedAnswer]) -> Judged:
    """By the answer that streamed best: the others may have waited for somebody else's."""
    best = max(answers, key=lambda answer: (len(answer.arrivals_s) > 1, answer.spread))
    measured = (
        f"{best.num_pieces} pieces in {len(best.arrivals_s)} reads, first after {_ms(best.first_s)} "
        f"of {_ms(best.total_s)}"
    )
    if not best.num_pieces or best.num_tokens < 2:
        return Judged(UNKNOWN, f"too little output to tell: {measured}")
    if best.total_s < _FAST_S:
        return Judged(UNKNOWN, f"answers are too fast to tell: {measured}")
    is_held_back = len(best.arrivals_s) < 2 or best.spread < _MIN_SPREAD
    return Judged(FAILURE if is_held_back else OK, measured)


def judge_connections(connected: Connected) -> Judged:
    measured = f"{connected.num_requests} requests over {connected.num_connections} connection"
    measured += "s" if connected.num_connections != 1 else ""
    if connected.num_connections > 1:
        return Judged(FAILURE, measured)
    idled = f"{connected.idle_s:g} s of idling"
    if not connected.is_open_after_idle:
        return Judged(WARNING, f"{measured}, but closed within {idled}", advice.CLOSED_IDLE)
    return Judged(OK, f"{measured}, still open after {idled}")


def judge_batching(batched: Batched) -> Judged:
    is_whole = all(len(each.arrivals_s) < 2 for each in batched.together)
    arriving = "answers arrive whole" if is_whole else f"{batched.overlap:.1f} arriving at a time"
    measured = (
        f"{len(batched.together)} at once: {batched.together_rate:,.0f} tokens/s against {batched.alone_rate:,.0f} "
        f"for one, {batched.speedup:.1f} times, {arriving}"
    )
    num_refused = sum(each.num_refused > 0 for each in batched.together)
    if num_refused:
        said = f"{num_refused} of {len(batched.together)} at once were told to retry later"
        return Judged(WARNING, said, advice.REFUSED_AT_ONCE)
    if not batched.alone_rate or statistics.median(each.total_s for each in batched.alone) < _FAST_S:
        return Judged(UNKNOWN, f"answers are too fast to tell; {measured}")
    is_parallel = is_whole or batched.overlap >= _MIN_OVERLAP
    if not is_parallel or batched.speedup < _WEAK_SPEEDUP:
        return Judged(FAILURE, measured)
    return Judged(OK if batched.speedup >= _MIN_SPEEDUP else WARNING, measured)


def judge_calls(demanded: CallCounts, offered: CallCounts) -> Judged:
    """A call that agents get is one the model chose to make; a call that is demanded is the easier case."""
    if demanded.refusal:
        return Judged(FAILURE, f"a required call is refused: {demanded.refusal}", advice.NO_CALLS)
    if demanded.num_calls < demanded.num_demanded:
        return Judged(FAILURE, f"{demanded.num_demanded} calls required, {demanded.num_calls} made")
    measured = (
        f"{demanded.num_valid} of {demanded.num_calls} required calls follow a schema that the prompt contradicts"
    )
    if demanded.num_valid < demanded.num_calls:
        return Judged(FAILURE, f"{measured}; one was {demanded.example}")
    if offered.refusal:
        measured = f"{measured}; an optional call is refused: {offered.refusal}"
        return Judged(FAILURE, measured, advice.NO_CALLS)
    free = f"{offered.num_valid} of {offered.num_calls}" if offered.num_calls else "none was made"
    measured += f"; of optional calls {free}"
    if offered.num_valid < offered.num_calls:
        return Judged(FAILURE, f"{measured}; one was {offered.example}", advice.LOOSE_FREE_CALLS)
    return Judged(OK, measured)


def judge_turns(turned: TurnsProbe, rounds: Sequence[Repeated]) -> Judged:
    """By token ids where they are shown, and by what of the first turn the second found in a cache that works."""
    kept = ", ".join(
        f"{each.num_common:,} of {each.num_before:,} tokens kept after {each.what}" for each in turned.kept
    )
    if any(each.num_common < _MIN_KEPT * each.num_before for each in turned.kept):
        return Judged(FAILURE, kept)
    has_hit = (_cached_share(rounds) or 0.0) >= _MIN_HIT
    if has_hit and turned.second.num_cached is not None and turned.first.num_prompt:
        cached = f"{turned.second.num_cached:,} cached, where the turn before had {turned.first.num_prompt:,} tokens"
        is_hit = turned.second.num_cached >= _MIN_TURN_HIT * turned.first.num_prompt
        measured = "; ".join(filter(None, (cached, kept)))
        return Judged(OK if is_hit else FAILURE, measured)
    if kept:
        return Judged(OK, kept)
    return _judge_turns_by_time(turned, rounds)


def _judge_turns_by_time(turned: TurnsProbe, rounds: Sequence[Repeated]) -> Judged:
    """That nothing was saved may have many reasons; that much was has one."""
    times = f"first token {_ms(turned.first.first_s)}, a turn later {_ms(turned.second.first_s)}"
    saved = _saved_share([Repeated(turned.first, turned.second, each.short) for each in rounds])
    if saved is not None and saved >= _SAVED:
        return Judged(OK, times)
    return Judged(UNKNOWN, f"neither cached tokens nor token ids are reported; {times}")


def judge_hang_up(hung: HungUp) -> Judged:
    """By the deployment's own count where it rose with them, else by how much an answer is slowed by them."""
    before, during, after = hung.num_before, hung.num_during, hung.num_after
    if before is not None and during is not None and after is not None and during > before:
        measured = (
            f"{hung.num_clients} clients disconnected: requests {during}, then {after} within {hung.waited_s:.1f} s"
        )
        is_noticed = after <= before or during - after >= hung.num_clients
        return Judged(OK if is_noticed else FAILURE, measured)
    measured = (
        f"an answer took {_ms(hung.alone_s)} alone, {_ms(hung.amid_s)} beside {hung.num_clients} others, "
        f"{_ms(hung.following_s)} after they disconnected"
    )
    slowdown_s = hung.amid_s - hung.alone_s
    if hung.alone_s < _FAST_S or hung.amid_s < _MIN_SLOWDOWN * hung.alone_s:
        return Judged(UNKNOWN, f"it reports no request count, and is not slowed: {measured}")
    relief = (hung.amid_s - hung.following_s) / slowdown_s
    if _NOT_RELIEVED < relief < _RELIEVED:
        return Judged(UNKNOWN, f"it reports no request count, and times are inconclusive: {measured}")
    return Judged(OK if relief >= _RELIEVED else WARNING, measured)


def judge_exposure(exposed: ExposureProbe) -> Judged:
    if not exposed.address:
        return Judged(UNKNOWN, "the address that the connection was made to is unknown")
    address = ipaddress.ip_address(exposed.address.partition("%")[0])
    others = ", ".join(exposed.other_addresses)
    where = f"at {exposed.address}" + (f" and {others}" if others else "")
    status = exposed.status_without_key
    if status == 200:
        if address.is_loopback and not others:
            return Judged(OK, f"answers without a key, on loopback only ({where})")
        verdict = FAILURE if address.is_global else WARNING
        return Judged(verdict, f"answers without a key, {where}")
    if status in _SAYS_NOTHING:
        return Judged(UNKNOWN, f"without a key it answers {status or 'nothing'}, {where}")
    asks = "requires a key" if status in (401, 403) else f"answers {status} without a key"
    if not exposed.is_encrypted and (not address.is_loopback or others):
        return Judged(WARNING, f"{asks}, which travels unencrypted, {where}", advice.UNENCRYPTED)
    return Judged(OK, f"{asks}, {where}")


def _cached_share(rounds: Sequence[Repeated]) -> float | None:
    """Of the prompt, the second time; None where that is not told."""
    shares = [each.second.cached_share for each in rounds if each.second.cached_share is not None]
    return statistics.median(shares) if shares else None


def _first_hit(rounds: Sequence[Repeated]) -> int | None:
    """How often the same had to be asked until it was cached, where the second time was too early."""
    for each in rounds:
        hits = [i for i, answer in enumerate(each.later) if (answer.cached_share or 0.0) >= _MIN_HIT]
        if hits:
            return 3 + hits[0]
    return None


def _ttfts(rounds: Sequence[Repeated]) -> tuple[float, float, float]:
    """Of a long prompt, of the same again, and of a short one."""
    return (
        statistics.median(each.first.first_s for each in rounds),
        statistics.median(each.second.first_s for each in rounds),
        statistics.median(each.short.first_s for each in rounds),
    )


def _saved_share(rounds: Sequence[Repeated]) -> float | None:
    """How much of the time to read a long prompt the second time saved; None where reading takes too little to show."""
    if not rounds:
        return None
    first_s, second_s, short_s = _ttfts(rounds)
    read_s = first_s - short_s
    if read_s < _MIN_READ_S or read_s < _MIN_READ_SHARE * short_s:
        return None
    return (first_s - second_s) / read_s


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
