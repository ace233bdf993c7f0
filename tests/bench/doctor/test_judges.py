"""Every judge with facts made up: what is fine, what is not, and what cannot be told."""

from dataclasses import replace

import pytest

from hotloop.bench.doctor import judges
from hotloop.bench.doctor.facts import Batched, Called, Connected, Exposed, Heard, HungUp, Kept, Repeated, Turned
from hotloop.bench.doctor.finding import Finding, Verdict

OK, WARNING, FAILURE, UNKNOWN = Verdict


def heard(first_s: float = 0.1, *, cached: int | None = None, prompt: int | None = 1000, end_s: float = 1.0) -> Heard:
    """An answer of ten tokens that arrives evenly."""
    arrivals = tuple(first_s + (end_s - first_s) * i / 9 for i in range(10))
    return Heard("words", (), arrivals, end_s, 10, prompt, cached, 10)


def repeated(first: Heard, second: Heard) -> list[Repeated]:
    return [Repeated(first, second)] * 3


def check(finding: Finding, verdict: Verdict, *words: str) -> None:
    assert finding.verdict is verdict, finding
    for word in words:
        assert word in finding.measured


def test_a_hit_is_told_by_cached_tokens_or_by_time():
    check(judges.judge_cache(repeated(heard(0.1), heard(0.1, cached=960))), OK, "96%")
    check(judges.judge_cache(repeated(heard(0.5), heard(0.1))), OK, "500 ms", "100 ms")
    check(judges.judge_cache(repeated(heard(0.5), heard(0.1, cached=0))), OK)
    check(judges.judge_cache(repeated(heard(0.5), heard(0.45, cached=0))), FAILURE, "0% cached")
    check(judges.judge_cache(repeated(heard(0.5), heard(0.45))), FAILURE)
    check(judges.judge_cache(repeated(heard(0.005), heard(0.001))), FAILURE)  # milliseconds are noise


def test_one_odd_round_decides_nothing():
    rounds = [*repeated(heard(0.5), heard(0.1, cached=960))[:2], Repeated(heard(0.5), heard(0.6, cached=0))]
    check(judges.judge_cache(rounds), OK)


def test_cached_tokens_are_told_or_not():
    check(judges.judge_cache_told(repeated(heard(), heard(cached=960))), OK, "960 of 1,000")
    check(judges.judge_cache_told(repeated(heard(), heard(cached=0))), OK, "0 of 1,000")
    check(judges.judge_cache_told(repeated(heard(0.5), heard(0.1, cached=0))), WARNING, "says 0")
    check(judges.judge_cache_told(repeated(heard(), heard())), WARNING, "no cached_tokens")
    check(judges.judge_cache_told(repeated(heard(prompt=None), heard(prompt=None))), WARNING, "no usage")


def test_a_stream_comes_over_time():
    held_back = heard(0.95)
    check(judges.judge_stream([heard()]), OK, "10 pieces in 10 reads")
    check(judges.judge_stream([held_back, held_back]), FAILURE)
    check(judges.judge_stream([held_back, heard()]), OK)  # the first may have waited for somebody else
    check(judges.judge_stream([replace(heard(), arrivals_s=(0.9,))]), FAILURE, "10 pieces in 1 reads")
    check(judges.judge_stream([replace(heard(), arrivals_s=(0.9,), num_pieces=1, num_output=1)]), UNKNOWN)
    check(judges.judge_stream([replace(heard(), arrivals_s=(), num_pieces=0)]), UNKNOWN)


def test_connections_are_kept():
    check(judges.judge_connections(Connected(4, 1, 6.0, True)), OK, "4 requests over 1 connection, still open")
    check(judges.judge_connections(Connected(4, 1, 6.0, False)), WARNING, "closed within 6 s")
    check(judges.judge_connections(Connected(4, 4, 6.0, False)), FAILURE, "4 connections")


def test_batching_shows_in_overlap_and_in_speed():
    one_by_one = [heard(i + 0.1, end_s=i + 1.0) for i in range(8)]
    check(judges.judge_batching(Batched(heard(), [heard(end_s=2.0)] * 8, 2.0)), OK, "4.0 times", "8.0 arriving")
    check(judges.judge_batching(Batched(heard(), one_by_one, 8.0)), FAILURE, "1.0 times")
    check(judges.judge_batching(Batched(heard(), one_by_one, 4.0)), FAILURE)  # faster, but one at a time
    check(judges.judge_batching(Batched(heard(), [heard(end_s=8.0)] * 8, 8.0)), FAILURE)  # at once, but in turns
    check(judges.judge_batching(Batched(heard(), [heard(end_s=6.0)] * 8, 6.0)), WARNING)
    check(judges.judge_batching(Batched(heard(0.001, end_s=0.01), [heard(end_s=0.02)] * 8, 0.02)), UNKNOWN)


def test_strict_calls_are_all_valid():
    check(judges.judge_calls(Called(4, 4, 4)), OK)
    check(judges.judge_calls(Called(4, 4, 3, 'set_lamp {"colour": "purple"}')), FAILURE, "3 of 4", "purple")
    check(judges.judge_calls(Called(4, 0, 0)), FAILURE, "0 came")


def test_turns_keep_what_was_before():
    hit = Turned(heard(), heard(cached=960, prompt=1100))
    missed = Turned(heard(), heard(cached=64, prompt=1100))
    rewritten = [Kept("an answer", 1000, 40)]
    check(judges.judge_turns(hit, is_cache_hit=True), OK, "960 cached of the 1,000")
    check(judges.judge_turns(missed, is_cache_hit=True), FAILURE)
    check(judges.judge_turns(replace(hit, kept=rewritten), is_cache_hit=True), FAILURE, "40 of 1,000")
    check(judges.judge_turns(missed, is_cache_hit=False), UNKNOWN)  # the cache is the trouble, not the template
    check(judges.judge_turns(replace(missed, kept=[Kept("an answer", 1000, 998)]), is_cache_hit=False), OK)
    check(judges.judge_turns(Turned(heard(), heard()), is_cache_hit=True), UNKNOWN)


def test_who_goes_away_is_noticed():
    check(judges.judge_hang_up(HungUp(3, 0, 3, 0, 0.2)), OK, "requests 3, then 0 after 0.2 s")
    check(judges.judge_hang_up(HungUp(3, 0, 3, 3, 3.0)), FAILURE)
    check(judges.judge_hang_up(HungUp(3, 5, 9, 6, 3.0)), OK)  # others came meanwhile
    check(judges.judge_hang_up(HungUp(3, alone_s=0.5, following_s=0.6)), OK, "took 600 ms, alone 500 ms")
    check(judges.judge_hang_up(HungUp(3, alone_s=0.5, following_s=2.0)), WARNING)
    check(judges.judge_hang_up(HungUp(3, 0, 0, 0, 0.0, 0.01, 0.01)), UNKNOWN)


@pytest.mark.parametrize(
    ("exposed", "verdict", "words"),
    [
        (Exposed("127.0.0.1", False, 200), OK, "loopback only"),
        (Exposed("127.0.0.1", False, 200, ["10.0.0.7"]), WARNING, "127.0.0.1 and 10.0.0.7"),
        (Exposed("10.0.0.7", False, 200), WARNING, "anybody"),
        (Exposed("8.8.8.8", True, 200), FAILURE, "anybody"),
        (Exposed("8.8.8.8", False, 401), WARNING, "unencrypted"),
        (Exposed("8.8.8.8", True, 403), OK, "asks for a key"),
        (Exposed("::1", False, 401), OK, "asks for a key"),
        (Exposed("10.0.0.7", False, 429), UNKNOWN, "answers 429"),
        (Exposed("10.0.0.7", False, None), UNKNOWN, "answers nothing"),
        (Exposed("", False, 200), UNKNOWN, "does not tell"),
        (Exposed("fe80::1%eth0", False, 200), WARNING, "anybody"),
    ],
)
def test_who_is_answered(exposed: Exposed, verdict: Verdict, words: str):
    check(judges.judge_exposure(exposed), verdict, words)
