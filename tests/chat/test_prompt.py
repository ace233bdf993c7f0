"""Messages become the template's words, and those become tokens."""

from dataclasses import replace

import pytest
from tests.chat.speaking import hear
from tests.engine.tiny import TOKENIZER, byte_tokenizer
from tests.server.serving import CHATML

from hotloop.chat.formats import choose_format
from hotloop.chat.prompt import Conversation, chat_prompt, text_prompt, token_prompt
from hotloop.core.errors import RequestError
from hotloop.core.message import Message, Tool, ToolCall
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer

TEMPLATE = ChatTemplate(CHATML, bos_token="", eos_token="<|im_end|>")


def test_a_conversation_ends_where_the_answer_begins() -> None:
    conversation = Conversation(messages=(Message("user", "hi"),))
    prompt = chat_prompt(conversation, TEMPLATE, TOKENIZER)
    assert prompt.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZER.decode(prompt.token_ids, keep_special=True) == prompt.text
    assert prompt.token_ids[0] == TOKENIZER.encode("<|im_start|>")[0]


def test_a_conversation_can_end_with_its_last_message() -> None:
    conversation = Conversation(messages=(Message("user", "hi"),), is_answer_next=False)
    assert chat_prompt(conversation, TEMPLATE, TOKENIZER).text == "<|im_start|>user\nhi<|im_end|>\n"


def test_tools_and_extra_variables_reach_a_template_that_knows_them() -> None:
    template = ChatTemplate("{{ tools[0].function.name }} {{ mood }}", bos_token="", eos_token="")
    conversation = Conversation(messages=(Message("user"),), tools=(Tool("search"),), extra={"mood": "calm"})
    assert chat_prompt(conversation, template, TOKENIZER).text == "search calm"


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
    asked = Conversation(messages=(Message("system", "Be kind."), Message("user", "hi")), tools=(Tool("f"),))
    heard = hear(tool_format.parser(asked.tools), *answer)
    calls = tuple(ToolCall(call_id, *call) for call_id, call in zip(heard.ids, heard.calls, strict=True))
    turns = (Message("assistant", heard.text, tool_calls=calls), Message("tool", "1", tool_call_id="x"))
    before = chat_prompt(asked, template, TOKENIZER, tool_format)
    after = chat_prompt(replace(asked, messages=asked.messages + turns), template, TOKENIZER, tool_format)
    assert after.text.startswith(f"{before.text}{answer}<|im_end|>\n")


def test_a_model_without_a_template_cannot_chat() -> None:
    with pytest.raises(RequestError, match="no chat template"):
        chat_prompt(Conversation(messages=(Message("user", "hi"),)), None, TOKENIZER)


def test_a_template_may_refuse() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", bos_token="", eos_token="")
    with pytest.raises(RequestError, match="roles must alternate"):
        chat_prompt(Conversation(messages=(Message("user", "hi"),)), template, TOKENIZER)


@pytest.mark.parametrize(("wants_bos", "has_bos", "num_tokens"), [(True, True, 3), (True, False, 2), (False, True, 2)])
def test_a_text_begins_as_the_model_wants_it(wants_bos: bool, has_bos: bool, num_tokens: int) -> None:
    tokenizer = Tokenizer(byte_tokenizer()._inner, bos_id=256, wants_bos=wants_bos)
    assert len(text_prompt("hi", tokenizer, has_bos=has_bos).token_ids) == num_tokens


def test_tokens_are_taken_as_they_are() -> None:
    token_ids = TOKENIZER.encode("<|im_start|>hi")
    prompt = token_prompt(token_ids, TOKENIZER)
    assert (prompt.token_ids, prompt.text) == (token_ids, "<|im_start|>hi")


@pytest.mark.parametrize("token_id", [-1, TOKENIZER.vocab_size, 2**40])
def test_a_token_the_model_does_not_have_is_refused(token_id: int) -> None:
    with pytest.raises(RequestError, match=f"no token {token_id}"):
        token_prompt([token_id], TOKENIZER)
