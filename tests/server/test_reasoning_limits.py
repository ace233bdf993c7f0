"""Reasoning beside what else a request asks for: budgets, grammars, switches, usage; and what becomes of it later."""

import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.backends.scripted import ScriptedBackend
from tests.chat.reasoning_templates import thinking_template
from tests.chat.test_harmony import TEMPLATE as HARMONY_TEMPLATE
from tests.chat.test_harmony import TOKENIZER as HARMONY
from tests.engine.tiny import TOKENIZER
from tests.server.asking import check_events, function
from tests.server.calls import WEATHER, check_call, tool, write_call
from tests.server.claude import post, read_events
from tests.server.serving import HELLO, Serving

from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.wire.part import unseal_text

LONG = "On the one hand {, on the other }; " * 20
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
JSON_ANSWER = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
CALL = write_call("weather", city="Rome", days=3)


class Thinker(ScriptedBackend):
    """Thinks one text until the thought is closed, be it by force, and then says another."""

    def __init__(self, thought: str, answer: str, **settings: Any) -> None:
        super().__init__(TOKENIZER, [f"<think>\n{thought}\n</think>", f"\n\n{answer}"], **settings)

    def _next_token(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> int:
        said = self._spell(token_ids).rpartition(self._opening)[2]
        _, closing, answer = said.rpartition(b"</think>")
        return self._places[1].get(answer, self._end_id) if closing else self._places[0].get(answer, self._end_id)


def thinking(
    thought: str, answer: str, *, is_opened: bool = True, template: str = "", engine: Any = None, **config: Any
) -> Serving:
    return Serving(
        ServerConfig(port=0, **config),
        engine,
        backend=Thinker(thought, answer),
        template=template or thinking_template(is_opened=is_opened),
    )


def ask(serving: Serving, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The choice and the usage of a chat."""
    response = serving.chat(**{"max_tokens": 400, **fields})
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    return choice, response.json()["usage"]


@pytest.mark.parametrize("is_opened", [False, True])
def test_whole_answers(is_opened: bool) -> None:
    num_reasoning = len("Hm.\n</think>") + (0 if is_opened else len(">\n"))
    with thinking("Hm.", "Hello.", is_opened=is_opened) as serving:
        choice, usage = ask(serving)
        assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("Hm.", "Hello.")
        assert usage["completion_tokens_details"] == {"reasoning_tokens": num_reasoning}
        response = serving.http.post("/v1/responses", json={"input": "hello"}).json()
        reasoning, message = response["output"]
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
        assert "encrypted_content" not in reasoning
        assert message["content"][0]["text"] == "Hello."
        assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": num_reasoning}
        answer = post(serving, max_tokens=400).json()
        thought, text = answer["content"]
        assert (thought["type"], thought["thinking"], text["text"]) == ("thinking", "Hm.", "Hello.")
        assert answer["usage"]["output_tokens_details"] == {"thinking_tokens": num_reasoning}


def test_streams_are_as_the_clients_types_have_them() -> None:
    with thinking("Hm.", "Hello.") as serving:
        events = read_events(post(serving, max_tokens=400, stream=True).text)
        deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
        assert sorted(set(deltas), key=deltas.index) == ["thinking_delta", "signature_delta", "text_delta"]
        check_events(serving.http.post("/v1/responses", json={"input": "hello", "stream": True}).text)


def test_thoughts_stay_text_where_that_is_set() -> None:
    with thinking("Hm.", "Hello.", is_opened=False, thinking_format="off") as serving:
        choice, usage = ask(serving)
    assert choice["message"]["content"] == "<think>\nHm.\n</think>\n\nHello."
    assert "completion_tokens_details" not in usage


@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("has_shortcuts", [False, True])
def test_a_budget_ends_a_thought_and_the_answer_goes_on(is_opened: bool, has_shortcuts: bool) -> None:
    engine = EngineConfig(debug_checks=True, forced_tokens=has_shortcuts, drafts=has_shortcuts)
    with thinking(LONG, "Hello.", is_opened=is_opened, engine=engine) as serving:
        answer = post(serving, max_tokens=400, thinking={"type": "enabled", "budget_tokens": 60}).json()
    thought, text = answer["content"]
    assert text["text"] == "Hello."
    assert thought["thinking"] == LONG[: len(thought["thinking"])]
    assert 57 <= len(thought["thinking"]) <= 60
    assert answer["stop_reason"] == "end_turn"


def test_a_thought_within_its_budget_is_left_alone() -> None:
    with thinking("Hm.", "Hello.", max_thinking=100) as serving:
        assert ask(serving)[0]["message"]["reasoning_content"] == "Hm."


def test_the_server_s_own_limit_holds_for_all() -> None:
    with thinking(LONG, "Hello.", max_thinking=40) as serving:
        choice, _ = ask(serving, reasoning_effort="high")
        assert choice["message"]["content"] == "Hello."
        assert len(choice["message"]["reasoning_content"]) <= 40
        answer = post(serving, max_tokens=400, thinking={"type": "enabled", "budget_tokens": 60}).json()
        assert len(answer["content"][0]["thinking"]) <= 40


def test_an_effort_stands_for_a_budget() -> None:
    with thinking(LONG, "Hello.") as serving:
        for effort, most in (("minimal", 256), ("low", 1024), ("high", 1 << 20)):
            choice, _ = ask(serving, reasoning_effort=effort, max_tokens=1500)
            assert choice["message"]["reasoning_content"] == LONG[:most].strip()
        response = serving.http.post(
            "/v1/responses", json={"input": "hello", "reasoning": {"effort": "minimal"}}
        ).json()
        assert response["reasoning"]["effort"] == "minimal"
        assert len(response["output"][0]["content"][0]["text"]) <= 256


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("off", [{"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}])
def test_thinking_can_be_switched_off(knows: bool, off: dict[str, Any]) -> None:
    """By the template where it knows how; else the thought is closed as soon as it is opened."""
    source = thinking_template(is_opened=True)
    source = source if knows else source.replace("enable_thinking", "unheard_of")
    with thinking(LONG, "Hello.", template=source) as serving:
        choice, usage = ask(serving, **off)
    assert choice["message"]["content"] == "Hello."
    assert "reasoning_content" not in choice["message"]
    assert ("completion_tokens_details" in usage) == (not knows)


@pytest.mark.parametrize("budget", [-1, "many", 1.5, True])
def test_a_budget_must_be_a_number(serving: Serving, budget: Any) -> None:
    response = post(serving, thinking={"type": "enabled", "budget_tokens": budget})
    assert response.status_code == 400
    assert "thinking.budget_tokens" in response.json()["error"]["message"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("has_shortcuts", [False, True])
@pytest.mark.parametrize("answer", ['{"n": 12}', "I would rather not."])
def test_a_grammar_holds_for_the_answer_alone(is_opened: bool, has_shortcuts: bool, answer: str) -> None:
    engine = EngineConfig(debug_checks=True, forced_tokens=has_shortcuts, drafts=has_shortcuts)
    with thinking("Not { JSON.", answer, is_opened=is_opened, engine=engine) as serving:
        choice, usage = ask(serving, response_format=JSON_ANSWER)
    assert choice["message"]["reasoning_content"] == "Not { JSON."
    jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
    if answer.startswith("{"):
        assert choice["message"]["content"] == answer
    assert (usage["hotloop"]["forced_tokens"] > 0) == has_shortcuts


def test_an_answer_without_a_thought_follows_its_grammar_too() -> None:
    script, template = '{"n": 7}', thinking_template()
    with Serving(script=[script], template=template) as serving:
        choice, _ = ask(serving, response_format=JSON_ANSWER)
    assert choice["message"]["content"] == script


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_calls_behind_a_thought(choice: str) -> None:
    with thinking("A <tool_call> is due.", CALL) as serving:
        answer, _ = ask(serving, tools=[tool("weather", WEATHER)], tool_choice=choice)
    assert answer["message"]["reasoning_content"] == "A <tool_call> is due."
    [call] = answer["message"]["tool_calls"]
    check_call(call["function"]["name"], call["function"]["arguments"])


def test_a_thought_leaves_room_for_an_answer_that_must_be_whole() -> None:
    with thinking(LONG, '{"n": 12}') as serving:
        for max_tokens in (60, 100, 333):
            choice, usage = ask(serving, response_format=JSON_ANSWER, max_tokens=max_tokens)
            jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
            assert choice["finish_reason"] in ("length", "stop")
            assert usage["completion_tokens"] <= max_tokens


def test_an_answer_that_is_cut_in_its_thought_has_told_it() -> None:
    with thinking(LONG, "Hello.") as serving:
        choice, _ = ask(serving, max_tokens=30)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["reasoning_content"] == LONG[:30].strip()
    assert choice["message"]["content"] == ""


def test_an_answer_that_goes_on_from_given_words_does_not_think() -> None:
    with Serving(script=["<think>\n\n</think>\n\nHello there."], template=thinking_template(is_opened=True)) as serving:
        messages = [*HELLO, {"role": "assistant", "content": "Hello"}]
        answer = post(serving, messages=messages, max_tokens=100).json()
    assert [block["text"] for block in answer["content"]] == [" there."]


def cached(usage: dict[str, Any]) -> int:
    return int(usage["prompt_tokens_details"]["cached_tokens"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("is_opened", [False, True])
def test_a_thought_is_found_again_inside_a_tool_loop_and_missed_behind_it(is_opened: bool) -> None:
    script = ["<think>\nI ask.\n</think>\n\nSure.\n" + CALL, "<think>\nI know.\n</think>\n\nFine.", "Bye."]
    tools = [tool("weather", WEATHER)]
    with Serving(script=script, template=thinking_template(is_opened=is_opened)) as serving:
        first, usage = ask(serving, tools=tools)
        num_first = usage["total_tokens"]
        messages = [*HELLO, first["message"], {"role": "tool", "content": "ok", "tool_call_id": "?"}]
        messages[-1]["tool_call_id"] = first["message"]["tool_calls"][0]["id"]
        second, usage = ask(serving, tools=tools, messages=messages)
        assert second["message"]["reasoning_content"] == "I know."
        assert cached(usage) >= num_first - 16  # all but what is left of a block
        assert not any("reasoning" in change for change in usage["hotloop"].get("changes", ()))
        messages += [second["message"], {"role": "user", "content": "bye"}]
        _, usage = ask(serving, tools=tools, messages=messages)
        assert cached(usage) < num_first - 16
        left_out = [f"messages[{i}]: the chat template leaves out its reasoning" for i in (1, 3)]
        assert [change for change in usage["hotloop"]["changes"] if "reasoning" in change] == left_out


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_response_is_continued_with_its_thought(is_kept: bool) -> None:
    """By its id, or by the items a client gives back, of whose thoughts it may have only what is sealed."""
    script = ["<think>\nI ask.\n</think>\n\n" + CALL, "Fine."]
    body: dict[str, Any] = {"tools": [function("weather", WEATHER)], "include": ["reasoning.encrypted_content"]}
    with Serving(script=script, template=thinking_template()) as serving:
        first = serving.http.post("/v1/responses", json={"input": "hello", **body}).json()
        reasoning, call = first["output"]
        assert reasoning["encrypted_content"].startswith("hotloop:")
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
        given: dict[str, Any] = {"previous_response_id": first["id"], "input": [result]}
        if not is_kept:
            sealed = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}
            given = {"input": [{"role": "user", "content": "hello"}, sealed, call, result]}
        second = serving.http.post("/v1/responses", json={**body, **given}).json()
        assert second["output"][-1]["content"][0]["text"] == "Fine."
        assert second["usage"]["input_tokens_details"]["cached_tokens"] >= first["usage"]["total_tokens"] - 16


@pytest.mark.parametrize("is_own", [True, False])
def test_a_message_is_continued_with_its_thought_if_that_is_its_own(is_own: bool) -> None:
    script = ["<think>\nI ask.\n</think>\n\n" + CALL, "Fine."]
    tools = [{"name": "weather", "input_schema": WEATHER}]
    with Serving(script=script, template=thinking_template()) as serving:
        first = post(serving, tools=tools, max_tokens=400).json()
        thought, call = first["content"]
        if not is_own:
            thought = {**thought, "signature": "another's"}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "ok"}
        turns = [{"role": "assistant", "content": [thought, call]}, {"role": "user", "content": [result]}]
        second = post(serving, tools=tools, max_tokens=400, messages=[*HELLO, *turns]).json()
    usage = first["usage"]
    num_first = usage["input_tokens"] + usage["output_tokens"]
    assert (second["usage"]["cache_read_input_tokens"] >= num_first - 16) == is_own


OMITTED = {"thinking": {"type": "adaptive", "display": "omitted"}}


def test_a_thought_that_is_not_shown_is_in_its_signature() -> None:
    with thinking("Hm.", "Hello.") as serving:
        thought, text = post(serving, max_tokens=400, **OMITTED).json()["content"]
        events = read_events(post(serving, max_tokens=400, stream=True, **OMITTED).text)
        wrong = post(serving, thinking={"type": "adaptive", "display": "hidden"})
    assert (thought["type"], thought["thinking"], text["text"]) == ("thinking", "", "Hello.")
    assert unseal_text(thought["signature"]) == "Hm."
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert deltas[0] == {"type": "signature_delta", "signature": thought["signature"]}
    assert {delta["type"] for delta in deltas[1:]} == {"text_delta"}
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1]
    assert wrong.status_code == 400
    assert "thinking.display: expected summarized or omitted" in wrong.json()["error"]["message"]


def test_a_thought_that_is_cut_and_not_shown_is_closed() -> None:
    with thinking(LONG, "Hello.") as serving:
        [thought] = post(serving, max_tokens=30, **OMITTED).json()["content"]
        events = read_events(post(serving, max_tokens=30, stream=True, **OMITTED).text)
    assert unseal_text(thought["signature"]) == LONG[:30].strip()
    assert [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"] == ["signature_delta"]


@pytest.mark.parametrize("returned", ["", "something else"])
def test_a_message_is_continued_with_a_thought_that_was_not_shown(returned: str) -> None:
    """Whatever stands in place of its text: the signature counts."""
    script = ["<think>\nI ask.\n</think>\n\n" + CALL, "Fine."]
    asked = {"tools": [{"name": "weather", "input_schema": WEATHER}], "max_tokens": 400, **OMITTED}
    with Serving(script=script, template=thinking_template()) as serving:
        first = post(serving, **asked).json()
        thought, call = first["content"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "ok"}
        said = [{**thought, "thinking": returned}, call]
        turns = [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
        second = post(serving, messages=[*HELLO, *turns], **asked).json()
    num_first = first["usage"]["input_tokens"] + first["usage"]["output_tokens"]
    assert second["usage"]["cache_read_input_tokens"] >= num_first - 16


HARMONY_CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome", "days": 3}'
ANALYSIS = "<|channel|>analysis<|message|>I ask.<|end|><|start|>assistant"


class ChannelBackend(ScriptedBackend):
    """An answer may have several messages: what was said begins behind what the user or a tool said last."""

    def _next_token(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> int:
        text = self._spell(token_ids)
        _, *answers = re.split(rb"<\|start\|>(?:user|tool)<\|message\|>[^<]*<\|end\|>", text)
        said = answers[-1].partition(self._opening)[2]
        return self._places[len(answers) - 1].get(said, self._end_id)


def channels(*script: str) -> Serving:
    backend = ChannelBackend(HARMONY, script, opening="<|start|>assistant", num_blocks=512)
    return Serving(backend=backend, tokenizer=HARMONY, template=HARMONY_TEMPLATE)


def test_channels_through_a_tool_loop() -> None:
    with channels(ANALYSIS + HARMONY_CALL, ANALYSIS + "<|channel|>final<|message|>Fine.") as serving:
        tools = [tool("weather", WEATHER)]
        first, usage = ask(serving, tools=tools)
        assert (first["finish_reason"], first["message"]["reasoning_content"]) == ("tool_calls", "I ask.")
        assert not first["message"]["content"]
        [call] = first["message"]["tool_calls"]
        check_call(call["function"]["name"], call["function"]["arguments"])
        result = {"role": "tool", "content": "ok", "tool_call_id": call["id"]}
        second, later = ask(serving, tools=tools, messages=[*HELLO, first["message"], result])
        assert (second["message"]["reasoning_content"], second["message"]["content"]) == ("I ask.", "Fine.")
        assert cached(later) >= usage["total_tokens"] - 16


def test_a_grammar_holds_for_the_final_channel() -> None:
    with channels(ANALYSIS + "<|channel|>final<|message|>I would rather not.") as serving:
        choice, _ = ask(serving, response_format=JSON_ANSWER)
    assert choice["message"]["reasoning_content"] == "I ask."
    jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
