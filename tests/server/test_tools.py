"""Tool calls on the wire, through the real `openai` client.

The shared server's model writes nonsense, and under a grammar valid nonsense; where it matters what is said, there is
a script.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from tests.server.calls import TOOLS, WEATHER, check_call, named, reassemble, tool, write_call
from tests.server.serving import HELLO, MODEL, Pause, Serving, check_error

from hotloop.core.config import ServerConfig

PARIS = write_call("weather", city="Paris", days=2)
ROME = write_call("weather", city="Rome", days=3)
CLOCK = write_call("clock")
BOTH = PARIS + "\n" + CLOCK


@contextmanager
def saying(*script: str, config: ServerConfig | None = None) -> Iterator[openai.OpenAI]:
    """A client of a server whose model says this."""
    with Serving(config, script=script) as serving, serving.openai() as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> ChatCompletion:
    fields = {"messages": HELLO, "tools": TOOLS, "max_tokens": 400} | fields
    return client.chat.completions.create(model=MODEL, **fields)  # type: ignore[no-any-return]


def calls_of(answer: ChatCompletion, index: int = 0) -> list[tuple[str, dict[str, Any]]]:
    calls = answer.choices[index].message.tool_calls or ()
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]  # type: ignore[union-attr]


@pytest.mark.parametrize("temperature", [0, 1])
def test_required(client: openai.OpenAI, temperature: float) -> None:
    answer = ask(client, tool_choice="required", parallel_tool_calls=False, temperature=temperature, seed=1)
    [choice] = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert call.id.startswith("call_")
    check_call(call.function.name, call.function.arguments)


@pytest.mark.parametrize("name", ["weather", "clock"])
def test_a_named_tool_is_the_one_that_is_called(client: openai.OpenAI, name: str) -> None:
    answer = ask(client, tool_choice=named(name), parallel_tool_calls=False, seed=1)
    assert [called for called, _ in calls_of(answer)] == [name]
    assert answer.choices[0].finish_reason == "stop", "as OpenAI has it"


def test_what_the_schema_forbids_is_not_said() -> None:
    with saying(write_call("weather", city="Berlin", days=99)) as client:
        answer = ask(client, tool_choice="required", parallel_tool_calls=False)
        assert answer.choices[0].message.tool_calls
        for call in answer.choices[0].message.tool_calls:
            check_call(call.function.name, call.function.arguments)  # type: ignore[union-attr]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("script", ["Just words.", "Let me look.\n" + PARIS, PARIS, BOTH], ids=range(4))
def test_auto_leaves_the_choice_to_the_model(script: str, stream: bool) -> None:
    words, mark, calls = script.partition("<tool_call>")
    expected = [("weather", {"city": "Paris", "days": 2}), ("clock", {})][: (mark + calls).count("<tool_call>")]
    with saying(script) as client:
        if stream:
            chunks = list(ask(client, stream=True))
            text, pieces = reassemble(chunks)  # type: ignore[arg-type]
            called = [(name, json.loads(arguments)) for _, name, arguments in pieces]
            reason = chunks[-1].choices[0].finish_reason  # type: ignore[attr-defined]
        else:
            answer = ask(client)
            text, called = answer.choices[0].message.content, calls_of(answer)
            reason = answer.choices[0].finish_reason
    assert (text or "").strip() == words.strip()
    assert called == expected
    assert reason == ("tool_calls" if expected else "stop")


@pytest.mark.parametrize("name", ["required", "auto"])
def test_parallel_calls_may_be_forbidden(name: str) -> None:
    with saying(BOTH) as client:
        both = ask(client, tool_choice=name)
        one = ask(client, tool_choice=name, parallel_tool_calls=False)
    assert [called for called, _ in calls_of(both)] == ["weather", "clock"]
    assert [called for called, _ in calls_of(one)] == ["weather"]
    assert both.choices[0].message.tool_calls
    assert len({call.id for call in both.choices[0].message.tool_calls}) == 2


def test_none_leaves_the_prompt_alone_and_takes_calls_for_text() -> None:
    with saying(PARIS) as client:
        called, silent = ask(client), ask(client, tool_choice="none")
    assert (silent.choices[0].message.content, silent.choices[0].message.tool_calls) == (PARIS, None)
    assert silent.choices[0].finish_reason == "stop"
    assert called.usage
    assert silent.usage
    assert called.usage.prompt_tokens == silent.usage.prompt_tokens


def test_allowed_tools(client: openai.OpenAI) -> None:
    def allow(*names: str) -> dict[str, Any]:
        allowed = {"mode": "required", "tools": [named(name) for name in names]}
        return {"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}, "parallel_tool_calls": False}

    for name in ("weather", "clock"):
        answer = ask(client, **allow(name))
        assert [called for called, _ in calls_of(answer)] == [name]
        assert answer.choices[0].finish_reason == "tool_calls"
    with pytest.raises(openai.BadRequestError, match="'nothing'") as caught:
        ask(client, **allow("nothing"))
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("choice", ["required", named("weather")], ids=["required", "named"])
def test_a_stream_reassembles_to_the_same_calls(client: openai.OpenAI, choice: Any) -> None:
    fields = {"tool_choice": choice, "parallel_tool_calls": False, "n": 3, "seed": 5, "temperature": 1}
    whole = ask(client, **fields)
    chunks: Any = list(ask(client, **fields, stream=True))
    for index in range(3):
        text, pieces = reassemble(chunks, index)
        assert text is None
        assert [(name, json.loads(arguments)) for _, name, arguments in pieces] == calls_of(whole, index)
        reasons = [c.finish_reason for chunk in chunks for c in chunk.choices if c.index == index and c.finish_reason]
        assert reasons == [whole.choices[index].finish_reason]
    opened = [c.delta for chunk in chunks for c in chunk.choices if c.delta.role]
    assert [(delta.role, delta.content) for delta in opened] == [("assistant", None)] * 3


def test_arguments_arrive_in_pieces_as_they_were_written() -> None:
    pause = Pause(len(PARIS) - 20)
    chunks: list[Any] = []
    with Serving(script=[PARIS], on_run=pause) as serving, serving.openai() as client:
        for chunk in ask(client, stream=True, extra_body={"shortcuts": False}):
            chunks.append(chunk)
            if any(arguments for _, _, arguments in reassemble(chunks)[1]):
                pause.end()
    text, [(_, name, arguments)] = reassemble(chunks)
    assert (text, name, arguments) == (None, "weather", '{"city": "Paris", "days": 2}')


def test_a_call_that_is_cut_says_so() -> None:
    with saying(PARIS) as client:
        for stream in (False, True):
            answer: Any = ask(client, max_tokens=len(PARIS) - 25, stream=stream)
            last = list(answer)[-1] if stream else answer
            assert last.choices[0].finish_reason == "length"


def test_a_stop_string_is_no_call() -> None:
    with saying("Stop here. " + PARIS) as client:
        answer = ask(client, stop="here")
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Stop ", "stop")


def test_schemas_are_followed_unless_somebody_says_otherwise() -> None:
    wild = write_call("weather", planet="Mars")
    strict, loose = ([tool("weather", WEATHER, strict=is_strict)] for is_strict in (True, False))
    with saying(wild) as client:
        assert calls_of(ask(client))[0][1].keys() == {"city", "days"}
        assert calls_of(ask(client, tools=loose)) == [("weather", {"planet": "Mars"})]
    with saying(wild, config=ServerConfig(port=0, strict_tools=False)) as client:
        assert calls_of(ask(client)) == [("weather", {"planet": "Mars"})]
        assert calls_of(ask(client, tools=strict))[0][1].keys() == {"city", "days"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_said", [True, False], ids=["strict: false", "disabled"])
def test_without_strict_a_call_is_still_one_of_a_tool_and_json(is_said: bool, stream: bool) -> None:
    wild = 'Well.\n<tool_call>\n{"name": "planet", "arguments": {"days": five, "city": "Rome"}}\n</tool_call>'
    tools = [tool("weather", WEATHER, **({"strict": False} if is_said else {}))]
    with saying(wild, config=ServerConfig(port=0, strict_tools=is_said)) as client:
        if stream:
            text, calls = reassemble(ask(client, tools=tools, stream=True))  # type: ignore[arg-type]
            written = [(name, arguments) for _, name, arguments in calls]
        else:
            [choice] = ask(client, tools=tools).choices
            text, given = choice.message.content, choice.message.tool_calls or ()
            written = [(call.function.name, call.function.arguments) for call in given]  # type: ignore[union-attr]
    [(name, arguments)] = written
    assert ((text or "").strip(), name) == ("Well.", "weather")
    assert isinstance(json.loads(arguments), dict)


@pytest.mark.long
def test_without_strict_a_call_that_is_cut_is_json() -> None:
    wild = 'Well.\n<tool_call>\n{"name": "weather", "arguments": {"days": five}}\n</tool_call>'
    tools = [tool("weather", WEATHER, strict=False), tool("clock", strict=False)]
    num_calls = 0
    with saying(wild) as client:
        for seed in range(0, 40, 2):
            done = ask(client, tools=tools, max_tokens=120 + 5 * seed, seed=seed)
            assert all(isinstance(arguments, dict) for _, arguments in calls_of(done))
            num_calls += len(calls_of(done))
    assert num_calls >= 10


@pytest.mark.parametrize(
    ("arguments", "is_broken"), [({"city": "Rome", "days": "two"}, True), ({"city": "Rome", "days": 2}, False)]
)
def test_without_strict_what_breaks_the_schema_is_told(arguments: dict[str, Any], is_broken: bool) -> None:
    tools = [tool("weather", WEATHER, strict=False)]
    with Serving(script=[write_call("weather", **arguments)]) as serving:
        body = serving.chat(tools=tools, max_tokens=300).json()
    [call] = body["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == arguments
    changes = body["usage"]["hotloop"].get("changes", [])
    broken = "tools[0].function.parameters: the arguments of weather do not follow the schema: days breaks type"
    assert any(change.startswith(broken) for change in changes) == is_broken
    assert not any("not enforced" in change for change in changes), "nobody asked for it"


def test_logprobs_cover_every_token() -> None:
    with saying(PARIS) as client:
        fields = {"logprobs": True, "top_logprobs": 1, "tool_choice": "required", "parallel_tool_calls": False}
        whole = ask(client, **fields)
        chunks: Any = list(ask(client, **fields, stream=True))
    assert whole.choices[0].logprobs
    assert whole.choices[0].logprobs.content
    tokens = [item.token for item in whole.choices[0].logprobs.content]
    assert "".join(tokens).startswith(PARIS)
    streamed = [choice.logprobs.content for chunk in chunks for choice in chunk.choices if choice.logprobs]
    assert [item.token for content in streamed for item in content] == tokens


def test_a_conversation_with_calls_goes_on() -> None:
    with saying(BOTH, ROME, "Done.") as client:
        messages: list[Any] = [*HELLO]
        for expected in (["weather", "clock"], ["weather"], []):
            answer = ask(client, messages=messages)
            assert [name for name, _ in calls_of(answer)] == expected
            messages.append(answer.choices[0].message.model_dump(exclude_none=True))
            called = answer.choices[0].message.tool_calls or ()
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "fine"} for call in called]
    assert answer.choices[0].message.content == "Done."


def test_usage_tells_how_the_tokens_came_about(serving: Serving) -> None:
    fields = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 400, "n": 2}
    usages = [serving.chat(**fields, temperature=0, shortcuts=shortcuts).json()["usage"] for shortcuts in (True, False)]
    for usage in usages:
        extra = usage["hotloop"]
        work = {"sampled_tokens", "forced_tokens", "drafted_tokens", "accepted_tokens", "steps"}
        reading = {"new_tokens", "recomputed_tokens", "block_tokens", "causes", "changes"}
        assert set(extra) == work | {"restored_tokens", "host_tokens", "waits_ms"} | reading
        assert extra["sampled_tokens"] + extra["forced_tokens"] == usage["completion_tokens"]
        assert extra["accepted_tokens"] <= extra["drafted_tokens"]
    fast, slow = usages
    assert fast["completion_tokens"] == slow["completion_tokens"]
    assert fast["hotloop"]["steps"] < slow["hotloop"]["steps"]
    assert fast["hotloop"]["forced_tokens"] > 20
    plain = serving.complete(max_tokens=3, ignore_eos=True).json()["usage"]["hotloop"]
    assert plain["sampled_tokens"] == 3


UNIQUE = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [tool("two words")]}, "tools", "two words"),
    ({"tools": [tool("x" * 65)]}, "tools", "x"),
    ({"tools": [tool("f"), tool("f")]}, "tools", "f"),
    ({"tools": [tool("f", {"type": "array"})]}, "tools", "array"),
    ({"tools": [tool("f", object_of(a={"type": "cheese"}))]}, "tools", "properties.a: 'type' cannot be 'cheese'"),
    ({"tools": [tool("f", object_of(a=UNIQUE), strict=True)]}, "tools", "properties.a: 'uniqueItems'"),
    ({"tools": [tool("f", object_of(a=UNIQUE), strict=True)]}, "tools", "without strict: true"),
    ({"tools": [tool("f", object_of(a={"$ref": "http://x/y"}), strict=True)]}, "tools", "$ref"),
    ({"tools": [*TOOLS, tool("f", {"type": "object", "properties": {"a": 5}})]}, "tools", "tools[2].function.param"),
    ({"tools": [*TOOLS, tool("f", object_of(a=UNIQUE), strict=True)]}, "tools", "tools[2].function.parameters"),
    ({"tool_choice": named("nothing")}, "tool_choice", "nothing"),
    ({"tools": [], "tool_choice": "required"}, "tool_choice", "tools"),
    ({"tools": None, "tool_choice": named("weather")}, "tool_choice", "no tools"),
]


@pytest.mark.parametrize(("fields", "param", "word"), BAD, ids=str)
def test_what_cannot_be_is_refused_by_name(serving: Serving, fields: dict[str, Any], param: str, word: str) -> None:
    for stream in (False, True):
        error = check_error(serving.chat(**{"tools": TOOLS} | fields, stream=stream), 400, "invalid_value")
        assert error["param"].split("[")[0] == param
        assert word in error["message"]


ODD: list[tuple[Any, str]] = [
    (UNIQUE, "properties.a: 'uniqueItems'"),
    ({"type": "array", "contains": {"const": 1}}, "properties.a: 'contains'"),
    ({"type": "string", "pattern": "^(?!x)"}, "properties.a: 'pattern'"),
    ({"type": "string", "not": {"pattern": "x"}}, "properties.a: 'not'"),
    ({"oneOf": [{"type": "string"}, {"type": "string", "pattern": "x"}]}, "properties.a: 'oneOf'"),
    ({"type": "object", "properties": {"b": {}}, "propertyNames": {"pattern": "^b"}}, "properties.a: 'propertyNames'"),
    ({"$ref": "http://x/y"}, "properties.a"),
    ({"$ref": "#/nowhere"}, "properties.a"),
    ({"patternProperties": {"x": {}, "y": {}}}, "properties.a"),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(("schema", "told"), ODD, ids=str)
def test_an_odd_tool_is_enforced_as_far_as_possible(serving: Serving, schema: Any, told: str, choice: str) -> None:
    tools = [*TOOLS, tool("odd", object_of(a=schema))]
    usage = serving.chat(tools=tools, tool_choice=choice, max_tokens=60).json()["usage"]
    [change] = [change for change in usage["hotloop"]["changes"] if "not enforced" in change]
    assert change.startswith("tools[2].function.parameters: ")
    assert told in change


def test_what_is_not_enforced_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with Serving() as serving:
        for _ in range(3):
            serving.chat(tools=[tool("odd", object_of(a=UNIQUE))], max_tokens=5)
    assert [record.getMessage() for record in caplog.records if "not enforced" in record.getMessage()] == [
        "tool odd: not enforced, but checked afterwards: properties.a: 'uniqueItems'"
    ]


@pytest.mark.parametrize(("values", "is_broken"), [(["x", "x"], True), (["x", "y"], False)])
def test_a_call_is_checked_for_what_was_not_enforced(values: list[str], is_broken: bool) -> None:
    odd = tool("odd", object_of(a=UNIQUE))
    with Serving(script=[write_call("odd", a=values)]) as serving:
        answer = serving.chat(tools=[odd], max_tokens=300, tool_choice="required", parallel_tool_calls=False).json()
        lines = serving.chat(tools=[odd], max_tokens=300, stream=True, stream_options={"include_usage": True}).text
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"a": values}
    broken = "the arguments of odd do not follow the schema: a breaks uniqueItems true"
    assert (f"tools[0].function.parameters: {broken}" in answer["usage"]["hotloop"]["changes"]) == is_broken
    assert (broken in lines) == is_broken


def test_a_required_key_without_a_property_can_be_written() -> None:
    odd = tool("odd", {"type": "object", "properties": {}, "required": ["x"]}, strict=True)
    with Serving(script=[write_call("odd", x=[1])]) as serving:
        answer = serving.chat(tools=[odd], max_tokens=300, tool_choice="required", parallel_tool_calls=False).json()
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"x": [1]}
