"""What is broken is found where it was broken, and nothing else is: `benchmarks.lint_breakers` in small."""

import pytest
from benchmarks.lint_breakers.judge import BREAKERS, judge_all
from benchmarks.lint_breakers.talk import generate_talks

from hotloop.lint.rules import RULES

TALKS = generate_talks(6)


@pytest.mark.parametrize("is_named", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize("breaker", BREAKERS, ids=lambda breaker: breaker.name)
def test_every_breaker_is_found_in_every_run(breaker, is_named):
    (judged,) = judge_all(TALKS, [breaker], is_named=is_named)
    assert judged.num_runs >= len(TALKS) - 1
    assert (judged.missed, judged.misplaced, judged.false) == ([], [], [])


def test_every_rule_has_a_breaker():
    assert {rule.id for rule in RULES} == {breaker.rule for breaker in BREAKERS if breaker.rule}
