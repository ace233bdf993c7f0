"""Which tier a request gets: rules, classifiers, and sessions that stay where their cache is."""

from typing import Any

import pytest

from hotloop.router.tiers.classify import MAX_CHARS, Centres, embed, labels_body, read_scores
from hotloop.router.tiers.config import Route, Tier, TierRule, parse_tiers
from hotloop.router.tiers.features import Features
from hotloop.router.tiers.tiers import Reply, TierChoice, Tiers, can_need_task, decide
from hotloop.wire.usage import ApiUsage

FAST = {"name": "fast", "model": "small", "input_price": 0.2, "cached_price": 0.02, "output_price": 0.8}
LARGE = {"name": "large", "model": "big", "input_price": 1.0, "cached_price": 0.1, "output_price": 4.0}
RULES = [
    {"tier": "fast", "tasks": ["classification", "extraction"]},
    {"tier": "large", "min_tokens": 1000},
    {"tier": "fast", "max_tools": 0, "has_code": False},
]


def tiers(**route: Any) -> Tiers:
    return Tiers(parse_tiers({"tiers": [FAST, LARGE], "routes": [{"rules": RULES, **route}]}))


def features(**more: Any) -> Features:
    return Features(**{"text": "hello", "num_tokens": 100, "num_turns": 1, "num_tools": 1, **more})


async def nobody(tier: Tier, body: dict[str, Any]) -> Reply:
    raise AssertionError("nobody should be asked")


def test_the_first_rule_that_fits_counts_and_says_why():
    chosen = tiers()
    assert chosen.choose("auto", features(hint="extraction", num_tokens=5000)) == TierChoice(
        "fast", "small", "task extraction"
    )
    assert chosen.choose("auto", features(num_tokens=1000)) == TierChoice("large", "big", "tokens >= 1000")
    assert chosen.choose("auto", features(num_tools=0)).reason == "tools <= 0, no code"
    assert chosen.choose("auto", features(num_tools=0, text="```x```")) == TierChoice("large", "big", "default")
    assert chosen.choose("auto", features(), task="classification").tier == "fast"
    assert tiers(default="fast").choose("auto", features()).tier == "fast"


@pytest.mark.parametrize(
    ("rule", "seen", "is_fit"),
    [
        ({"min_turns": 2}, {"num_turns": 1}, False),
        ({"max_turns": 2}, {"num_turns": 2}, True),
        ({"min_tools": 1}, {"num_tools": 0}, False),
        ({"max_tokens": 99}, {"num_tokens": 100}, False),
        ({"has_shape": True}, {"has_shape": False}, False),
        ({"has_shape": False}, {"has_shape": False}, True),
        ({"tasks": ("qa",)}, {}, False),
        ({}, {}, True),
    ],
)
def test_rules(rule: dict[str, Any], seen: dict[str, Any], is_fit: bool):
    tier, _ = decide(Route(rules=(TierRule(tier="x", **rule),), default="y"), features(**seen), None)
    assert tier == ("x" if is_fit else "y")


def test_a_task_is_asked_for_only_where_it_could_matter():
    by_size = TierRule(tier="large", min_tokens=50)
    by_task = TierRule(tier="fast", tasks=("qa",), max_tools=1)
    assert can_need_task(Route(rules=(by_task, by_size)), features())
    assert not can_need_task(Route(rules=(by_size, by_task)), features()), "an earlier rule has decided"
    assert not can_need_task(Route(rules=(by_task,)), features(num_tools=2)), "the rule cannot fit in any case"
    assert not can_need_task(Route(), features())


EXAMPLES = {
    "code": ["Write a Python function that sorts a list", "Fix the bug in this function"],
    "summary": ["Summarise the following article", "Give a short summary of this text"],
}


async def test_an_embedding_finds_what_is_worded_alike():
    chosen = tiers(classifier="embedding", examples=EXAMPLES, rules=[{"tier": "fast", "tasks": ["summary"]}])
    for text, task in (("Please summarise this article about bees", "summary"), ("a function to sort a list", "code")):
        assert (await chosen.classify("auto", features(text=text), nobody))[0] == task
    assert (await chosen.classify("auto", features(text="zzzz qqqq"), nobody))[0] is None
    assert (await chosen.classify("auto", features(text=""), nobody))[0] is None
    assert (await chosen.classify("auto", features(hint="qa"), nobody))[0] == "qa", "who says it need not be guessed"


def test_vectors_have_unit_length_and_are_the_same_everywhere():
    vector = embed("The same  words")
    assert sum(weight**2 for weight in vector.values()) == pytest.approx(1)
    assert embed("the SAME words") == vector
    assert Centres({"qa": ["the same words"]}).nearest("the same words") == ("qa", pytest.approx(1))
    assert Centres({"qa": []}).nearest("x y z") is None


def letter_answer(**logprobs: float) -> dict[str, Any]:
    tops = [{"token": token, "logprob": logprob} for token, logprob in logprobs.items()]
    content = [{"token": "A", "logprob": -0.1, "top_logprobs": tops}]
    return {"choices": [{"message": {"content": "A"}, "logprobs": {"content": content}}]}


async def test_labels_are_scored_by_the_fast_model_in_one_step():
    asked = []

    async def ask(tier: Tier, body: dict[str, Any]) -> Reply:
        asked.append((tier.name, body))
        return Reply(letter_answer(B=-0.5, A=-1.0, x=-0.1), 0.1)

    task, reply = await tiers(classifier="labels").classify("auto", features(text="Get the date"), ask)
    assert (task, reply and reply.latency_s) == ("extraction", 0.1)
    [(name, body)] = asked
    assert (name, body["model"], body["max_tokens"], body["structured_outputs"]["choice"]) == (
        "fast",
        "small",
        1,
        list("ABCDEF"),
    )
    assert (await tiers(classifier="labels", min_score=0.9).classify("auto", features(), ask))[0] is None


async def test_a_model_that_fails_to_classify_is_no_classifier():
    async def ask(tier: Tier, body: dict[str, Any]) -> Reply:
        return Reply(None)

    assert (await tiers(classifier="labels").classify("auto", features(), ask))[0] is None


def test_scores_are_shares_and_fall_back_on_the_letter():
    scores = read_scores(letter_answer(A=0.0, B=0.0))
    assert scores == {"classification": 0.5, "extraction": 0.5}
    assert read_scores({"choices": [{"message": {"content": " C "}, "logprobs": None}]}) == {"summary": 1.0}
    assert read_scores({"choices": [{"message": {"content": "hm"}}]}) == read_scores({}) == {}


def test_long_requests_are_shown_by_their_ends():
    content = labels_body("m", "a" * MAX_CHARS + "b" * MAX_CHARS)["messages"][1]["content"]
    assert content.count("a") > MAX_CHARS // 3
    assert content.count("b") >= MAX_CHARS // 2
    assert len(content) < MAX_CHARS + 100


def learnt(tier: str, num_tokens: int, **route: Any) -> Tiers:
    chosen = tiers(**route)
    chosen.learn("s", tier, ApiUsage(num_tokens - 10, 0, 10), now=100.0)
    return chosen


def small_turn(chosen: Tiers, **more: Any) -> TierChoice:
    return chosen.choose("auto", features(hint="extraction", num_tokens=5200), session="s", **{"now": 101.0, **more})


def test_a_session_stays_while_its_cache_is_worth_more():
    chosen = learnt("large", 5000)
    stayed = small_turn(chosen)
    assert (stayed.tier, stayed.model) == ("large", "big")
    assert stayed.reason == "cache worth more than fast saves (task extraction)"
    assert small_turn(chosen, num_output=1000).tier == "fast", "a long answer costs more than reading again"
    assert small_turn(chosen, now=1000.0).tier == "fast", "nothing is kept for so long"
    assert small_turn(learnt("large", 5000, sticky_s=0)).tier == "fast"
    assert small_turn(learnt("large", 500)).tier == "fast"
    assert chosen.choose("auto", features(hint="extraction"), session="t").tier == "fast"


def test_up_it_goes_at_once():
    chosen = learnt("fast", 5000)
    assert chosen.choose("auto", features(num_tokens=5200), session="s", now=101.0).tier == "large"


def test_without_prices_nothing_is_worth_staying_for():
    free = [{"name": tier["name"], "model": tier["model"]} for tier in (FAST, LARGE)]
    chosen = Tiers(parse_tiers({"tiers": free, "routes": [{"rules": RULES}]}))
    chosen.learn("s", "large", ApiUsage(4990, 0, 10), now=100.0)
    assert small_turn(chosen).tier == "fast"


def test_what_the_smaller_tier_has_cached_counts_too():
    chosen = learnt("fast", 5000)
    chosen.learn("s", "large", ApiUsage(4990, 0, 10), now=100.0)
    assert small_turn(chosen).tier == "fast"


def test_a_failed_call_asks_for_one_tier_more():
    failed = features(hint="extraction", has_tool_error=True)
    assert tiers(cascade={}).choose("auto", failed) == TierChoice("large", "big", "tool error")
    assert tiers(cascade={"on": ["invalid_output"]}).choose("auto", failed).tier == "fast"
    assert tiers().choose("auto", failed).tier == "fast"
    assert tiers(cascade={}).choose("auto", features(has_tool_error=True)).reason == "default", "there is none above"


def test_in_a_tool_loop_a_session_keeps_its_model_unless_something_fails() -> None:
    chosen = tiers(cascade={})
    small, large = features(hint="extraction"), features(hint="code", num_tokens=50_000)
    wanted = {each: chosen.choose("auto", each).tier for each in (small, large)}
    assert len({*wanted.values()}) == 2
    chosen.learn("s", wanted[small], ApiUsage(100, 0, 10), 0.0)

    def choose(**more: Any) -> TierChoice:
        fields = {"hint": "code", "num_tokens": 50_000, **more}
        return chosen.choose("auto", features(**fields), session="s", now=1.0)

    assert choose(is_tool_loop=True) == TierChoice("fast", "small", "in a tool loop")
    assert choose().tier == wanted[large], "the user speaks"
    assert choose(is_tool_loop=True, has_tool_error=True, hint="extraction").reason == "tool error"
    chosen.fail("s")
    assert choose(is_tool_loop=True).tier == wanted[large]
    chosen.learn("s", wanted[large], ApiUsage(100, 0, 10), 2.0)
    assert choose(is_tool_loop=True, hint="extraction", num_tokens=10).tier == wanted[large], "nor down"
    chosen.fail("nobody")
