"""Answers judged, thrown away and asked for again; and rendered as the stream that was wanted."""

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from hotloop.router.tiers.cascade import Cascaded, cascade, judged_body, render_stream, strip_logprobs
from hotloop.router.tiers.config import CascadeConfig, Tier, TiersConfig
from hotloop.router.tiers.judge import find_doubt, judge
from hotloop.router.tiers.tiers import Reply, TierChoice

TIERS = TiersConfig(tuple(Tier(name=name, model=f"{name}-model") for name in ("s", "m", "l")))
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "kind": {"enum": ["a", "b"]},
        "deep": {"type": "array", "items": {"type": "object", "required": ["x"]}},
        "any": {"type": ["string", "null"]},
    },
    "required": ["n"],
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
SHAPE = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}


def answer(text: str | None = "fine", *, calls: Any = None, end: str = "stop", logprobs: Any = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": end, "logprobs": logprobs}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}


def call(name: str = "f", arguments: str = '{"n": 1}') -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def tokens(*logprobs: float, others: float | None = None) -> dict[str, Any]:
    tops = [{"token": "t", "logprob": 0.0}] + ([{"token": "u", "logprob": others}] if others is not None else [])
    return {"content": [{"token": "t", "logprob": each, "top_logprobs": tops} for each in logprobs]}


@pytest.mark.parametrize(
    ("given", "request_", "fault"),
    [
        (answer(), {}, ""),
        ({}, {}, "not a chat completion"),
        (answer(calls=3), {}, "not a chat completion"),
        (answer(calls=[3]), {}, "not a chat completion"),
        (answer(["x"]), {"response_format": {"type": "json_object"}}, "not a chat completion"),
        ({"choices": [*answer()["choices"], 3]}, {}, "not a chat completion"),
        (answer(end="length"), {}, "cut off"),
        (answer(""), {}, "empty"),
        (answer(None), {}, "empty"),
        (answer(None, calls=[call()]), {"tools": TOOLS}, ""),
        (answer(None, calls=[call(arguments="")]), {"tools": TOOLS}, 'the arguments of f: it breaks required ["n"]'),
        (answer(None, calls=[call(arguments='{"n"')]), {"tools": TOOLS}, "the arguments of f are not JSON"),
        (answer(None, calls=[call(arguments="[]")]), {"tools": TOOLS}, 'the arguments of f: it breaks type "object"'),
        (answer(None, calls=[call(), call("g")]), {"tools": TOOLS}, "there is no tool g"),
        (answer(None, calls=[{}]), {"tools": TOOLS}, "a call without a name or arguments"),
        (answer(), {"tools": TOOLS, "tool_choice": "auto"}, ""),
        (answer(), {"tools": TOOLS, "tool_choice": "required"}, "no call"),
        (answer(), {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "no call"),
        (answer("{}"), {"response_format": {"type": "json_object"}}, ""),
        (answer("[]"), {"response_format": {"type": "json_object"}}, 'the answer: it breaks type "object"'),
        (answer("Sure!"), SHAPE, "the answer is not JSON"),
        (answer('{"n": 1.0, "kind": "a", "any": null}'), SHAPE, ""),
        (answer('{"n": true}'), SHAPE, 'the answer: n breaks type "integer"'),
        (answer('{"n": 1, "kind": "c"}'), SHAPE, 'the answer: kind breaks enum ["a", "b"]'),
        (answer('{"n": 1, "deep": [{"x": 1}, {}]}'), SHAPE, 'the answer: deep[1] breaks required ["x"]'),
        (answer('{"n": 1, "any": 3}'), SHAPE, 'the answer: any breaks type ["string", "null"]'),
        (answer("yes"), {"choice": ["yes", "no"]}, ""),
        (answer("Yes, of course"), {"structured_outputs": {"choice": ["yes", "no"]}}, "none of the choices"),
    ],
)
def test_faults(given: dict[str, Any], request_: dict[str, Any], fault: str):
    assert judge(given, request_, CascadeConfig(on=("invalid_output",))) == fault


def test_doubts():
    config = CascadeConfig(min_logprob=-0.5)
    assert find_doubt(answer(logprobs=tokens(-0.1, -0.5)), {}, config) == ""
    assert find_doubt(answer(logprobs=tokens(-0.1, -1.5)), {}, config) == "mean logprob -0.80"
    assert find_doubt(answer(), {}, config) == "", "whoever tells nothing is believed"
    close = CascadeConfig(min_margin=0.5)
    assert find_doubt(answer(logprobs=tokens(-0.1, others=-0.4)), {}, close) == "margin 0.30"
    assert find_doubt(answer(logprobs=tokens(-0.1, others=-3.0)), {}, close) == ""
    assert find_doubt(answer(logprobs=tokens(-0.1)), {}, close) == "", "alone there is nobody to be close to"


@pytest.mark.parametrize("request_", [{"tools": TOOLS}, SHAPE, {"choice": ["a"]}])
def test_what_a_shape_imposes_is_no_doubt_of_the_model(request_: dict[str, Any]):
    imposed = tokens(-9.0, others=-0.1)["content"]
    chosen = tokens(-0.2, others=-2.0)["content"]
    given = answer(logprobs={"content": imposed + chosen})
    assert find_doubt(given, request_, CascadeConfig(min_margin=0.5)) == ""
    assert find_doubt(given, {}, CascadeConfig()) == "mean logprob -4.60"
    assert find_doubt(answer(logprobs={"content": imposed}), request_, CascadeConfig()) == ""


def test_only_what_the_cascade_minds_is_judged():
    cut, unsure = answer(end="length"), answer(logprobs=tokens(-3.0))
    assert judge(cut, {}, CascadeConfig()) == "cut off"
    assert not judge(cut, {}, CascadeConfig(on=("low_confidence",)))
    assert judge(unsure, {}, CascadeConfig()) == "mean logprob -3.00"
    assert not judge(unsure, {}, CascadeConfig(on=("invalid_output",)))
    unsure_call = answer(None, calls=[call()], logprobs=tokens(-3.0))
    assert not judge(unsure_call, {"tools": TOOLS}, CascadeConfig())
    assert judge(unsure_call, {"tools": TOOLS}, CascadeConfig(judge_calls=True)) == "mean logprob -3.00"
    for nothing, reason in ((None, "no answer"), ({"error": "late"}, "not a chat completion")):
        assert judge(nothing, {}, CascadeConfig(on=())) == reason, "that is minded by everybody"


class Script:
    """Answers in turn; None for a failure."""

    def __init__(self, *answers: Mapping[str, Any] | None) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._answers = iter(answers)

    async def __call__(self, tier: Tier, body: dict[str, Any]) -> Reply:
        self.asked.append((tier.name, body))
        return Reply(next(self._answers), 0.5)


async def run(script: Script, first: str = "s", **request: Any) -> Cascaded:
    choice = TierChoice(first, f"{first}-model", "task qa")
    return await cascade(TIERS, CascadeConfig(), choice, {"messages": [], "stream": True, **request}, script)


async def test_a_good_answer_is_taken():
    script = Script(answer(logprobs=tokens(-0.1)))
    cascaded = await run(script)
    assert cascaded.answer
    assert cascaded.answer["choices"][0]["logprobs"] is None, "the client did not ask for them"
    assert (cascaded.choice.tier, cascaded.choice.reason, len(cascaded.attempts)) == ("s", "task qa", 1)
    [(name, body)] = script.asked
    assert (name, body["model"], body["logprobs"], body["stream"]) == ("s", "s-model", True, True)


async def test_an_answer_that_goes_on_is_taken_and_one_that_was_stopped_is_not() -> None:
    replies = iter((Reply(answer(), doubt="mean logprob -3.00"), Reply(None, is_live=True)))

    async def ask(tier: Tier, body: dict[str, Any]) -> Reply:
        return next(replies)

    cascaded = await cascade(TIERS, CascadeConfig(), TierChoice("s", "s-model", "default"), {"stream": True}, ask)
    assert (cascaded.is_live, cascaded.answer) == (True, None)
    assert cascaded.choice == TierChoice("m", "m-model", "s: mean logprob -3.00")
    assert [each.tier.name for each in cascaded.attempts] == ["s"]


async def test_it_goes_up_a_tier_at_a_time_and_leaves_the_largest_to_the_caller():
    script = Script(answer(end="length"), None)
    cascaded = await run(script)
    assert [name for name, _ in script.asked] == ["s", "m"]
    assert cascaded.answer is None
    assert cascaded.choice == TierChoice("l", "l-model", "m: no answer")
    assert [each.doubt for each in cascaded.attempts] == ["cut off", "no answer"]


async def test_the_largest_is_not_judged():
    script = Script()
    cascaded = await run(script, "l")
    assert (cascaded.answer, cascaded.attempts, script.asked) == (None, (), [])


def test_probabilities_are_asked_for_where_they_matter_and_kept_where_they_were_asked_for():
    request = {"messages": [], "logprobs": True, "top_logprobs": 5, "stream_options": {}}
    assert judged_body(request, "m", CascadeConfig(min_margin=0.1)) == {
        "messages": [],
        "model": "m",
        "logprobs": True,
        "top_logprobs": 5,
    }
    assert judged_body({}, "m", CascadeConfig())["top_logprobs"] == 2
    assert judged_body({}, "m", CascadeConfig(on=("invalid_output",))) == {"model": "m"}
    assert "logprobs" not in judged_body({"tools": TOOLS}, "m", CascadeConfig())
    assert "logprobs" in judged_body({"tools": TOOLS}, "m", CascadeConfig(judge_calls=True))
    given = answer(logprobs=tokens(-0.1))
    assert strip_logprobs(given, request) == given


def chunks_of(given: dict[str, Any], **request: Any) -> list[dict[str, Any]]:
    *events, done = list(render_stream(given, request))
    assert done == b"data: [DONE]\n\n"
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


def test_text_as_a_stream():
    chunks = chunks_of(answer("hello"), stream_options={"include_usage": True})
    *pieces, last = chunks
    assert [chunk["object"] for chunk in chunks] == ["chat.completion.chunk"] * 4
    deltas = [chunk["choices"][0]["delta"] for chunk in pieces]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "hello"}, {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in pieces] == [None, None, "stop"]
    assert (chunks[0]["usage"], last["choices"], last["usage"]["prompt_tokens"]) == (None, [], 3)


def test_probabilities_come_with_the_text():
    chunks = chunks_of(answer("hello", logprobs=tokens(-0.1)))
    assert [chunk["choices"][0].get("logprobs") is not None for chunk in chunks] == [False, True, False]


def test_calls_as_a_stream():
    chunks = chunks_of(answer(None, calls=[call(), call("g")], end="tool_calls"))
    begun, first, second, _ = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert begun == {"role": "assistant", "content": None}
    assert (first, second) == ({"tool_calls": [{"index": 0, **call()}]}, {"tool_calls": [{"index": 1, **call("g")}]})
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert "usage" not in chunks[-1]


@pytest.mark.parametrize("given", [answer("hello"), answer(None, calls=[call(), call("g")], end="tool_calls")])
async def test_the_openai_client_reads_the_stream(given: dict[str, Any]):
    def respond(request: httpx.Request) -> httpx.Response:
        body = b"".join(render_stream(given, json.loads(request.content)))
        return httpx.Response(200, content=body, headers={"content-type": "text/event-stream"})

    http = httpx.AsyncClient(transport=httpx.MockTransport(respond))
    options = {"model": "auto", "messages": [], "stream_options": {"include_usage": True}}
    async with (
        AsyncOpenAI(base_url="http://router/v1", api_key="x", http_client=http) as client,
        client.chat.completions.stream(**options) as stream,
    ):
        read = await stream.get_final_completion()
    wanted = given["choices"][0]
    assert (read.choices[0].message.content, read.choices[0].finish_reason) == (
        wanted["message"]["content"],
        wanted["finish_reason"],
    )
    calls = [
        (each.id, each.function.name, each.function.arguments) for each in read.choices[0].message.tool_calls or []
    ]
    made = wanted["message"]["tool_calls"] or []
    assert calls == [(each["id"], each["function"]["name"], each["function"]["arguments"]) for each in made]
    assert read.usage
    assert read.usage.prompt_tokens == 3
