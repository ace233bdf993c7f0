"""Requests linted one by one."""

from benchmarks.cache.breakers import shuffle_tools
from tests.lint.stories import bodies, exchanges, lint_chat

from hotloop.lint.meter import Meter
from hotloop.lint.proxy import LiveLint
from hotloop.lint.rules import RULES


def test_each_finding_is_told_once_and_all_are_counted():
    told = []
    watch = LiveLint(RULES, told.append, meter=Meter())
    for exchange in exchanges(bodies(), shuffle_tools):
        watch.see(exchange)
    assert [finding.rule for finding in told] == ["HL003"]
    assert watch.num_requests == 4
    assert watch.waste.num_recomputed == sum(f.waste.num_recomputed for f in lint_chat(shuffle_tools).findings)


def test_a_clean_conversation_is_told_nothing():
    told = []
    watch = LiveLint(RULES, told.append, meter=Meter())
    for exchange in exchanges(bodies()):
        watch.see(exchange)
    assert not told
    assert watch.waste.num_recomputed == 0
