"""Every judge with facts made up: what is fine, what is not, and what cannot be told."""

from dataclasses import replace

import pytest

from hotloop.doctor import advice, judges
from hotloop.doctor.facts import (
    Batched,
    CallCounts,
    Connected,
    ExposureProbe,
    HungUp,
    KeptPrefix,
    Repeated,
    TimedAnswer,
    TurnsProbe,
)
from hotloop.doctor.judges import Judged, Verdict

OK, WARNING, FAILURE, UNKNOWN = Verdict


def heard(
    first_s: float = 0.1, *, cached: int | None = None, prompt: int | None = 1000, end_s: float = 1.0
) -> TimedAnswer:
    """An answer of ten tokens that arrives evenly."""
    arrivals = tuple(first_s + (end_s - first_s) * i / 9 for i in range(10))
    return TimedAnswer("words", (), arrivals, end_s, 10, prompt, cached, 10)


def repeated(first: TimedAnswer, second: TimedAnswer, *later: TimedAnswer) -> list[Repeated]:
    """A short prompt's first token takes 50 ms."""
    return [Repeated(first, second, heard(0.05), later)] * 3


def check(finding: Judged, verdict: Verdict, *words: str) -> None:
    assert finding.verdict is verdict, finding
    for word in words:
        assert word in finding.measured


def test_a_hit_is_told_by_cached_tokens_or_by_time():
    check(judges.judge_cache(repeated(heard(0.1), heard(0.1, cached=960))), OK, "96%")
    check(judges.judge_cache(repeated(heard(0.5), heard(0.1))), OK, "500 ms", "100 ms")
    check(judges.judge_cache(repeated(heard(0.5), heard(0.1, cached=0))), OK)
    check(judges.judge_cache(repeated(heard(0.5), heard(0.45, cached=0))), FAILURE, "0% cached")
    check(judges.judge_cache(repeated(heard(0.5), heard(0.45))), FAILURE)
    check(judges.judge_cache(repeated(heard(0.5), heard(0.6))), FAILURE)


def test_times_that_hardly_differ_tell_nothing():
    check(judges.judge_cache(repeated(heard(0.06), heard(0.05))), UNKNOWN, "too fast")  # as good as a short prompt
    check(judges.judge_cache(repeated(heard(0.5), heard(0.35))), UNKNOWN, "times are inconclusive")
    check(judges.judge_cache(repeated(heard(0.06), heard(0.05, cached=0))), FAILURE)  # but tokens do


def test_a_cache_that_only_later_requests_hit_is_another_replica_s():
    finding = judges.judge_cache(repeated(heard(), heard(cached=0), heard(cached=0), heard(cached=960)))
    check(finding, FAILURE, "cached when asked 4 times")
    assert finding.trouble == advice.SCATTERED
    check(judges.judge_cache(repeated(heard(0.1), heard(0.1, cached=0), heard(cached=0))), FAILURE, "0% cached")


def test_one_odd_round_decides_nothing():
    odd = Repeated(heard(0.5), heard(0.6, cached=0), heard(0.05))
    check(judges.judge_cache([*repeated(heard(0.5), heard(0.1, cached=960))[:2], odd]), OK)


def test_cached_tokens_are_told_or_not():
    check(judges.judge_cache_usage(repeated(heard(), heard(cached=960))), OK, "960 of 1,000")
    check(judges.judge_cache_usage(repeated(heard(), heard(cached=0))), OK, "0 of 1,000")
    check(judges.judge_cache_usage(repeated(heard(0.5), heard(0.1, cached=0))), WARNING, "reports 0")
    check(judges.judge_cache_usage(repeated(heard(), heard())), WARNING, "no cached_tokens")
    check(judges.judge_cache_usage(repeated(heard(prompt=None), heard(prompt=None))), WARNING, "no usage")


def test_a_stream_comes_over_time():
    held_back = heard(0.95)
    check(judges.judge_stream([heard()]), OK, "10 pieces in 10 reads")
    check(judges.judge_stream([held_back, held_back]), FAILURE)
    check(judges.judge_stream([held_back, heard()]), OK)  # the first may have waited for somebody else
    check(judges.judge_stream([replace(heard(), arrivals_s=(0.9,))]), FAILURE, "10 pieces in 1 reads")
    check(judges.judge_stream([replace(heard(), arrivals_s=(0.9,), num_pieces=1, num_output=1)]), UNKNOWN)
    check(judges.judge_stream([replace(heard(), arrivals_s=(), num_pieces=0)]), UNKNOWN)
    check(judges.judge_stream([heard(0.001, end_s=0.01)]), UNKNOWN, "too fast")


def test_connections_are_kept():
    check(judges.judge_connections(Connected(4, 1, 6.0, True)), OK, "4 requests over 1 connection, still open")
    closed = judges.judge_connections(Connected(4, 1, 6.0, False))
    check(closed, WARNING, "closed within 6 s")
    assert closed.trouble == advice.CLOSED_IDLE
    check(judges.judge_connections(Connected(4, 4, 6.0, False)), FAILURE, "4 connections")


def test_batching_shows_in_overlap_and_in_speed():
    one_by_one = [heard(i + 0.1, end_s=i + 1.0) for i in range(8)]
    alone = [heard()] * 2
    check(judges.judge_batching(Batched(alone, [heard(end_s=2.0)] * 8, 2.0)), OK, "4.0 times", "8.0 arriving")
    check(judges.judge_batching(Batched(alone, one_by_one, 8.0)), FAILURE, "1.0 times")
    check(judges.judge_batching(Batched(alone, one_by_one, 4.0)), FAILURE)  # faster, but one at a time
    check(judges.judge_batching(Batched(alone, [heard(end_s=8.0)] * 8, 8.0)), FAILURE)  # at once, but in turns
    check(judges.judge_batching(Batched(alone, [heard(end_s=6.0)] * 8, 6.0)), WARNING)
    quick = [heard(0.001, end_s=0.01)]
    check(judges.judge_batching(Batched(quick, [heard(end_s=0.02)] * 8, 0.02)), UNKNOWN)


def test_batching_of_answers_that_come_whole_shows_in_speed_alone():
    whole = replace(heard(), arrivals_s=(1.0,))
    check(judges.judge_batching(Batched([whole], [whole] * 8, 2.0)), OK, "answers arrive whole")
    check(judges.judge_batching(Batched([whole], [whole] * 8, 8.0)), FAILURE)


def test_whoever_is_sent_away_is_not_batched():
    finding = judges.judge_batching(Batched([heard()], [heard(), replace(heard(), num_refused=1)], 2.0))
    check(finding, WARNING, "1 of 2 at once were told to retry later")
    assert finding.trouble == advice.REFUSED_AT_ONCE


FREE = CallCounts(4, 2, 2)


@pytest.mark.parametrize(
    ("demanded", "offered", "verdict", "words", "trouble"),
    [
        (CallCounts(4, 4, 4), FREE, OK, "4 of 4 required calls follow", ""),
        (CallCounts(4, 4, 4), CallCounts(4, 0, 0), OK, "of optional calls none was made", ""),
        (CallCounts(4, 4, 3, 'set_lamp {"colour": "purple"}'), FREE, FAILURE, "purple", ""),
        (CallCounts(4, 0, 0), FREE, FAILURE, "0 made", ""),
        (CallCounts(4, 0, 0, refusal="answered 400: no"), FREE, FAILURE, "is refused: answered 400", advice.NO_CALLS),
        (
            CallCounts(4, 4, 4),
            CallCounts(4, 0, 0, refusal="answered 400: no"),
            FAILURE,
            "an optional call is refused",
            advice.NO_CALLS,
        ),
        (
            CallCounts(4, 4, 4),
            CallCounts(4, 3, 2, "purple"),
            FAILURE,
            "optional calls 2 of 3; one was purple",
            advice.LOOSE_FREE_CALLS,
        ),
    ],
    ids=["kept", "nothing called", "broken", "not called", "not taken", "choice not taken", "choice broken"],
)
def test_strict_calls_are_all_valid(
    demanded: CallCounts, offered: CallCounts, verdict: Verdict, words: str, trouble: str
):
    finding = judges.judge_calls(demanded, offered)
    check(finding, verdict, words)
    assert finding.trouble == trouble


def test_turns_keep_what_was_before():
    hits, misses = repeated(heard(0.5), heard(0.1, cached=960)), repeated(heard(), heard(cached=0))
    hit = TurnsProbe(heard(), heard(cached=960, prompt=1100))
    missed = TurnsProbe(heard(), heard(cached=64, prompt=1100))
    kept, rewritten = [KeptPrefix("an answer", 1000, 998)], [KeptPrefix("an answer", 1000, 40)]
    check(judges.judge_turns(hit, hits), OK, "960 cached, where the turn before had 1,000")
    check(judges.judge_turns(missed, hits), FAILURE)
    check(judges.judge_turns(TurnsProbe(heard(), heard(cached=0)), hits), FAILURE)
    check(judges.judge_turns(hit._replace(kept=rewritten), hits), FAILURE, "40 of 1,000")
    check(judges.judge_turns(missed, misses), UNKNOWN)  # the cache is the trouble, not the template
    check(judges.judge_turns(missed, ()), UNKNOWN)
    check(judges.judge_turns(missed._replace(kept=kept), misses), OK)


def test_without_cached_tokens_a_turn_that_comes_sooner_was_kept():
    hits = repeated(heard(0.5), heard(0.1))
    check(judges.judge_turns(TurnsProbe(heard(0.5), heard(0.1)), hits), OK, "500 ms", "100 ms")
    check(judges.judge_turns(TurnsProbe(heard(0.5), heard(0.5)), hits), UNKNOWN)


def test_who_goes_away_is_noticed():
    check(judges.judge_hang_up(HungUp(3, 0, 3, 0, 0.2)), OK, "requests 3, then 0 within 0.2 s")
    check(judges.judge_hang_up(HungUp(3, 0, 3, 3, 3.0)), FAILURE)
    check(judges.judge_hang_up(HungUp(3, 5, 9, 6, 3.0)), OK)  # others came meanwhile


@pytest.mark.parametrize(
    ("alone_s", "amid_s", "following_s", "verdict", "words"),
    [
        (0.5, 1.0, 0.55, OK, "550 ms after they disconnected"),
        (0.5, 1.0, 0.95, WARNING, "1,000 ms beside 3 others"),
        (0.5, 1.0, 0.75, UNKNOWN, "times are inconclusive"),
        (0.5, 0.55, 0.55, UNKNOWN, "not slowed"),
        (0.01, 0.03, 0.03, UNKNOWN, "not slowed"),
    ],
)
def test_without_a_count_others_wait_as_long_as_it_is_not_noticed(
    alone_s: float, amid_s: float, following_s: float, verdict: Verdict, words: str
):
    hung = HungUp(3, alone_s=alone_s, amid_s=amid_s, following_s=following_s)
    check(judges.judge_hang_up(hung), verdict, words)


@pytest.mark.parametrize(
    ("exposed", "verdict", "words"),
    [
        (ExposureProbe("127.0.0.1", False, 200), OK, "loopback only"),
        (ExposureProbe("127.0.0.1", False, 200, ["10.0.0.7"]), WARNING, "127.0.0.1 and 10.0.0.7"),
        (ExposureProbe("10.0.0.7", False, 200), WARNING, "answers without a key, at"),
        (ExposureProbe("8.8.8.8", True, 200), FAILURE, "answers without a key, at"),
        (ExposureProbe("8.8.8.8", False, 401), WARNING, "unencrypted"),
        (ExposureProbe("10.0.0.7", False, 401), WARNING, "unencrypted"),
        (ExposureProbe("8.8.8.8", True, 403), OK, "requires a key"),
        (ExposureProbe("::1", False, 401), OK, "requires a key"),
        (ExposureProbe("10.0.0.7", True, 500), OK, "answers 500 without a key"),  # with one, it did better
        (ExposureProbe("10.0.0.7", False, 429), UNKNOWN, "answers 429"),
        (ExposureProbe("10.0.0.7", False, None), UNKNOWN, "answers nothing"),
        (ExposureProbe("", False, 200), UNKNOWN, "is unknown"),
        (ExposureProbe("fe80::1%eth0", False, 200), WARNING, "answers without a key, at"),
    ],
)
def test_who_is_answered(exposed: ExposureProbe, verdict: Verdict, words: str):
    check(judges.judge_exposure(exposed), verdict, words)
