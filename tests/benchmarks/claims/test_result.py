"""Figures of repeats, claims that hold or do not, and results in a file."""

import re
from pathlib import Path

import pytest
from benchmarks.claims.published import CLAIMS, CONTINUOUS, DRAFT, PRIORITY, SPECULATION, TIERS, Need, says_more
from benchmarks.claims.result import Figure, Result, Taken, read_results, taken_here, write_results

from hotloop.core.errors import ConfigError

TAKEN = Taken("a machine", "python -m benchmarks.claims", "2026-11-16", "0.1.0")


def test_better_is_less_of_all_but_speed_and_share():
    speed = Figure("throughput", "tokens/s", [20.0, 30.0, 50.0], [10.0, 10.0, 10.0])
    assert speed.times == [2.0, 3.0, 5.0]
    assert speed.shown() == "throughput 10.0 tokens/s → 30.0 tokens/s: 3.00× (2.00 to 5.00)"
    wait = Figure("first token", "s", [0.5], [2.0])
    assert (wait.times, wait.saved) == ([4.0], [0.75])
    assert wait.shown() == "first token 2.00 s → 500 ms: 4.00×, 75% less"


def test_a_figure_without_a_baseline_stands_for_itself_and_shares_are_no_factors():
    assert Figure("right", "share", [0.8], [0.9]).shown() == "right 90% → 80%"
    assert Figure("right", "share", [0.8, 0.9, 1.0]).shown() == "right 90% (80% to 100%)"
    assert Figure("right", "share", [0.9]).shown() == "right 90%"


@pytest.mark.parametrize(
    ("need", "is_met"),
    [
        (Need("a", "times", 2.0), True),
        (Need("a", "times", 2.1), False),
        (Need("a", "saved", 0.5), True),
        (Need("a", "saved", 0.51), False),
        (Need("a", "most", 1.0), True),
        (Need("a", "most", 0.9), False),
        (Need("a", "least", 1.0), True),
        (Need("a", "least", 1.1), False),
    ],
)
def test_the_median_of_repeats_decides(need: Need, is_met: bool):
    result = Result(claim="x", figures=[Figure("a", "s", [9.0, 1.0, 1.0], [9.0, 2.0, 2.0])])
    assert need.is_met(result) is is_met


def test_a_claim_holds_if_all_it_needs_is_met():
    fast = Figure("throughput", "tokens/s", [30.0] * 3, [10.0] * 3)
    kept, lost = (Figure("interactive turn", "s", [seconds] * 3, [1.0] * 3) for seconds in (1.1, 2.0))
    assert CLAIMS[PRIORITY].holds(Result(claim=PRIORITY, figures=[fast, kept]))
    assert not CLAIMS[PRIORITY].holds(Result(claim=PRIORITY, figures=[fast, lost]))
    assert not CLAIMS[PRIORITY].holds(Result(claim=PRIORITY, missing="it needs two models"))


def test_repeats_and_how_far_they_are_apart():
    """Of what is compared, repeat by repeat, its factors: a machine that is slow for both is no spread."""
    paired = Figure("wait", "s", [1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert (paired.num_repeats, paired.spread) == (3, 0.0)
    assert Figure("wait", "s", [1.0, 2.0, 3.0]).spread == 1.0
    assert Figure("wait", "s", [1.0, 2.0, 3.0], [2.0, 4.0]).num_repeats == 2
    assert Figure("right", "share", [0.0, 0.0]).spread == 0.0
    assert Figure("right", "share", [0.0, 0.0, 1.0]).spread == 1.0


def test_every_claim_says_what_was_published_and_against_what():
    for name, claim in CLAIMS.items():
        assert claim.published, name
        assert claim.baseline, name


def test_where_and_when_and_at_which_commit():
    taken = taken_here("python -m benchmarks.claims", "a machine")
    assert (taken.machine, taken.command) == ("a machine", "python -m benchmarks.claims")
    assert re.fullmatch(r"([0-9a-f]{8,}\+?)?", taken.commit), "empty where there is no checkout"


def test_results_replace_those_of_their_claim_alone(tmp_path: Path):
    path = tmp_path / "claims.json"
    old, other = (Result(claim=name, what="old", figures=[Figure("a", "s", [1.0])]) for name in (TIERS, SPECULATION))
    write_results(path, [old, other], TAKEN)
    write_results(path, [Result(claim=TIERS, what="new", figures=[Figure("a", "s", [2.123456789], [3.0])])], TAKEN)
    tiers, speculation = read_results(path)
    assert (tiers.what, tiers.figures[0].ours, speculation.what) == ("new", [2.12346], "old")
    assert tiers.taken == TAKEN
    write_results(path, [Result(claim=TIERS, missing="no models"), Result(claim=DRAFT, missing="no words")], TAKEN)
    tiers, speculation, draft = read_results(path)
    assert (tiers.what, draft.missing) == ("new", "no words"), "what was measured is not lost"


def test_what_is_measured_well_enough_gives_no_way_to_what_is_not(tmp_path: Path):
    def tiers(*values: float) -> Result:
        figures = [Figure(name, "s", [*values], [10.0] * len(values)) for name in ("cost", "latency")]
        return Result(claim=TIERS, what=f"{values[0]:g}", figures=figures)

    path = tmp_path / "claims.json"
    well, apart, again = tiers(2, 2, 2), tiers(1, 2, 4), tiers(3, 3, 3)
    for taken, kept in ((apart, "1"), (well, "2"), (apart, "2"), (again, "3")):
        write_results(path, [taken], TAKEN, says_more)
        assert read_results(path)[0].what == kept


def test_what_is_no_results(tmp_path: Path):
    path = tmp_path / "claims.json"
    path.write_text("[{}]")
    with pytest.raises(ConfigError, match="holds no results"):
        read_results(path)
    with pytest.raises(ConfigError, match="cannot write"):
        write_results(tmp_path / "nowhere" / "claims.json", [Result(claim=CONTINUOUS)], TAKEN)
