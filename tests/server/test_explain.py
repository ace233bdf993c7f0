"""Why tokens were recomputed: each cause by its effect on a real server."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chat.assembly.merging import merging_tokenizer
from tests.properties import examples
from tests.server.calls import tool
from tests.server.serving import Serving, check_error, until

from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.server.service import Service

RULES = "Read all of it before you say a word, and then say it well, for nobody will ask you twice. " * 2
CAUSES = {"cold", "diverged", "retokenised", "evicted", "capacity", "block"}


@pytest.fixture
def house() -> Iterator[Serving]:
    with Serving() as serving:
        yield serving


def ask(
    serving: Serving, *turns: str, system: str = RULES, headers: dict[str, str] | None = None, **fields: Any
) -> Any:
    """The answer to a conversation, the user's turn first."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    body = {"messages": [{"role": "system", "content": system}, *messages], "max_tokens": 4, **fields}
    response = serving.http.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


def explain(serving: Serving, answer_id: str, headers: dict[str, str] | None = None, salt: str | None = None) -> Any:
    params = {"cache_salt": salt} if salt else {}
    response = serving.http.get(f"/v1/cache/explain/{answer_id}", headers=headers, params=params)
    assert response.status_code == 200, response.text
    told = response.json()
    assert told["object"] == "cache.explanation"
    check_sums(told)
    return told


def check_sums(told: dict[str, Any]) -> None:
    assert told["prompt_tokens"] == told["cached_tokens"] + told["new_tokens"] + told["recomputed_tokens"]
    by_cause = causes_of(told)
    assert by_cause.keys() <= CAUSES
    assert told["recomputed_tokens"] == sum(tokens for cause, tokens in by_cause.items() if cause != "cold")
    assert told["block_tokens"] == by_cause.get("block", 0)


def causes_of(told: dict[str, Any]) -> dict[str, int]:
    """What was recomputed, by cause; a cause of nothing only tells where two prompts part."""
    return {cause["cause"]: cause["tokens"] for cause in told["causes"] if cause["tokens"]}


def only_cause(told: dict[str, Any]) -> dict[str, Any]:
    """What there is beside the rounding to blocks."""
    [cause] = [cause for cause in told["causes"] if cause["cause"] != "block"]
    assert isinstance(cause, dict)
    return cause


def test_nothing_like_it_was_read(house: Serving) -> None:
    answer = ask(house, "Hello")
    told = explain(house, answer["id"])
    assert told["id"] == answer["id"]
    assert told["compared_with"] is None
    assert causes_of(told) == {"cold": told["prompt_tokens"]}
    assert told["recomputed_tokens"] == 0


def test_a_conversation_that_goes_on(house: Serving) -> None:
    answer = ask(house, "Hello")
    told = explain(house, ask(house, "Hello", "Yes?", "Then tell me about the weather in Rome.")["id"])
    assert told["compared_with"] == answer["id"]
    assert causes_of(told).keys() <= {"block"}
    assert told["block_tokens"] < 16


def test_a_stamp_on_top(house: Serving) -> None:
    first = ask(house, "Hello", system=f"Stamp: 10:01:07, today. {RULES}")
    second = ask(house, "Hello", system=f"Stamp: 10:02:33, today. {RULES}")
    told = explain(house, second["id"])
    assert told["compared_with"] == first["id"]
    cause = only_cause(told)
    assert cause["cause"] == "diverged"
    assert cause["tokens"] >= len(RULES)
    assert cause["span"] == {"kind": "system", "index": 0, "offset": len("Stamp: 10:0")}
    assert cause["token_index"] == len("|system\nStamp: 10:0"), "a special token, and a token for each byte"
    assert cause["before"].endswith("Stamp: ")
    assert cause["previous"].startswith("10:01:07, today.")
    assert cause["current"].startswith("10:02:33, today.")
    assert second["usage"]["hotloop"]["causes"]["diverged"] == cause["tokens"]


def test_a_message_that_was_changed(house: Serving) -> None:
    later = "This was said long ago, and every word of it is still what it was then."
    ask(house, "I have two apples.", later, "Go on.")
    cause = only_cause(explain(house, ask(house, "I have ten apples.", later, "Go on.")["id"]))
    assert cause["span"] == {"kind": "message", "index": 1, "offset": len("I have t")}
    assert (cause["before"][-7:], cause["previous"][:10], cause["current"][:10]) == (
        "I have ",
        "two apples",
        "ten apples",
    )


def test_tools_in_another_order() -> None:
    tools = [
        tool(name, description=f"What {name} does is written here, at some length.") for name in ("ab", "cd", "ef")
    ]
    with Serving(ServerConfig(port=0, canonical_tools=False)) as serving:
        ask(serving, "Hello", tools=tools)
        cause = only_cause(explain(serving, ask(serving, "Hello", tools=[tools[1], tools[0], tools[2]])["id"]))
    assert cause["cause"] == "diverged"
    assert (cause["span"]["kind"], cause["span"]["index"]) == ("tool", 0)
    assert "cd" in cause["current"]
    assert "ab" in cause["previous"]


def test_what_was_done_about_it(house: Serving) -> None:
    tools = [tool("b"), tool("a")]
    answer = ask(house, "Hello", tools=tools)
    [change] = answer["usage"]["hotloop"]["changes"]
    assert "tools" in change
    assert explain(house, answer["id"])["changes"] == [change]
    assert "changes" not in ask(house, "Hello")["usage"]["hotloop"]


def test_an_answer_cut_into_other_tokens() -> None:
    """The model writes letter by letter, which the tokenizer would not."""
    tokenizer = merging_tokenizer([("a", "a")])
    [letter] = tokenizer.encode("a")
    fields = {"max_tokens": 60, "temperature": 0, "logit_bias": {str(letter): 100}, "ignore_eos": True}
    for exact in (True, False):
        with Serving(ServerConfig(port=0, exact_turns=exact), tokenizer=tokenizer) as serving:
            first = ask(serving, "Hello", **fields)
            said = first["choices"][0]["message"]["content"]
            assert said == "a" * 60
            told = explain(serving, ask(serving, "Hello", said, "Again.", **fields)["id"])
        assert told["compared_with"] == first["id"]
        if exact:
            assert causes_of(told).keys() <= {"block"}
            assert told["exact_tokens"] >= 60
            continue
        cause = only_cause(told)
        assert (cause["cause"], cause["tokens"]) == ("retokenised", 29), "of the last letter nothing was computed"
        assert (cause["span"]["kind"], cause["span"]["index"]) == ("message", 2)
        assert cause["previous"].startswith("a|a|a")
        assert cause["current"].startswith("aa|aa|aa")


def test_given_up_for_another() -> None:
    with Serving(num_blocks=32) as serving:
        began_at = time.time()
        first = ask(serving, "Hello")
        other = ask(serving, "Something else. " * 12, system="Others have other rules. " * 6)
        told = explain(serving, ask(serving, "Hello")["id"])
    assert told["compared_with"] == first["id"]
    cause = only_cause(told)
    assert cause["cause"] == "evicted"
    assert cause["tokens"] % 16 == 0
    assert cause["evicted_for"] == other["id"]
    assert began_at - 1 <= cause["evicted_at"] <= time.time() + 1
    assert told["new_tokens"] == 0


def test_nothing_is_kept() -> None:
    with Serving(engine_config=EngineConfig(prefix_cache=False)) as serving:
        ask(serving, "Hello")
        told = explain(serving, ask(serving, "Hello")["id"])
    cause = only_cause(told)
    assert (cause["cause"], cause["tokens"]) == ("capacity", told["prompt_tokens"] - told["block_tokens"])


def test_those_who_had_to_give_way() -> None:
    """More is read than fits, by all at once: whatever happens, it adds up."""
    questions = [f"I am number {i}, " + "and I have a lot to say. " * 8 for i in range(6)]
    fields = {"max_tokens": 40, "ignore_eos": True}
    with Serving(num_blocks=40) as serving, ThreadPoolExecutor(6) as pool:
        first = [*pool.map(lambda question: ask(serving, question, **fields), questions)]
        second = [*pool.map(lambda question: ask(serving, question, "Yes?", "Go on.", **fields), questions)]
        told = [explain(serving, answer["id"]) for answer in first + second]
    assert {cause for one in told for cause in causes_of(one)} >= {"cold", "evicted"}


def test_one_who_gave_way_is_told_what_it_found_at_first() -> None:
    """What it read a second time, because a more urgent one needed the room, is none of its prompt's tokens."""
    patient = {"priority": "background", "max_tokens": 300, "ignore_eos": True}
    with Serving(num_blocks=64) as serving, ThreadPoolExecutor(2) as pool:
        first = ask(serving, "Hello")
        with serving.gate:
            slow = pool.submit(ask, serving, "Hello", "Yes?", "Take your time.", **patient)
            until(lambda: serving.engine.stats().num_running == 1)
            urgent = pool.submit(ask, serving, "Now! " * 130, system="Others have other rules. " * 6)
            until(lambda: bool(serving.engine._arriving))
        urgent.result()
        told = explain(serving, slow.result()["id"])
        assert serving.engine.stats().num_preemptions > 0
    assert told["compared_with"] == first["id"]
    assert told["cached_tokens"] > 0
    assert causes_of(told).keys() <= {"block"}


def test_several_prompts_and_choices_are_counted_once(house: Serving) -> None:
    prompts = [f"{word} {RULES}" for word in ("One", "Two")]
    response = house.http.post("/v1/completions", json={"prompt": prompts, "n": 2, "max_tokens": 2}).json()
    told = explain(house, response["id"])
    assert told["prompt_tokens"] == response["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert causes_of(told) == {"cold": len(prompts[1])} or told["new_tokens"] == told["prompt_tokens"]
    assert told["cached_tokens"] == response["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_by_the_id_of_the_request(house: Serving) -> None:
    answer = ask(house, "Hello", headers={"x-request-id": "mine/1"})
    assert explain(house, "mine/1")["id"] == answer["id"]


@pytest.mark.parametrize("answer_id", ["chatcmpl-0", "msg_nonsense", "a/b", "x" * 500, "%00"])
def test_unknown_answers(house: Serving, answer_id: str) -> None:
    check_error(house.http.get(f"/v1/cache/explain/{answer_id}"), 404, "explanation_not_found")


def test_old_answers_are_forgotten() -> None:
    with Serving(ServerConfig(port=0, explain_memory_tokens=2000)) as serving:
        first = ask(serving, "Hello")
        explain(serving, first["id"])
        for i in range(20):
            last = ask(serving, f"{i} {RULES}")
        check_error(serving.http.get(f"/v1/cache/explain/{first['id']}"), 404, "explanation_not_found")
        explain(serving, last["id"])
        service: Service = serving.server._service
        service.explainer.past.check()


def test_an_answer_that_is_not_finished_is_not_explained(house: Serving) -> None:
    with house.gate, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, house, "Hello", headers={"x-request-id": "waiting"})
        until(lambda: house.engine.stats().num_running == 1)
        check_error(house.http.get("/v1/cache/explain/waiting"), 404, "explanation_not_found")
        house.gate.__exit__()
        waiting.result()
    explain(house, "waiting")


ANNA, BOB = {"authorization": "Bearer anna"}, {"authorization": "Bearer bob"}
WORDS = {"before", "previous", "current"}


def test_words_are_for_whom_they_belong_to(house: Serving) -> None:
    ask(house, "Hello", system=f"Anna's first. {RULES}", headers=ANNA)
    theirs = ask(house, "Hello", system=f"Bob's own. {RULES}", headers=BOB)
    cause = only_cause(explain(house, theirs["id"], BOB))
    assert cause.keys() == {"cause", "tokens"}, "where it departs from Anna's would tell what hers says"
    assert cause["cause"] == "cold"
    assert theirs["usage"]["hotloop"]["recomputed_tokens"] == 0
    assert explain(house, theirs["id"], BOB)["compared_with"] is None
    again = ask(house, "Hello", system=f"Bob's new. {RULES}", headers=BOB)
    assert only_cause(explain(house, again["id"], BOB)).keys() >= WORDS
    check_error(house.http.get(f"/v1/cache/explain/{again['id']}", headers=ANNA), 404, "explanation_not_found")


def test_nothing_is_told_across_scopes() -> None:
    with Serving(ServerConfig(port=0, cache_isolation="key")) as serving:
        answer = ask(serving, "Hello", headers=ANNA | {"x-request-id": "guessed"})
        for name in (answer["id"], "guessed"):
            check_error(serving.http.get(f"/v1/cache/explain/{name}", headers=BOB), 404, "explanation_not_found")
        told = explain(serving, ask(serving, "Hello", headers=BOB)["id"], BOB)
        assert causes_of(told) == {"cold": told["prompt_tokens"]}


def test_nor_whose_room_was_needed() -> None:
    with Serving(num_blocks=32) as serving:
        ask(serving, "Hello")
        ask(serving, "Something else. " * 12, system="Others have other rules. " * 6, cache_salt="theirs")
        cause = only_cause(explain(serving, ask(serving, "Hello")["id"]))
    assert cause["cause"] == "evicted"
    assert cause["evicted_for"] is None


def test_salted_answers(house: Serving) -> None:
    answer = ask(house, "Hello", cache_salt="s")
    check_error(house.http.get(f"/v1/cache/explain/{answer['id']}"), 404)
    check_error(house.http.get(f"/v1/cache/explain/{answer['id']}?cache_salt=other"), 404)
    assert explain(house, answer["id"], salt="s")["id"] == answer["id"]
    assert only_cause(explain(house, ask(house, "Hello")["id"]))["cause"] == "cold"


def test_causes_without_words() -> None:
    with Serving(ServerConfig(port=0, explanations="causes")) as serving:
        ask(serving, "Hello", system=f"Stamp: 10:01:07, today. {RULES}")
        cause = only_cause(explain(serving, ask(serving, "Hello", system=f"Stamp: 10:02:33, today. {RULES}")["id"]))
    assert cause["span"]["kind"] == "system"
    assert not WORDS & cause.keys()


def test_switched_off() -> None:
    with Serving(ServerConfig(port=0, explanations="off")) as serving:
        answer = ask(serving, "Hello")
        assert "new_tokens" not in answer["usage"]["hotloop"]
        error = check_error(serving.http.get(f"/v1/cache/explain/{answer['id']}"), 404, "explanation_not_found")
        assert "switched off" in error["message"]
        assert 'kind="new"' not in serving.http.get("/metrics").text


def test_metrics_by_cause(house: Serving) -> None:
    for stamp in ("10:01:07", "10:02:33", "10:02:33"):
        ask(house, "Hello", system=f"Stamp: {stamp}, today. {RULES}")
    lines = dict(line.rpartition(" ")[::2] for line in house.http.get("/metrics").text.splitlines() if line[0] != "#")
    kinds = {
        kind: float(lines[f'hotloop_explained_prompt_tokens_total{{kind="{kind}"}}'])
        for kind in ("cached", "new", "recomputed")
    }
    assert sum(kinds.values()) == float(lines["hotloop_prompt_tokens_total"])
    assert kinds["cached"] == float(lines["hotloop_cached_prompt_tokens_total"])
    counter = "hotloop_prompt_tokens_recomputed_total"
    recomputed = [float(value) for name, value in lines.items() if name.startswith(f"{counter}{{")]
    assert sum(recomputed) == kinds["recomputed"]
    assert f'{counter}{{cause="diverged"}}' in lines


@pytest.fixture(scope="module")
def tight() -> Iterator[Serving]:
    with Serving(num_blocks=24) as serving:
        yield serving


@settings(max_examples=examples(25))
@given(parts=st.lists(st.sampled_from(["ab" * 15, "cd" * 9, "é🙂" * 4, "x", RULES[:50]]), min_size=1, max_size=5))
def test_whatever_is_asked_adds_up(tight: Serving, parts: list[str]) -> None:
    answer = tight.complete(prompt="".join(parts)).json()
    told = explain(tight, answer["id"])
    assert told["prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert told["cached_tokens"] == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    work = answer["usage"]["hotloop"]
    assert [work[key] for key in ("new_tokens", "recomputed_tokens", "block_tokens")] == [
        told[key] for key in ("new_tokens", "recomputed_tokens", "block_tokens")
    ]
    assert work["causes"] == causes_of(told)
