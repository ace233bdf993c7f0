"""Answers that must look like something, on both endpoints, in every word there is for it."""

import json
import random
import re
import threading
from typing import Any, ClassVar

import jsonschema
import openai
import pytest
from llguidance import LLParserLimits
from tests.engine.tiny import byte_tokenizer
from tests.server.calls import TOOLS, WEATHER, write_call
from tests.server.serving import HELLO, MODEL, Serving, check_error

from hotloop.core.config import EngineConfig
from hotloop.engine.grammar import matcher, trial
from hotloop.models.tokenizer import Tokenizer

REGEX = r"[a-c]{3}-[0-9]{2}"
CHOICES = ["yes", 'say "no"', "back\\slash\n", "\x7f€ %json {}", "a|b"]
LARK = 'start: "<" word ">"\nword: /[xyz]{2}/'


def text_of(response: Any) -> str:
    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    assert choice["finish_reason"] == "stop"
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


def ask_both(serving: Serving, **fields: Any) -> list[str]:
    fields = {"max_tokens": 400, "temperature": 1, "seed": 3, **fields}
    return [text_of(serving.chat(**fields)), text_of(serving.complete(**fields))]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER, "strict": False}}},
        {"structured_outputs": {"json": WEATHER}},
        {"structured_outputs": {"json": json.dumps(WEATHER)}},
        {"guided_json": WEATHER},
        {"guided_json": json.dumps(WEATHER)},
        {"response_format": {"type": "json_object", "schema": WEATHER}},
    ],
    ids=range(7),
)
def test_json_schema(serving: Serving, fields: dict[str, Any]) -> None:
    for text in ask_both(serving, **fields):
        jsonschema.validate(json.loads(text), WEATHER)
        assert re.fullmatch(r'\{"city": "\w+", "days": \d\}', text)


@pytest.mark.parametrize("name", ["regex", "guided_regex", "structured_outputs"])
def test_regex(serving: Serving, name: str) -> None:
    value = {"regex": REGEX} if name == "structured_outputs" else REGEX
    assert all(re.fullmatch(REGEX, text) for text in ask_both(serving, **{name: value}))


@pytest.mark.parametrize("name", ["choice", "guided_choice", "structured_outputs"])
def test_choice(serving: Serving, name: str) -> None:
    value = {"choice": CHOICES} if name == "structured_outputs" else CHOICES
    assert set(ask_both(serving, **{name: value})) <= set(CHOICES)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_can_be_made(serving: Serving, choice: str) -> None:
    assert ask_both(serving, choice=[choice]) == [choice] * 2


@pytest.mark.parametrize("name", ["grammar", "guided_grammar", "structured_outputs"])
def test_grammar(serving: Serving, name: str) -> None:
    value = {"grammar": LARK} if name == "structured_outputs" else LARK
    assert all(re.fullmatch("<[xyz]{2}>", text) for text in ask_both(serving, **{name: value}))


@pytest.mark.parametrize(
    "fields", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}], ids=str
)
def test_json_object(fields: dict[str, Any]) -> None:
    with Serving(script=['{"a": [1, {"b": null}], "c": "d"}']) as serving:
        assert json.loads(text_of(serving.chat(**fields, max_tokens=99))) == {"a": [1, {"b": None}], "c": "d"}
    with Serving(script=['["not an object"]']) as serving:
        text = serving.chat(**fields, max_tokens=99).json()["choices"][0]["message"]["content"]
        assert text.startswith("{")


def test_a_stream_is_held_to_it_too(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=50, n=2, stream=True, extra_body={"regex": REGEX}
    )
    texts = ["", ""]
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert all(re.fullmatch(REGEX, text) for text in texts)


FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}}


def test_with_tools_the_answer_is_calls_or_json() -> None:
    answer = '{"city": "Rome", "days": 1}'
    said: list[tuple[str | None, list[str]]] = []
    with Serving(script=[write_call("clock"), answer, "Some words."]) as serving:
        messages: list[Any] = [*HELLO]
        for _ in range(3):
            fields = {**FORMAT, "tools": TOOLS, "parallel_tool_calls": False, "max_tokens": 300}
            message = serving.chat(messages=messages, **fields).json()["choices"][0]["message"]
            said.append((message["content"], [call["function"]["name"] for call in message.get("tool_calls", ())]))
            messages.append({"role": "assistant", "content": message["content"] or ""})
    assert said[:2] == [(None, ["clock"]), (answer, [])]
    content, calls = said[2]
    assert calls or jsonschema.validate(json.loads(content or ""), WEATHER) is None, "not words"


def test_calls_that_must_come_leave_no_room_for_an_answer(serving: Serving) -> None:
    response = serving.chat(**FORMAT, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=99)
    message = response.json()["choices"][0]["message"]
    assert message["content"] is None
    assert len(message["tool_calls"]) == 1


def test_tools_that_may_not_be_called_leave_room_for_anything(serving: Serving) -> None:
    text = text_of(serving.chat(regex=REGEX, tools=TOOLS, tool_choice="none", max_tokens=99))
    assert re.fullmatch(REGEX, text)


def schema_format(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}


SCHEMA_PARAM = "response_format.json_schema.schema"
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "yaml"}}, "response_format.type", "yaml"),
    ({"response_format": {}}, "response_format.type", "missing"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name", "missing"),
    ({"response_format": schema_format([])}, "response_format.json_schema.schema", "object"),
    ({"response_format": schema_format({"not": {"pattern": "x"}})}, SCHEMA_PARAM, "'not'"),
    ({"response_format": schema_format({"not": {"pattern": "x"}}, strict=True)}, SCHEMA_PARAM, "strict: false"),
    ({"response_format": schema_format({"$ref": "#/nowhere"})}, SCHEMA_PARAM, "nowhere"),
    ({"response_format": schema_format({"properties": 5})}, SCHEMA_PARAM, "properties"),
    ({"response_format": schema_format({"properties": 5}, strict=False)}, SCHEMA_PARAM, "properties"),
    ({"response_format": {"type": "json_object", "schema": {"type": "odd"}}}, "response_format.schema", "odd"),
    ({"guided_json": "{"}, "guided_json", "not a JSON schema"),
    ({"guided_json": "[1]"}, "guided_json", "not a JSON schema"),
    ({"guided_json": {"type": "cheese"}}, "guided_json", "cheese"),
    ({"regex": "("}, "regex", ""),
    ({"regex": ""}, "regex", ""),
    ({"choice": []}, "choice", ""),
    ({"choice": [""]}, "choice[0]", ""),
    ({"choice": ["a", 1]}, "choice[1]", "str"),
    ({"grammar": "start: nothing"}, "grammar", "nothing"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "structural_tag"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice", "together"),
    ({"structured_outputs": {"regex": "a"}, "guided_regex": "b"}, "guided_regex", "together"),
    ({"response_format": {"type": "json_object"}, "choice": ["a"]}, "choice", "together"),
    ({"shortcuts": "no"}, "shortcuts", "bool"),
]


@pytest.mark.parametrize(("fields", "param", "word"), BAD, ids=str)
def test_what_cannot_be_is_refused_by_name(serving: Serving, fields: dict[str, Any], param: str, word: str) -> None:
    for response in (serving.chat(**fields), serving.complete(**fields), serving.chat(**fields, stream=True)):
        error = check_error(response, 400, "invalid_value")
        assert error["param"] == param
        assert word in error["message"]


@pytest.mark.parametrize("fields", [{"regex": REGEX}, {"choice": ["a"]}, {"grammar": LARK}], ids=str)
def test_tools_go_with_json_only(serving: Serving, fields: dict[str, Any]) -> None:
    error = check_error(serving.chat(**fields, tools=TOOLS), 400)
    assert error["param"] in fields


LISTS = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}


@pytest.mark.parametrize(("values", "is_broken"), [([1, 1], True), ([1, 2], False)])
def test_without_strict_an_answer_is_enforced_as_far_as_possible(values: list[int], is_broken: bool) -> None:
    with Serving(script=[json.dumps({"a": values})]) as serving:
        answer = serving.chat(response_format=schema_format(LISTS, strict=False), max_tokens=99).json()
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"a": values}
    broken = f"{SCHEMA_PARAM}: the answer does not follow the schema: a breaks uniqueItems true"
    assert changes_of(answer) == [f"{LOOSE}properties.a: 'uniqueItems'", *([broken] if is_broken else [])]


def test_what_is_checked_is_the_whole_answer_with_its_beginning() -> None:
    turns = [*HELLO, {"role": "assistant", "content": '{"a": [1, '}]
    with Serving(script=['{"a": [1, 1]}']) as serving:
        shape, begun = schema_format(LISTS, strict=False), {"continue_final_message": True}
        answer = serving.chat(messages=turns, response_format=shape, max_tokens=99, **begun).json()
    assert answer["choices"][0]["message"]["content"] == "1]}"
    assert "the answer does not follow the schema: a breaks uniqueItems true" in changes_of(answer)[-1]


def test_without_strict_a_schema_that_does_not_compile_asks_for_json(serving: Serving) -> None:
    schema = {"type": "array", "items": {"$ref": "#/nowhere"}}
    for ask in (serving.chat, serving.complete):
        answer = ask(response_format=schema_format(schema, strict=False), max_tokens=40).json()
        assert changes_of(answer)[0] == f"{LOOSE}the whole schema"


LOOSE = f"{SCHEMA_PARAM}: not enforced, but checked afterwards: "


def changes_of(answer: Any) -> list[str]:
    return [change for change in answer["usage"]["hotloop"]["changes"] if change.startswith(SCHEMA_PARAM)]


@pytest.mark.long
def test_a_costly_pattern_does_not_end_a_stream_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "LIMITS", LLParserLimits(max_lexer_states=5000, verbose_errors=False))
    monkeypatch.setattr(matcher, "_MAX_REPLAY_S", 600)  # a slow machine may take long
    words = {"type": "string", "pattern": r"^(?:\S+\s+){0,49}\S+$", "maxLength": 500}
    schema = {"type": "object", "properties": {"a": words}, "required": ["a"], "additionalProperties": False}
    shape = schema_format(schema, strict=True)
    draw = random.Random(1)
    texts = (" ".join("".join(draw.choices("abcdefg.,-(8", k=draw.randint(1, 9))) for _ in range(40)) for _ in range(4))
    answers, messages = [json.dumps({"a": text}) for text in texts], [*HELLO]
    with Serving(script=answers) as serving:
        for answer in answers:
            asked = {"messages": messages, "response_format": shape, "max_tokens": 600}
            lines = serving.chat(**asked, stream=True).text.splitlines()
            chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            assert not any("error" in chunk for chunk in chunks)
            assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == answer
            messages += [{"role": "assistant", "content": answer}, *HELLO]


class Watched(Tokenizer):
    """Remembers which threads have asked how a text is spelled."""

    threads: ClassVar[set[int]] = set()

    def encode(self, *args: Any, **options: Any) -> list[int]:
        self.threads.add(threading.get_ident())
        return super().encode(*args, **options)


def test_a_grammar_that_had_to_make_room_is_not_compiled_on_the_event_loop() -> None:
    config = EngineConfig(grammar_memory="1KB")  # none is kept
    with Serving(engine_config=config, tokenizer=Watched(byte_tokenizer()._inner)) as serving:
        jsonschema.validate(json.loads(text_of(serving.chat(guided_json=WEATHER, max_tokens=400))), WEATHER)
        assert Watched.threads
        assert {thread.ident for thread in serving._threads}.isdisjoint(Watched.threads)
