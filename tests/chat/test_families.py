"""Every family's grammar: what it lets pass, what it refuses, and that its parser reads it back as what was meant."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chat.speaking import (
    FORMATS,
    HERMES,
    MISTRAL,
    PLAIN,
    TAGGED,
    Language,
    Quoted,
    hear,
    join_calls,
    to_json,
    write_call,
    write_fenced,
)
from tests.properties import examples

from hotloop.chat.formats import GenericFormat, HermesFormat, LlamaFormat, MistralFormat
from hotloop.chat.tools import ToolChoice
from hotloop.chat.xml_calls import QwenCoderFormat
from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Tool, ToolCall

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
WEATHER, NOW = Tool("weather", parameters=CITY), Tool("now")
TOOLS = (WEATHER, NOW)
AUTO, REQUIRED = ToolChoice(), ToolChoice("required")
ONE = ToolChoice("required", is_parallel=False)
every_family = pytest.mark.parametrize("name", FORMATS)


def paris(name: str) -> str:
    return write_call(name, "weather", {"city": "Paris", "days": 3})


def now(name: str) -> str:
    return write_call(name, "now", {})


@every_family
def test_a_required_call_is_the_whole_answer(name: str) -> None:
    language = Language(name, TOOLS, REQUIRED)
    assert language.accepts(paris(name))
    assert language.accepts(now(name))
    assert language.accepts(join_calls(name, [paris(name), now(name), paris(name)]))
    for answer in ("", "Hello", "Sure. " + now(name), now(name) + " ", now(name) + "x", now(name)[:-1]):
        assert not language.accepts(answer)


@every_family
def test_prose_is_free_until_the_opening(name: str) -> None:
    language = Language(name, TOOLS, AUTO)
    assert language.accepts("")
    assert language.accepts('It is <b>5 < 6</b> [TOOL or {"name": ...} and <tool_cal')
    assert language.accepts(join_calls(name, [now(name), paris(name)]))
    assert not language.accepts(now(name) + " Done.")
    if not name.startswith("llama3"):
        assert language.accepts("Let me see.\n" + paris(name))
        assert not language.accepts("Let me see.\n" + paris(name).replace("weather", "whether"))


@every_family
def test_arguments_must_follow_the_schema(name: str) -> None:
    language = Language(name, TOOLS, AUTO)
    for arguments in ({}, {"days": 1}, {"city": "Rome", "days": "two"}, {"city": "Rome", "mood": "calm"}):
        assert not language.accepts(write_call(name, "weather", arguments))
    assert not language.accepts(write_call(name, "now", {"city": "Rome"}))
    assert not language.accepts(write_call(name, "weathe", {"city": "Rome"}))


@every_family
def test_one_tool_and_one_call_where_that_was_asked_for(name: str) -> None:
    named = Language(name, TOOLS, ToolChoice("required", "now"))
    assert named.accepts(join_calls(name, [now(name), now(name)]))
    assert not named.accepts(paris(name))
    single = Language(name, TOOLS, ONE)
    assert single.accepts(paris(name))
    assert not single.accepts(join_calls(name, [now(name), now(name)]))


@every_family
def test_a_tool_that_is_not_strict_takes_any_object(name: str) -> None:
    loose = Tool("weather", parameters=CITY, is_strict=False)
    language = Language(name, (loose, NOW), AUTO)
    assert language.accepts(write_call(name, "weather", {"mood": "calm", "days": "two"}))
    assert language.accepts(write_call(name, "weather", {}))
    assert not language.accepts(write_call(name, "other", {}))


@every_family
def test_the_same_tools_have_the_same_grammar(name: str) -> None:
    tool_format, _ = FORMATS[name]
    again = tuple(Tool(tool.name, "other words", json.loads(json.dumps(tool.parameters))) for tool in TOOLS)
    assert tool_format.grammar(TOOLS, AUTO) == tool_format.grammar(again, AUTO)
    assert tool_format.grammar(TOOLS, AUTO) != tool_format.grammar(TOOLS[::-1], AUTO)


@pytest.mark.parametrize(
    "name",
    [
        *("hermes_special", "mistral", "mistral_args", "llama3"),
        *("qwen3_coder_special", "glm_special", "glm_47_special", "minimax_special"),
        *("deepseek_special", "deepseek_fenced_special", "kimi_special"),
        *("granite_special", "granite_phi_special", "gemma_special", "gemma_function_special"),
    ],
)
def test_a_marker_that_is_a_token_binds_where_it_is_spelt_as_well(name: str) -> None:
    language = Language(name, TOOLS, AUTO)
    call = "<|python_tag|>" + paris(name) if name == "llama3" else paris(name)
    marker = call[: call.index("]" if name.startswith("mistral") else ">") + 1]
    assert language.accepts("So: " + call)
    assert language.accepts_bytes("So: " + marker[:-1])
    assert not language.accepts_bytes(f"So: {marker} is a marker.")


def test_an_answer_that_begins_like_a_llama_call_must_be_one() -> None:
    language = Language("llama3", TOOLS, AUTO)
    assert language.accepts('{"names": []}')
    assert language.accepts('The answer: {"name": "Ann"}')
    for answer in ('{"name": "Ann"}', '\n{ "name": 1}', '{"type": "function", "name": "x", "parameters": {}}'):
        assert not language.accepts(answer)
    assert language.accepts('\n{ "type": "function", "name": "now", "parameters": {}}')
    assert language.accepts(' {"name": "now", "parameters": {}}; ' + now("llama3"))


def test_a_llama_template_that_refuses_two_calls_is_given_one() -> None:
    grammar = LlamaFormat(PLAIN, "This model only supports single tool-calls at once!").grammar(TOOLS, REQUIRED)
    assert grammar == LlamaFormat(PLAIN).grammar(TOOLS, ONE)


def test_a_model_may_think_in_special_tokens() -> None:
    language = Language("hermes_special", TOOLS, AUTO)
    assert language.accepts("<think>Well.</think>\n\nHello")
    assert language.accepts(f"<think>Well.</think>\n\n{paris('hermes')}")
    assert not language.accepts("<|im_start|>")


fenced_families = pytest.mark.parametrize("name", ["hermes", "hermes_special", "generic", "llama3", "llama3_plain"])


@fenced_families
def test_a_fenced_opening_that_names_a_tool_binds(name: str) -> None:
    language = Language(name, TOOLS, AUTO)
    for space in ("", " ", "\n  ", "\r\n\t"):
        for head in ("```", "```json", "```json\n", "So:\n\n```\n"):
            assert language.accepts(write_fenced("weather", {"city": "Rome"}, space, head))
            assert language.accepts(write_fenced("now", {}, space, head).replace("arguments", "parameters"))
            assert not language.accepts(write_fenced("weather", {"days": 1}, space, head))
            assert not language.accepts(write_fenced("now", {"days": 1}, space, head))
            assert not language.accepts(write_fenced("now", {}, space, head)[:-1])
            assert language.accepts(write_fenced("now", {}, space, head).replace("{", "{" + space + "{", 1))
            assert not language.accepts(write_fenced("now", {"days": 1}, space, head).replace("{", "{{", 1))


@fenced_families
def test_other_json_in_a_fence_is_prose(name: str) -> None:
    language = Language(name, TOOLS, AUTO)
    call = write_fenced("now", {})
    assert language.accepts("```json\n" + json.dumps({"name": "Alice", "arguments": {"a": [1]}}, indent=2) + "\n```!")
    for answer in (
        call.replace("now", "nowhere"),
        call.replace("json", "python"),
        call.replace("json", " json"),
        call.replace("```", "x", 1),
        call.replace("arguments", "argument"),
        call.replace(" :", ""),
    ):
        assert language.accepts(answer + " And so on.")


@fenced_families
def test_prose_and_calls_may_follow_a_fenced_call_unless_one_was_asked_for(name: str) -> None:
    call, wrong = write_fenced("now", {}), write_fenced("now", {"days": 1})
    family = ("<|python_tag|>" if name == "llama3" else "") + paris(name)
    many, one = Language(name, TOOLS, AUTO), Language(name, TOOLS, ToolChoice(is_parallel=False))
    for more in (" Done.", f"\n{call}", f"\nAnd:\n{call}!", *([f"\n{family}"] if name != "llama3_plain" else [])):
        assert many.accepts(call + more)
        assert not one.accepts(call + more)
    assert not many.accepts(f"{call}\n{wrong}")
    assert one.accepts(call)
    assert one.accepts("So:\n" + call)


@pytest.mark.parametrize("name", ["hermes", "hermes_special", "generic"])
def test_where_the_answer_begins_no_fence_is_needed(name: str) -> None:
    many, one = Language(name, TOOLS, AUTO), Language(name, TOOLS, ToolChoice(is_parallel=False))
    call, wrong = write_fenced("now", {}, head=""), write_fenced("now", {"days": 1}, head="")
    for language in (many, one):
        assert language.accepts(call)
        assert language.accepts(f"\n {call}")
        assert language.accepts(f"So: {wrong}")
        assert language.accepts('{"name": "Alice"}')
        assert not language.accepts(wrong)
    assert many.accepts(f"{call}\n{call} Done.")
    assert not many.accepts(f"{call}\n{wrong}")
    assert not one.accepts(f"{call} Done.")


def test_qwen_coder_may_forget_the_outer_tag() -> None:
    language = Language("qwen3_coder", TOOLS, AUTO)
    assert language.accepts("Sure." + paris("qwen3_coder").removeprefix("<tool_call>\n"))
    assert not language.accepts("Sure. <function=other>")


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"anyOf": [{"required": ["a"]}]}, "'anyOf'"),
        ({"properties": {"a>b": {}}}, "'a>b'"),
        ({"required": ["\n"]}, "cannot name"),
    ],
)
def test_what_tags_cannot_say_is_refused(schema: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        QwenCoderFormat(PLAIN).grammar((Tool("f", parameters=schema),), AUTO)


def test_keywords_nobody_knows_are_ignored() -> None:
    tool = Tool("f", parameters={"optional": ["a"], "title": "F", "$schema": "x"})
    assert QwenCoderFormat(PLAIN).grammar((tool,), AUTO) == QwenCoderFormat(PLAIN).grammar((Tool("f"),), AUTO)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("key", ['quote"', "back\\slash", "per%cent", "</tool_call>", "new\nline", "/*", "é", "<[1]>"])
@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral", "deepseek", "kimi", "granite"])
def test_keys_and_choices_may_have_any_characters(name: str, key: str) -> None:
    schema = {"properties": {key: {"enum": [key]}}, "required": [key]}
    answer = write_call(name, "f", {key: key})
    assert Language(name, (Tool("f", parameters=schema),), REQUIRED).accepts(answer)
    assert hear(FORMATS[name][0].parser(), answer).parsed == [("f", {key: key})]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("choice", ['quote"', "back\\slash", "per%cent", "</tool_call>", "new\nline", "\n", "", "é"])
@pytest.mark.parametrize("name", ["qwen3_coder", "glm", "glm_47", "minimax", "deepseek_v32"])
def test_choices_between_tags_may_have_any_characters(name: str, choice: str) -> None:
    tool = Tool("f", parameters={"properties": {"a": {"enum": [choice, "other"]}}, "required": ["a"]})
    answer = write_call(name, "f", {"a": choice})
    assert Language(name, (tool,), REQUIRED).accepts(answer)
    assert hear(FORMATS[name][0].parser([tool]), answer).parsed == [("f", {"a": choice})]


# Hypothesis tries strings it finds in the code, and a family's markers are among them: `accepts` takes them as such.
MARKER = re.compile(r"<\|\w+\|>|<｜[\w▁]+｜>|</?(minimax:)?(tool_call|think|arg_key|arg_value)>|\[[A-Z_]+\]")
characters = st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")) | st.sampled_from('\n\t"\\<>/{}[]')
texts = st.text(characters).filter(lambda text: not MARKER.search(text))
KINDS: list[tuple[dict[str, Any], st.SearchStrategy[Any]]] = [
    ({"type": "string"}, texts),
    ({"type": ["string", "null"]}, texts | st.none()),
    ({"type": "string", "maxLength": 5}, st.text("ab<\n", max_size=5)),
    ({"type": "integer"}, st.integers(-(10**6), 10**6)),
    ({"type": "boolean"}, st.booleans()),
    ({"enum": ["red", "</function>", ""]}, st.sampled_from(["red", "</function>", ""])),
    ({"type": "array", "items": {"type": "string"}}, st.lists(texts, max_size=3)),
    (
        {"type": "object", "properties": {"x": {"type": "null"}, "y": {"type": "string"}}, "required": ["x"]},
        st.builds(lambda y: {"x": None} if y is None else {"x": None, "y": y}, st.none() | texts),
    ),
]


@st.composite
def tools_and_calls(draw: st.DrawFn) -> tuple[tuple[Tool, ...], list[tuple[Tool, dict[str, Any]]]]:
    names = draw(st.lists(st.from_regex(r"[a-zA-Z0-9_.-]{1,6}", fullmatch=True), min_size=1, max_size=3, unique=True))
    kinds = [draw(st.dictionaries(st.text("abc_", min_size=1), st.sampled_from(KINDS), max_size=3)) for _ in names]
    tools = tuple(
        Tool(name, parameters={"type": "object", "properties": {key: schema for key, (schema, _) in kind.items()}})
        for name, kind in zip(names, kinds, strict=True)
    )
    calls = []
    for i in draw(st.lists(st.integers(0, len(names) - 1), min_size=1, max_size=3)):
        values = {key: draw(strategy | st.just(...)) for key, (_, strategy) in kinds[i].items()}
        calls.append((tools[i], {key: value for key, value in values.items() if value is not ...}))
    return tools, calls


def write_value_as_the_grammar_asks(name: str, tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Between tags a string that has limits is written as JSON."""
    limited = {key for key, schema in tool.parameters["properties"].items() if "maxLength" in schema}
    if not name.startswith(TAGGED):
        return arguments
    return {key: Quoted(to_json(value)) if key in limited else value for key, value in arguments.items()}


def without_limits(tool: Tool) -> Tool:
    """Where strings have no quotes of their own, nothing can be said of their length."""
    return replace(tool, parameters=json.loads(json.dumps(tool.parameters).replace(', "maxLength": 5', "")))


@every_family
@settings(max_examples=examples(8))
@given(case=tools_and_calls(), prose=st.sampled_from(["", "Well.", "a < b"]))
@pytest.mark.sampled(5)
def test_what_is_accepted_is_read_back(
    name: str, case: tuple[tuple[Tool, ...], list[tuple[Tool, dict[str, Any]]]], prose: str
) -> None:
    tools, calls = case
    if name.startswith("gemma"):
        tools = tuple(map(without_limits, tools))
    written = [write_call(name, tool.name, write_value_as_the_grammar_asks(name, tool, args)) for tool, args in calls]
    answer = join_calls(name, written)
    is_tagged = not name.startswith("llama3")
    answer = (prose + "\n" if prose and is_tagged else "") + answer
    expected = [(tool.name, arguments) for tool, arguments in calls]
    unsayable = name.startswith(TAGGED) and any(is_unsayable(arguments) for _, arguments in calls)
    assert Language(name, tools, AUTO).accepts(answer) or unsayable
    if not unsayable:
        heard = hear(FORMATS[name][0].parser(tools), *answer)
        assert heard.parsed == expected
        assert heard.text == (prose if is_tagged else "")
        assert heard.closed == list(range(len(calls)))


SPACES = st.text(" \t\r\n", max_size=3)


@fenced_families
@settings(max_examples=examples(12))
@given(case=tools_and_calls(), prose=st.sampled_from(["", "Well.", "`a`"]), space=SPACES, has_label=st.booleans())
@pytest.mark.sampled(5)
def test_what_is_accepted_in_fences_is_read_back(
    name: str,
    case: tuple[tuple[Tool, ...], list[tuple[Tool, dict[str, Any]]]],
    prose: str,
    space: str,
    has_label: bool,
) -> None:
    tools, calls = case
    head = ("```json" if has_label else "```") + space
    written = [write_fenced(tool.name, arguments, space, head) for tool, arguments in calls]
    answer = "\n".join([*([prose] if prose else []), *written])
    assert Language(name, tools, AUTO).accepts(answer)
    heard = hear(FORMATS[name][0].parser(tools), *answer)
    assert (heard.text, heard.parsed) == (prose, [(tool.name, arguments) for tool, arguments in calls])
    assert heard.closed == list(range(len(calls)))


def is_unsayable(arguments: dict[str, Any]) -> bool:
    return any(value in ("null", "None") or "</parameter>" in str(value) for value in arguments.values())


def test_mistral_templates_are_given_ids_they_take() -> None:
    history = (
        Message("assistant", tool_calls=(ToolCall("call_0123456789", "f", "{}"), ToolCall("abcDEF123", "f", "{}"))),
        Message("tool", "1", tool_call_id="call_0123456789"),
        Message("user", "thanks"),
    )
    messages, tools = MistralFormat(MISTRAL).prepare(history, TOOLS)
    short = messages[0].tool_calls[0].id
    assert (len(short), short.isalnum()) == (9, True)
    assert messages[0].tool_calls[1].id == "abcDEF123"
    assert messages[1].tool_call_id == short
    assert (messages[2], tools) == (history[2], TOOLS)


def test_templates_that_know_tools_are_given_what_there_is() -> None:
    history = (Message("assistant", tool_calls=(ToolCall("1", "f", "{}"),)),)
    for tool_format in (HermesFormat(HERMES), LlamaFormat(PLAIN), QwenCoderFormat(PLAIN)):
        assert tool_format.prepare(history, TOOLS) == (history, TOOLS)
    assert GenericFormat(PLAIN).prepare(history, TOOLS)[1] == ()
    assert [HermesFormat(HERMES).keep_special, HermesFormat(PLAIN).keep_special] == [True, False]
