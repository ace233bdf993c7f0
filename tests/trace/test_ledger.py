import json
import math
from dataclasses import asdict
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.trace.spans import DAWN_NS, MS, SERVER, a_request, span

from hotloop.core.prices import Prices
from hotloop.trace import names
from hotloop.trace.ledger import RunLedger, TokenCounts, build_ledger
from hotloop.trace.money import PriceTable
from hotloop.trace.span import Span
from hotloop.trace.sweep import TimePart


def parts_ms(ledger: Any) -> dict[str, float]:
    return {part.value: round(seconds * 1000, 3) for part, seconds in ledger.parts.items()}


def a_turn(run: Span, begin: int) -> list[Span]:
    """80 ms: the model until 50, one tool from within its answer to 60, one from 50 to 75."""
    turn = span(names.TURN, begin, begin + 80, run, turn=1)
    chat = span(
        names.CHAT, begin, begin + 50, turn, model="m", first_token_ns=DAWN_NS + (begin + 17) * MS,
        num_prompt=100, num_cached=60, num_output=20,
    )  # fmt: skip
    tools = [
        span(names.TOOL, begin + 40, begin + 60, turn, tool="a", call_id="1", num_tries=1),
        span(names.TOOL, begin + 50, begin + 75, turn, tool="b", call_id="2", num_tries=2, is_error=True),
    ]
    return [turn, chat, *a_request(begin + 1, begin + 48, chat), *tools]


def test_a_turn_is_accounted_for_to_the_millisecond():
    run = span(names.RUN, 0, 100, session="s", agent="scout", end="done")
    ledger = build_ledger([run, *a_turn(run, 10)])
    [turn] = ledger.turns
    assert parts_ms(turn) == {
        "network": 1 + 2 + 1,  # to the server, back, and what it sent after its last token
        "prepare": 2,
        "queue": 3,
        "prefill_new": 7.5,
        "prefill_recomputed": 2.5,
        "decode_sampled": 15.5,
        "decode_forced": 6.2,
        "decode_accepted": 9.3,
        "tools": 25,
        "runtime": 5,
    }
    assert parts_ms(ledger) == {**parts_ms(turn), "runtime": 5 + 20}
    assert turn.first_token_s == pytest.approx(0.017)
    assert ledger.model_idle_s == pytest.approx(0.100 - 0.047)
    assert ledger.tool_idle_s == pytest.approx(0.100 - 0.035)
    assert ledger.tools_hidden_s == pytest.approx(0.008 + 0.0), "of the first tool, behind the server's request"
    assert (ledger.agent, ledger.end, ledger.session, ledger.wall_s) == ("scout", "done", "s", 0.1)
    assert ledger.services == ("agent", SERVER)


def test_tokens_are_the_servers_own():
    run = span(names.RUN, 0, 100, end="done")
    ledger = build_ledger([run, *a_turn(run, 10)])
    assert ledger.tokens == TokenCounts(
        prompt=100, cached=60, new=30, recomputed=10, output=20, sampled=10, forced=4, accepted=6, drafted=9, matched=6,
        causes={"diverged": 8, "block": 2},
    )  # fmt: skip
    assert ledger.turns[0].tokens == ledger.tokens


def test_of_tools_at_once_the_last_is_waited_for():
    run = span(names.RUN, 0, 100, end="done")
    [turn] = build_ledger([run, *a_turn(run, 10)]).turns
    first, second = turn.tools
    assert (first.name, round(first.ran_s, 3), first.waited_s) == ("a", 0.020, 0.0)
    assert (second.name, round(second.ran_s, 3), second.waited_s) == ("b", 0.025, 0.025)
    assert (second.num_tries, second.is_error, first.is_error) == (2, True, False)


@pytest.mark.parametrize(("own", "within", "told"), [("mine", "its", "mine"), ("", "its", "its"), ("mine", "", "mine")])
def test_a_turn_tells_its_own_error_or_that_of_its_calls(own: str, within: str, told: str):
    run = span(names.RUN, 0, 100, end="done")
    turn = span(names.TURN, 10, 90, run, turn=1, error=own)
    chat = span(names.CHAT, 10, 50, turn, model="m", error=within)
    [account] = build_ledger([run, turn, chat]).turns
    assert account.error == told


def test_turns_have_the_numbers_they_say_or_count_from_one():
    run = span(names.RUN, 0, 100, end="done")
    turns = [span(names.TURN, 10, 20, run), span(names.TURN, 30, 40, run, turn=7)]
    assert [turn.index for turn in build_ledger([run, *turns]).turns] == [1, 7]


def test_a_tool_is_dispatched_when_it_says_or_when_it_begins():
    run = span(names.RUN, 0, 100, end="done")
    turn = span(names.TURN, 10, 90, run, turn=1)
    at = DAWN_NS + 42 * MS
    tools = [span(names.TOOL, 40, 60, turn, **{names.DISPATCHED_NS: at}), span(names.TOOL, 50, 60, turn)]
    [account] = build_ledger([run, turn, *tools]).turns
    assert [tool.dispatched_ns for tool in account.tools] == [at, DAWN_NS + 50 * MS]


@pytest.mark.parametrize(("value", "saved_s"), [(1.5, 1.5), (0, 0), (-1, 0), (math.inf, 0), (math.nan, 0), ("1", 0)])
def test_a_tool_saved_a_finite_number_of_seconds(value: Any, saved_s: float):
    tool = span(names.TOOL, 10, 20, turn := span(names.TURN, 0, 30), **{names.SAVED_S: value})
    [account] = build_ledger([turn, tool]).turns
    assert [each.saved_s for each in account.tools] == [saved_s]


def test_the_critical_path_has_no_gap_and_names_what_was_waited_for():
    run = span(names.RUN, 0, 100, end="done")
    ledger = build_ledger([run, *a_turn(run, 10)])
    path = [
        (step.name, (step.start_ns - DAWN_NS) // MS, (step.end_ns - DAWN_NS) // MS) for step in ledger.critical_path
    ]
    assert path == [
        ("run", 0, 10),
        ("chat", 10, 11),
        ("request", 11, 13),
        ("queue", 13, 16),
        ("prefill", 16, 26),
        ("decode", 26, 57),
        ("request", 57, 58),
        ("chat", 58, 60),
        ("tool", 60, 85),
        ("turn", 85, 90),
        ("run", 90, 100),
    ]


def test_what_ran_before_it_was_asked_for_counts_from_then_on():
    run = span(names.RUN, 0, 50, end="done")
    turn = span(names.TURN, 0, 50, run)
    chat = span(names.CHAT, 10, 20, turn, model="hosted", first_token_ns=DAWN_NS + 15 * MS)
    tool = span(names.TOOL, 0, 40, turn, tool="look", was_speculative=True, dispatched_ns=DAWN_NS + 20 * MS)
    used = span(names.SPECULATIVE, 0, 20, turn, was_used=True)
    wasted = span(names.SPECULATIVE, 0, 50, turn, was_used=False)
    ledger = build_ledger([run, turn, chat, tool, used, wasted])
    assert parts_ms(ledger) == {"speculative": 10 + 10, "hosted_prefill": 5, "hosted_decode": 5, "tools": 20}
    [told] = ledger.turns
    assert (told.num_speculative, told.num_wasted) == (2, 1)
    assert told.tools[0].was_speculative


def test_what_is_prefilled_ahead_is_hidden_behind_tools_and_counted_apart():
    run = span(names.RUN, 0, 90, end="done")
    turn = span(names.TURN, 0, 90, run)
    chat = span(names.CHAT, 0, 30, turn, model="m")
    tool = span(names.TOOL, 30, 60, turn, tool="slow")
    reading = span(names.CHAT, 35, 80, turn, is_prefill_only=True)
    spans = [run, turn, chat, *a_request(0, 30, chat), tool, reading, *a_request(36, 78, reading, is_prefill_only=True)]
    ledger = build_ledger(spans)
    assert parts_ms(ledger)["tools"] == 30
    assert parts_ms(ledger)["prefill_ahead"] == 20
    assert parts_ms(ledger)["runtime"] == 10
    assert (ledger.tokens.prompt, ledger.prefill_ahead.prompt) == (100, 100)


def test_a_plain_client_has_turns_and_a_life_of_its_own():
    ledger = build_ledger([*a_request(0, 40), *a_request(100, 150), *a_request(90, 95, is_prefill_only=True)[:1]])
    assert len(ledger.turns) == 2
    assert parts_ms(ledger)["client"] == 55
    assert parts_ms(ledger)["prefill_ahead"] == 5
    assert ledger.turns[0].first_token_s == pytest.approx(0.015)
    assert ledger.tokens.prompt == 200


def test_a_router_has_a_queue_and_a_reason():
    route = span(
        names.ROUTE, 0, 60, service="router", replica="r1", reason="warm", queue_ns=4 * MS,
        first_byte_ns=DAWN_NS + 20 * MS,
    )  # fmt: skip
    failed = span(names.ATTEMPT, 4, 9, route, service="router", error="connect", replica="r0")
    ledger = build_ledger([route, failed, *a_request(10, 50, route)])
    [turn] = ledger.turns
    assert (turn.replica, turn.reason) == ("r1", "warm")
    assert parts_ms(turn)["router_queue"] == 4
    assert parts_ms(turn)["network"] == 5 + 1 + 10 + 1, "with what the replica that failed has cost"


@pytest.mark.parametrize(("told", "worth"), [({}, 0.009), ({"money_saved": 0.5}, 0.5)])
def test_what_stable_prompts_saved_is_told_and_what_was_changed(told: dict[str, float], worth: float):
    changes = ["tools: put into one order", "system: the time of day was moved behind the newest message"]
    route = span(names.ROUTE, 0, 60, service="router", model="big", stabilised=changes, num_saved=1000, **told)
    prices = PriceTable({"big": Prices(prompt=10.0, cached=1.0, output=100.0)})
    ledger = build_ledger([route, *a_request(10, 50, route)], prices)
    [turn] = ledger.turns
    assert turn.changes == tuple(changes)
    assert turn.num_saved == ledger.num_saved == 1000
    assert turn.money_saved == ledger.money_saved == pytest.approx(worth)


@pytest.mark.parametrize("name", ["stabilised", "num_saved", "money_saved"])
def test_whatever_a_router_says_of_stable_prompts_there_is_an_account_of_it(name: str):
    for nonsense in NONSENSE:
        route = span(names.ROUTE, 0, 60, service="router", **{name: nonsense})
        assert json.dumps(asdict(build_ledger([route, *a_request(10, 50, route)])), allow_nan=False)


def test_a_hosted_model_costs_money():
    run = span(names.RUN, 0, 50, end="done")
    turn = span(names.TURN, 0, 50, run)
    chat = span(names.CHAT, 0, 50, turn, model="big", num_prompt=1000, num_cached=400, num_output=100)
    prices = PriceTable({"big": Prices(prompt=10.0, cached=1.0, output=100.0)})
    ledger = build_ledger([run, turn, chat], prices)
    assert ledger.tokens == TokenCounts(prompt=1000, cached=400, new=600, output=100, sampled=100)
    assert ledger.money == ledger.turns[0].money == pytest.approx(0.006 + 0.0004 + 0.01)
    paid = span(names.RUN, 0, 50, money=3.0, end="done")
    assert build_ledger([paid]).money == 3.0


def test_an_agent_that_pays_for_itself_is_paid_for_once():
    run = span(names.RUN, 0, 90, end="done", money=3.0)
    turn = span(names.TURN, 0, 90, run)
    inner = span(names.RUN, 20, 60, turn, end="done", money=2.0)
    its_turn = span(names.TURN, 20, 60, inner)
    chats = [span(names.CHAT, 0, 10, turn, money=3.0), span(names.CHAT, 20, 40, its_turn, money=2.0)]
    ledger = build_ledger([run, turn, inner, its_turn, *chats])
    assert ledger.money == sum(each.money for each in ledger.turns) == 5.0


NONSENSE = [5, -5, 10**400, 1e308, "x", "", None, True, [], [1, "a", None, {}], {"a": 1}, [[{"reason": "x"}]]]
NAMES = [
    names.CAUSES, names.CONTENT_WORDS, names.NUM_PROMPT, names.NUM_CACHED, names.MONEY, names.FIRST_TOKEN_NS,
    names.DISPATCHED_NS, names.QUEUE_NS, names.ANSWER_ID, names.INDEX, names.NUM_TRIES, names.AGENT, names.END,
]  # fmt: skip


@pytest.mark.parametrize("nonsense", NONSENSE, ids=range(len(NONSENSE)))
@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_made_up_file_says_there_is_an_account_of_it(name: str, nonsense: Any):
    run = span(names.RUN, 0, 90, end="done")
    spans = [replace(each, attributes={**each.attributes, name: nonsense}) for each in (run, *a_turn(run, 0))]
    ledger = build_ledger(spans)
    check(ledger)
    assert json.dumps(asdict(ledger), allow_nan=False)


def test_a_run_that_goes_on_has_an_account_so_far():
    begun = span(names.RUN, 0, 0, agent="scout", session="s")
    turn = span(names.TURN, 0, 40, begun, turn=1)
    chat = span(names.CHAT, 0, 30, turn, model="m")
    missing = span(names.TURN, 40, 90, begun, turn=2)
    asked = span(names.CHAT, 42, 70, missing, model="m")
    spans = [begun, turn, chat, *a_request(5, 25, chat), asked, *a_request(45, 65, asked)]
    ledger = build_ledger(spans)
    assert ledger.is_running
    assert (ledger.agent, ledger.end, ledger.wall_s) == ("scout", "", 0.070)
    assert sum(ledger.parts.values()) == pytest.approx(ledger.wall_s)
    assert (len(ledger.turns), ledger.tokens.prompt) == (1, 200), "a turn that goes on is not one yet, its tokens count"
    over = replace(begun, end_ns=missing.end_ns, attributes={**begun.attributes, names.END: "done"})
    for told in ([begun, over, *spans[1:], missing], [over, *spans[1:], missing, begun]):
        ledger = build_ledger(told)
        assert (ledger.is_running, ledger.end, ledger.wall_s, len(ledger.turns)) == (False, "done", 0.090, 2)
        assert ledger.tokens.prompt == 200


def test_in_its_first_turn_a_run_counts_its_tokens_once():
    begun = span(names.RUN, 0, 0)
    missing = span(names.TURN, 0, 90, begun)
    chat = span(names.CHAT, 0, 30, missing, model="m")
    ledger = build_ledger([begun, chat, *a_request(5, 25, chat)])
    assert ledger.tokens.prompt == 100
    assert ledger.wall_s == 0.030


def test_agents_within_agents_have_turns_of_their_own():
    run = span(names.RUN, 0, 100, agent="outer", end="done")
    turn = span(names.TURN, 0, 100, run, turn=1)
    tool = span(names.TOOL, 0, 90, turn, tool="inner")
    inner = span(names.RUN, 5, 85, tool, agent="inner", end="done")
    inner_turn = span(names.TURN, 10, 80, inner, turn=1)
    chat = span(names.CHAT, 10, 60, inner_turn, model="m")
    ledger = build_ledger([run, turn, tool, inner, inner_turn, chat, *a_request(10, 60, chat)])
    assert [each.run_span_id for each in ledger.turns] == [run.span_id, inner.span_id]
    assert ledger.turns[0].tokens == TokenCounts()
    assert ledger.tokens == ledger.turns[1].tokens
    assert parts_ms(ledger)["tools"] == 10
    assert ledger.turns[0].tools[0].waited_s == pytest.approx(0.090)


def test_a_summary_between_turns_is_counted_with_the_run():
    run = span(names.RUN, 0, 100, end="done")
    summary = span(names.CHAT, 10, 30, run, model="m", num_prompt=50, num_output=5)
    turn = span(names.TURN, 40, 90, run, turn=1)
    ledger = build_ledger([run, summary, turn])
    assert ledger.tokens.prompt == 50
    assert ledger.turns[0].tokens == TokenCounts()


def test_a_server_with_another_clock_is_put_where_it_belongs():
    chat = span(names.CHAT, 0, 60, model="m")
    right = build_ledger([chat, *a_request(10, 50, chat)])
    for shift in (-500_000, 3_600_000):
        ledger = build_ledger([chat, *a_request(shift + 10, shift + 50, chat)])
        assert parts_ms(ledger) == parts_ms(right)


def test_a_ledger_is_json():
    run = span(names.RUN, 0, 100, session="s", end="done")
    plain = asdict(build_ledger([run, *a_turn(run, 10)]))
    assert plain["parts"]["queue"] == 0.003
    assert plain["turns"][0]["tools"][0]["name"] == "a"
    assert plain["tokens"]["causes"] == {"diverged": 8, "block": 2}
    assert plain["critical_path"][0] == {
        "span_id": run.span_id, "name": "run", "start_ns": run.start_ns, "end_ns": run.start_ns + 10 * MS,
    }  # fmt: skip


def check(ledger: RunLedger) -> None:
    """What holds for every ledger, whatever the spans."""
    assert sum(ledger.parts.values()) == pytest.approx(ledger.wall_s, abs=1e-6)
    assert all(seconds >= 0 for seconds in ledger.parts.values())
    for turn in ledger.turns:
        assert sum(turn.parts.values()) == pytest.approx(turn.wall_s, abs=1e-6)
    steps = ledger.critical_path
    assert all(one.end_ns == two.start_ns for one, two in pairwise(steps))
    if ledger.wall_s:
        assert (steps[0].start_ns, steps[-1].end_ns) == (ledger.start_ns, ledger.end_ns)
    tokens = ledger.tokens
    assert tokens.output == tokens.sampled + tokens.forced + tokens.accepted
    for idle in (ledger.model_idle_s, ledger.tool_idle_s, ledger.tools_hidden_s):
        assert idle >= -1e-9
    json.dumps(asdict(ledger))


KINDS = [
    names.RUN, names.TURN, names.CHAT, names.TOOL, names.SPECULATIVE, names.ROUTE, names.ATTEMPT,
    names.REQUEST, names.QUEUE, names.PREFILL, names.DECODE, "unheard-of",
]  # fmt: skip
NUMBERS = st.one_of(st.integers(0, 500), st.just("many"), st.just(None), st.just(-3))


@st.composite
def traces(draw: Any) -> list[Span]:
    """Any spans with any parents at all: some lost, some in circles, some outside of their parent's time."""
    spans: list[Span] = []
    for number in range(draw(st.integers(1, 25))):
        begin = draw(st.integers(0, 200))
        facts = draw(
            st.dictionaries(
                st.sampled_from(
                    [names.NUM_PROMPT, names.NUM_CACHED, names.NUM_NEW, names.NUM_RECOMPUTED, names.NUM_OUTPUT,
                     names.NUM_FORCED, names.NUM_ACCEPTED, names.QUEUE_NS, names.INDEX, names.MONEY]
                ),
                NUMBERS,
                max_size=6,
            )
        )  # fmt: skip
        moments = st.one_of(st.integers(0, 300).map(lambda ms: DAWN_NS + ms * MS), NUMBERS)
        if draw(st.booleans()):
            facts |= {names.DISPATCHED_NS: draw(moments), names.FIRST_TOKEN_NS: draw(moments)}
        if draw(st.booleans()):
            facts |= {
                names.IS_PREFILL_ONLY: draw(st.booleans()),
                names.CAUSES: draw(st.sampled_from([[], None, [1], "x"])),
            }
        one = span(draw(st.sampled_from(KINDS)), begin, begin + draw(st.integers(-5, 100)), **facts)
        parent_id = draw(st.one_of(st.none(), st.integers(0, 30).map(lambda index: f"{index + 1:016x}")))
        service = draw(st.sampled_from(["agent", "router", SERVER]))
        changes = {"span_id": f"{number + 1:016x}", "parent_id": parent_id, "service": service}
        spans.append(replace(one, **changes))
    return spans


@given(traces(), st.randoms(use_true_random=False))
def test_the_parts_make_up_the_whole_of_anything(spans: list[Span], random: Random):
    ledger = build_ledger(spans)
    check(ledger)
    shuffled = list(spans)
    random.shuffle(shuffled)
    assert build_ledger(shuffled) == ledger, "in whatever order they came"


def test_a_long_run_is_no_trouble():
    run = span(names.RUN, 0, 300 * 80, end="done")
    ledger = build_ledger([run, *(each for number in range(300) for each in a_turn(run, number * 80))])
    check(ledger)
    assert len(ledger.turns) == 300
    assert ledger.tokens.prompt == 30_000
    assert set(ledger.parts) <= set(TimePart)
