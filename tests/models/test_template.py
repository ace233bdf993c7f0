import json
from typing import Any

import pytest

from hotloop.core.errors import ModelError, RequestError
from hotloop.core.message import Message, Thought, Tool, ToolCall
from hotloop.models.template import ChatTemplate

CHATML = (
    "{%- for m in messages %}\n"
    "    {{- bos_token if loop.first }}{{ m.role }}: {{ m.content }}{{ eos_token }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- 'assistant: ' }}\n"
    "{%- endif %}\n"
)
WEATHER = Tool("weather", "Say how it is.", {"type": "object", "properties": {"città": {"type": "string"}}})


def render(source: str, *messages: Message, **options: Any) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages, **options)


def test_messages_and_tokens_reach_the_template() -> None:
    turns = (Message("system", "be brief"), Message("user", "hi"))
    assert render(CHATML, *turns) == "<s>system: be brief</s>user: hi</s>assistant: "
    assert render(CHATML, *turns, add_generation_prompt=False) == "<s>system: be brief</s>user: hi</s>"


def test_tools_are_none_when_there_are_none() -> None:
    source = "{% if tools %}{{ tools | tojson }}{% else %}nothing{% endif %}"
    assert render(source) == "nothing"
    function = {"name": "weather", "description": "Say how it is.", "parameters": WEATHER.parameters}
    assert json.loads(render(source, tools=[WEATHER])) == [{"type": "function", "function": function}]


def test_an_example_of_a_call_has_single_braces() -> None:
    """As models imitate it. Braces of expressions, and what a caller has written, stay."""
    example = r"{{\"name\": <function-name>, \"arguments\": <args-json-object>}}"
    turn = Message("user", example.replace("\\", ""))
    said = render('{{- "So:\\n' + example + '\\n" }}{{ {"a": {}} | tojson }}{{ messages[0].content }}', turn)
    single = '{"name": <function-name>, "arguments": <args-json-object>}'
    assert said == f'So:\n{single}\n{{"a": {{}}}}{{{single}}}'


def test_json_is_not_escaped_for_html_or_ascii() -> None:
    assert render("{{ messages[0].content | tojson }}", Message("user", "<è & 'x'>")) == "\"<è & 'x'>\""
    assert render("{{ {'b': 1, 'a': [2]} | tojson(indent=1, sort_keys=true) }}").startswith('{\n "a": [')


def test_arguments_are_printed_as_they_were_written() -> None:
    call = ToolCall("call_1", "weather", '{"days":  3,"text": "é"}')
    turn = Message("assistant", "", tool_calls=(call,))
    whole = "{% for c in messages[0].tool_calls %}{{ c.id }} {{ c.function.arguments | tojson }}{% endfor %}"
    assert render(whole, turn) == 'call_1 {"days":  3,"text": "é"}'
    inside = "{% for k, v in messages[0].tool_calls[0].function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"
    assert render(inside, turn) == "days=3;text=é;"
    assert render("{{ messages[0].tool_calls[0].function.arguments.text }}", turn) == "é"


@pytest.mark.parametrize("arguments", ["not json", "[1]", ""])
def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    turn = Message("assistant", tool_calls=(ToolCall("1", "f", arguments),))
    assert render("{{ messages[0].tool_calls[0].function.arguments }}", turn) == arguments


def test_what_a_model_thought_reaches_templates_that_know_of_it() -> None:
    source = "{% for m in messages %}{{ m.reasoning_content if m.reasoning_content is defined else '-' }}|{% endfor %}"
    thought = Message("assistant", "Hi.", thoughts=(Thought("Hm, "), Thought("well.")))
    assert render(source, thought, Message("user", "x")) == "Hm, well.|-|"


def test_only_what_a_message_has_is_defined() -> None:
    source = "{{ messages[0].name is defined }} {{ messages[0].tool_calls is defined }} {{ messages[0].tool_call_id }}"
    assert render(source, Message("tool", "42", tool_call_id="call_1")) == "False False call_1"
    assert render(source, Message("user", "42", name="ann")) == "True False "


def test_extra_variables_reach_the_template_but_replace_no_messages() -> None:
    source = "{{ enable_thinking }} {{ messages | length }}"
    assert render(source, Message("user"), extra={"enable_thinking": False, "messages": []}) == "False 1"


def test_what_hugging_face_offers_is_there() -> None:
    assert render("{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% generation %}text{% endgeneration %}") == "text"
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10
    assert render("{% for i in [3, 4] %}{{ loop.index }}/{{ loop.length }}{{ loop.last }} {% endfor %}") == (
        "1/2False 2/2True "
    )


def test_what_templates_do_with_text_is_as_ever() -> None:
    assert render("{{ 'a' ~ 1 ~ none ~ [1, 'b'] }}") == "a1None[1, 'b']"
    assert render("{{ '%s is %5.1f%%' % ('x', 2) }} {{ '%(a)s' | format(a=1) }}") == "x is   2.0% 1"
    assert render("{{ '{} {a:>4} {{}}'.format(1, a='b') }}") == "1    b {}"
    assert render("{{ 'abab'.replace('a', '-') }} {{ 'abab' | replace('b', '', 1) }}") == "-b-b aab"
    assert len(render("{{ ('x' * 1000000).replace('<tool_response>', '<|tool_response|>') }}")) == 1_000_000
    assert render("{{ ['a', 'b'] | join(', ') }} {{ '-'.join(['c', 'd']) }}") == "a, b c-d"
    assert render("{{ messages | map(attribute='role') | join }}", Message("user"), Message("tool")) == "usertool"
    assert render("{{ 'a\nb' | indent(2) }} {{ 'a'.ljust(3) }}|") == "a\n  b a  |"
    assert render("{{ 2 ** 10 * 3 + 7 % 4 }} {{ [1] + [2] }}") == "3075 [1, 2]"
    assert render("{% for i in [[1], [2]] recursive %}{{ i if i is number else loop(i) }}{% endfor %}") == "12"


def test_what_the_template_objects_to_is_the_requests_fault() -> None:
    with pytest.raises(RequestError, match="the chat template failed: roles must alternate") as caught:
        render("{{ raise_exception('roles must\n alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[7].role }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ range(999999999) }}",
    ],
)
def test_whatever_fails_inside_is_one_line(source: str) -> None:
    with pytest.raises(RequestError, match="the chat template failed") as caught:
        render(source)
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_a_template_that_hangs_is_stopped() -> None:
    """How, and what else is, in test_renderer."""
    nested = "{% set n = namespace(v=[1], w=[1]) %}{% for i in range(60) %}{% set n.v = [n.v, n.v] %}"
    with pytest.raises(RequestError, match="the chat template failed: it takes more than 2 s"):
        render(nested + "{% set n.w = [n.w, n.w] %}{% endfor %}{{ n.v == n.w }}")


def test_a_template_that_cannot_be_parsed_is_the_models_fault() -> None:
    with pytest.raises(ModelError, match="the chat template cannot be read: wrong at line 2"):
        ChatTemplate("ok\n{% if %}", bos_token="", eos_token="")


@pytest.mark.parametrize(
    "source", ["{{ 'a' + ARGS + 'b' }}", "{{ 'a' ~ ARGS ~ 'b' }}", "a{{ ARGS }}b", "a{{ ARGS | tojson }}b"]
)
def test_arguments_can_be_added_to_text(source: str) -> None:
    template = ChatTemplate(
        source.replace("ARGS", "messages[0].tool_calls[0].function.arguments"), bos_token="", eos_token=""
    )
    called = (Message("assistant", tool_calls=(ToolCall("1", "f", '{"a":  true}'),)),)
    assert template.render(called) == 'a{"a":  true}b'
