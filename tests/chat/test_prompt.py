"""Messages become the template's words, and those become tokens."""

from dataclasses import replace

import pytest
from tests.chat.assembly.merging import merging_tokenizer, spell
from tests.chat.speaking import hear
from tests.engine.tiny import TOKENIZER, byte_tokenizer
from tests.server.serving import CHATML

from hotloop.chat.formats import choose_format
from hotloop.chat.prompt import ChatInput, Prompts
from hotloop.core.config import ServerConfig
from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Tool, ToolCall
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer

TEMPLATE = ChatTemplate(CHATML, bos_token="", eos_token="<|im_end|>")


def test_a_conversation_ends_where_the_answer_begins() -> None:
    conversation = ChatInput(messages=(Message("user", "hi"),))
    prompt = Prompts(TEMPLATE, TOKENIZER).chat(conversation)
    assert prompt.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZER.decode(prompt.token_ids, keep_special=True) == prompt.text
    assert prompt.token_ids[0] == TOKENIZER.encode("<|im_start|>")[0]


def test_a_conversation_can_end_with_its_last_message() -> None:
    conversation = ChatInput(messages=(Message("user", "hi"),), is_answer_next=False)
    assert Prompts(TEMPLATE, TOKENIZER).chat(conversation).text == "<|im_start|>user\nhi<|im_end|>\n"


def test_tools_and_extra_variables_reach_a_template_that_knows_them() -> None:
    template = ChatTemplate("{{ tools[0].function.name }} {{ mood }}", bos_token="", eos_token="")
    conversation = ChatInput(messages=(Message("user"),), tools=(Tool("search"),), extra={"mood": "calm"})
    assert Prompts(template, TOKENIZER).chat(conversation).text == "search calm"


CALLS = (
    '<tool_call>\n{"name": "f", "arguments": {"a":  1}}\n</tool_call>\n'
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
)
# As Qwen's templates word a turn with calls.
WITH_CALLS = """
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content }}
{%- for call in message.tool_calls or [] %}{{ '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}{# tools #}"""


@pytest.mark.parametrize("answer", ["Done.", f"Let me see.\n{CALLS}", CALLS, f" Hm.\n\n{CALLS}"])
@pytest.mark.parametrize(("source", "name"), [(CHATML, "generic"), (WITH_CALLS, "hermes")])
def test_what_the_model_wrote_is_what_it_reads_next(source: str, name: str, answer: str) -> None:
    template = ChatTemplate(source, bos_token="", eos_token="<|im_end|>")
    tool_format = choose_format(template, TOKENIZER)
    assert tool_format.name == name
    asked = ChatInput(messages=(Message("system", "Be kind."), Message("user", "hi")), tools=(Tool("f"),))
    heard = hear(tool_format.parser(asked.tools), *answer)
    calls = tuple(ToolCall(call_id, *call) for call_id, call in zip(heard.ids, heard.calls, strict=True))
    turns = (Message("assistant", heard.text, tool_calls=calls), Message("tool", "1", tool_call_id="x"))
    prompts = Prompts(template, TOKENIZER, tool_format)
    before = prompts.chat(asked)
    after = prompts.chat(replace(asked, messages=asked.messages + turns))
    assert after.text.startswith(f"{before.text}{answer}<|im_end|>\n")


def test_a_model_without_a_template_cannot_chat() -> None:
    with pytest.raises(RequestError, match="no chat template"):
        Prompts(None, TOKENIZER).chat(ChatInput(messages=(Message("user", "hi"),)))


def test_a_template_may_refuse() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", bos_token="", eos_token="")
    with pytest.raises(RequestError, match="roles must alternate"):
        Prompts(template, TOKENIZER).chat(ChatInput(messages=(Message("user", "hi"),)))


@pytest.mark.parametrize(("wants_bos", "has_bos", "num_tokens"), [(True, True, 3), (True, False, 2), (False, True, 2)])
def test_a_text_begins_as_the_model_wants_it(wants_bos: bool, has_bos: bool, num_tokens: int) -> None:
    tokenizer = Tokenizer(byte_tokenizer()._inner, bos_id=256, wants_bos=wants_bos)
    assert len(Prompts(None, tokenizer).text("hi", has_bos=has_bos).token_ids) == num_tokens


def test_tokens_are_taken_as_they_are() -> None:
    token_ids = TOKENIZER.encode("<|im_start|>hi")
    prompt = Prompts(None, TOKENIZER).tokens(token_ids)
    assert (prompt.token_ids, prompt.text) == (token_ids, "<|im_start|>hi")


@pytest.mark.parametrize("token_id", [-1, TOKENIZER.vocab_size, 2**40])
def test_a_token_the_model_does_not_have_is_refused(token_id: int) -> None:
    with pytest.raises(RequestError, match=f"no token {token_id}"):
        Prompts(None, TOKENIZER).tokens([token_id])


TIMELY = (Message("system", "Current time: 10:00\nBe kind."), Message("user", "hi"), Message("system", "Be brief."))
SHUFFLED = (Tool("g"), Tool("f", parameters={"properties": {}, "type": "object"}))
REFUSING = WITH_CALLS.replace(
    "{{ '<|im_start|>'",
    "{% if message.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}{{ '<|im_start|>'",
)


def test_what_was_done_to_a_conversation_is_told() -> None:
    template = ChatTemplate(REFUSING, bos_token="", eos_token="<|im_end|>")
    prompts = Prompts(template, TOKENIZER, choose_format(template, TOKENIZER))
    earlier = Message("system", "Current time: 09:59\nBe kind.")
    prompts.chat(ChatInput(messages=(earlier, *TIMELY[1:])))
    prompt = prompts.chat(ChatInput(messages=TIMELY, tools=SHUFFLED))
    assert [change.partition(":")[0] for change in prompt.changes] == ["messages[0]", "messages", "tools"]
    assert "system\nBe kind.<|im_end|>" in prompt.text
    assert "hi\n\n<system>\nCurrent time: 10:00\n</system>\n\n<system>\nBe brief.\n</system><|im_end|>" in prompt.text
    assert not prompts.chat(ChatInput(messages=TIMELY[1:2], tools=prompts.order(SHUFFLED))).changes


def test_nothing_need_be_done_to_it() -> None:
    rules = ServerConfig(
        exact_turns=False,
        canonical_tools=False,
        move_volatile_lines=False,
        late_system_as_user=False,
        prompt_memory_tokens=1,
    )
    prompts = Prompts(TEMPLATE, TOKENIZER, rules=rules)
    prompt = prompts.chat(ChatInput(messages=TIMELY, tools=SHUFFLED))
    assert prompt.text == TEMPLATE.render(TIMELY, tools=SHUFFLED)
    assert prompt.changes == ()
    assert prompts.order(SHUFFLED) == SHUFFLED
    template = ChatTemplate(REFUSING, bos_token="", eos_token="<|im_end|>")
    with pytest.raises(RequestError, match="no"):
        Prompts(template, TOKENIZER, rules=rules).chat(ChatInput(messages=TIMELY))


def test_a_call_that_is_reworded_on_its_way_comes_back_in_its_tokens() -> None:
    tokenizer = merging_tokenizer()
    template = ChatTemplate(WITH_CALLS, bos_token="", eos_token="<|im_end|>")
    tool_format = choose_format(template, tokenizer)
    prompts = Prompts(template, tokenizer, tool_format)
    asked = ChatInput(messages=(Message("user", "hello"),), tools=(Tool("f"),))
    before = prompts.chat(asked)
    answer = spell(
        tokenizer, "h", "ello\n", "<tool_call>", '\n{"name": "f", "argu', 'ments": {"a": "hel', 'lo"}}\n</tool_call>'
    )
    heard = hear(prompts.parser(asked.tools), tokenizer.decode(answer))
    prompts.remember(before.token_ids, answer)
    calls = (ToolCall(heard.ids[0], "f", '{"a":"hello"}'),)
    turns = (Message("assistant", heard.text, tool_calls=calls), Message("tool", "1", tool_call_id=heard.ids[0]))
    after = prompts.chat(replace(asked, messages=asked.messages + turns))
    num_before = len(before.token_ids) + len(answer)
    assert after.token_ids[:num_before] == [*before.token_ids, *answer]
    assert after.changes == ("messages[1]: arguments are as the model wrote them",)
    assert after.num_exact > len(answer)


@pytest.mark.parametrize("has_results", [True, False])
def test_calls_are_read_as_they_were_written_unless_the_template_minds(has_results: bool) -> None:
    is_lost = "message.role == 'tool' and not messages[loop.index0 - 1].tool_calls"
    picky = f"{{% if {is_lost} %}}{{{{ raise_exception('no') }}}}{{% endif %}}"
    template = ChatTemplate(
        WITH_CALLS.replace("{{ '<|im_start|>'", picky + "{{ '<|im_start|>'"), bos_token="", eos_token="<|im_end|>"
    )
    prompts = Prompts(template, TOKENIZER, choose_format(template, TOKENIZER))
    asked = ChatInput(messages=(Message("user", "hi"),), tools=(Tool("f"),))
    answer = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
    heard = hear(prompts.parser(asked.tools), answer)
    turn = Message("assistant", "", tool_calls=(ToolCall(heard.ids[0], "f", "{}"),))
    turns = (turn, Message("tool", "1")) if has_results else (turn,)
    prompt = prompts.chat(replace(asked, messages=asked.messages + turns))
    assert (answer in prompt.text) is not has_results
    assert bool(prompt.changes) is not has_results
