"""Judges: facts in, findings out, pure. Every threshold stands here, with its reason.

A judge says what was measured whatever its verdict is. What to do about it is looked up elsewhere.
"""

import ipaddress
import statistics
from collections.abc import Sequence

from hotloop.bench.doctor.facts import Batched, Called, Connected, Exposed, Heard, HungUp, Repeated, Turned
from hotloop.bench.doctor.finding import Finding, Verdict

_MIN_HIT = 0.5  # blocks, and what hosted APIs round to, take a part of a prompt; half of it is a hit for certain
_MAX_TTFT_SHARE = 0.6  # of a first token that came without the cache
_MIN_TTFT_GAIN_S = 0.02  # less than that is noise
_MIN_SPREAD = 0.1  # an answer that arrives in the last tenth of its time was held back
_FAST_S = 0.05  # shorter answers tell nothing of how they were computed
_MIN_SPEEDUP, _WEAK_SPEEDUP = 1.5, 1.15  # of eight at once; one after the other, or in turns, would be 1
_MIN_OVERLAP = 1.3  # likewise
_MIN_KEPT = 0.9  # of the ids of a turn; what invites the answer may differ
_MIN_TURN_HIT = 0.8  # of the prompt of a turn
_MAX_SLOWDOWN = 1.8  # of a request right after others were given up


def judge_cache(rounds: Sequence[Repeated]) -> Finding:
    """Told by cached tokens, or else by the time to the first token."""
    first_s, second_s = _ttfts(rounds)
    times = f"first token {_ms(first_s)}, then {_ms(second_s)}"
    shares = [each.second.cached_share for each in rounds if each.second.cached_share is not None]
    if shares and statistics.median(shares) >= _MIN_HIT:
        return Finding("prefix cache", Verdict.OK, f"{statistics.median(shares):.0%} cached the second time; {times}")
    if _is_faster(first_s, second_s):
        return Finding("prefix cache", Verdict.OK, times)
    told = f"{statistics.median(shares):.0%} cached the second time; " if shares else ""
    return Finding("prefix cache", Verdict.FAILURE, f"the same prompt twice: {told}{times}")


def judge_cache_told(rounds: Sequence[Repeated]) -> Finding:
    told = {each.second.num_cached: each.second.num_prompt for each in rounds if each.second.num_cached is not None}
    if not any(each.second.num_prompt for each in rounds):
        return Finding("cached tokens told", Verdict.WARNING, "no usage at all in a stream")
    if not told:
        return Finding("cached tokens told", Verdict.WARNING, "usage has no cached_tokens")
    if not any(told) and _is_faster(*_ttfts(rounds)):
        return Finding("cached tokens told", Verdict.WARNING, "usage says 0, but the first token came sooner")
    return Finding("cached tokens told", Verdict.OK, f"usage says {max(told):,} of {told[max(told)] or 0:,}")


def judge_stream(answers: Sequence[Heard]) -> Finding:
    """By the answer that streamed best: the others may have waited for somebody else's."""
    best = max(answers, key=lambda heard: (len(heard.arrivals_s) > 1, heard.spread))
    measured = (
        f"{best.num_pieces} pieces in {len(best.arrivals_s)} reads, first after {_ms(best.first_s)} "
        f"of {_ms(best.total_s)}"
    )
    if not best.num_pieces or best.num_tokens < 2:
        return Finding("streaming", Verdict.UNKNOWN, f"too little came to tell: {measured}")
    is_held_back = len(best.arrivals_s) < 2 or best.spread < _MIN_SPREAD
    return Finding("streaming", Verdict.FAILURE if is_held_back else Verdict.OK, measured)


def judge_connections(connected: Connected) -> Finding:
    measured = f"{connected.num_requests} requests over {connected.num_connections} connection"
    measured += "s" if connected.num_connections != 1 else ""
    if connected.num_connections > 1:
        return Finding("connections", Verdict.FAILURE, measured)
    if not connected.is_open_after_idle:
        return Finding(
            "connections", Verdict.WARNING, f"{measured}, but closed within {connected.idle_s:g} s of idling"
        )
    return Finding("connections", Verdict.OK, f"{measured}, still open after {connected.idle_s:g} s of idling")


def judge_batching(batched: Batched) -> Finding:
    measured = (
        f"{len(batched.together)} at once: {batched.together_rate:,.0f} tokens/s against {batched.alone_rate:,.0f} "
        f"for one, {batched.speedup:.1f} times, {batched.overlap:.1f} arriving at a time"
    )
    if batched.alone.total_s < _FAST_S or not batched.alone.num_tokens:
        return Finding("batching", Verdict.UNKNOWN, f"answers are too quick to tell; {measured}")
    if batched.overlap < _MIN_OVERLAP or batched.speedup < _WEAK_SPEEDUP:
        return Finding("batching", Verdict.FAILURE, measured)
    return Finding("batching", Verdict.OK if batched.speedup >= _MIN_SPEEDUP else Verdict.WARNING, measured)


def judge_calls(called: Called) -> Finding:
    if called.num_calls < called.num_asked:
        measured = f"{called.num_asked} calls demanded, {called.num_calls} came"
        return Finding("strict tools", Verdict.FAILURE, measured)
    measured = f"{called.num_valid} of {called.num_calls} calls kept to a schema that the user's words break"
    if called.num_valid == called.num_calls:
        return Finding("strict tools", Verdict.OK, measured)
    return Finding("strict tools", Verdict.FAILURE, f"{measured}; one was {called.example}")


def judge_turns(turned: Turned, *, is_cache_hit: bool) -> Finding:
    """By token ids where they are shown, and by what of the first turn the second found in the cache."""
    kept = ", ".join(
        f"{each.num_common:,} of {each.num_before:,} tokens kept after {each.what}" for each in turned.kept
    )
    if any(each.num_common < _MIN_KEPT * each.num_before for each in turned.kept):
        return Finding("stable turns", Verdict.FAILURE, kept)
    if not is_cache_hit or turned.second.cached_share is None or not turned.first.num_prompt:
        return Finding(
            "stable turns", Verdict.OK if kept else Verdict.UNKNOWN, kept or "no cached tokens to tell it by"
        )
    cached = f"{turned.second.num_cached:,} cached of the {turned.first.num_prompt:,} tokens of the turn before"
    is_hit = (turned.second.num_cached or 0) >= _MIN_TURN_HIT * turned.first.num_prompt
    measured = "; ".join(filter(None, (cached, kept)))
    return Finding("stable turns", Verdict.OK if is_hit else Verdict.FAILURE, measured)


def judge_hang_up(hung: HungUp) -> Finding:
    """By the deployment's own count where it rose with them, else by whether the next request is slowed."""
    before, during, after = hung.num_before, hung.num_during, hung.num_after
    if before is not None and during is not None and after is not None and during > before:
        measured = f"{hung.num_clients} clients went away: requests {during}, then {after} after {hung.waited_s:.1f} s"
        is_noticed = after <= before or during - after >= hung.num_clients
        return Finding("disconnects", Verdict.OK if is_noticed else Verdict.FAILURE, measured)
    measured = f"{hung.num_clients} went away; the next answer took {_ms(hung.following_s)}, alone {_ms(hung.alone_s)}"
    if max(hung.following_s, hung.alone_s) < _FAST_S:
        return Finding("disconnects", Verdict.UNKNOWN, f"answers are too quick to tell; {measured}")
    is_slowed = hung.following_s > _MAX_SLOWDOWN * hung.alone_s
    return Finding("disconnects", Verdict.WARNING if is_slowed else Verdict.OK, measured)


def judge_exposure(exposed: Exposed) -> Finding:
    if not exposed.address:
        return Finding("exposure", Verdict.UNKNOWN, "the connection does not tell whom it was made to")
    address = ipaddress.ip_address(exposed.address.partition("%")[0])
    others = ", ".join(exposed.other_addresses)
    where = f"at {exposed.address}" + (f" and {others}" if others else "")
    if exposed.status_without_key == 200:
        if address.is_loopback and not others:
            return Finding("exposure", Verdict.OK, f"answers without a key, on loopback only ({where})")
        verdict = Verdict.FAILURE if address.is_global else Verdict.WARNING
        return Finding("exposure", verdict, f"answers anybody without a key, {where}")
    if exposed.status_without_key not in (401, 403):
        said = exposed.status_without_key or "nothing"
        return Finding("exposure", Verdict.UNKNOWN, f"without a key it answers {said}, {where}")
    if not exposed.is_encrypted and (address.is_global or others):
        return Finding("exposure", Verdict.WARNING, f"asks for a key, which travels unencrypted, {where}")
    return Finding("exposure", Verdict.OK, f"asks for a key, {where}")


def _ttfts(rounds: Sequence[Repeated]) -> tuple[float, float]:
    first_s = statistics.median(each.first.first_s for each in rounds)
    return first_s, statistics.median(each.second.first_s for each in rounds)


def _is_faster(first_s: float, second_s: float) -> bool:
    return second_s < _MAX_TTFT_SHARE * first_s and first_s - second_s > _MIN_TTFT_GAIN_S


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
