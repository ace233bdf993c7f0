"""The format is told from the template; one that cannot work is refused when the model is loaded."""

from typing import get_args

import pytest
from tests.chat.speaking import LLAMA, MISTRAL, PLAIN, byte_tokenizer

from hotloop.chat.formats import choose_format
from hotloop.core.config import ToolFormatName
from hotloop.core.errors import ConfigError
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="", eos_token="")


@pytest.mark.parametrize(
    ("source", "tokenizer", "name"),
    [
        ("{{ messages[0].content }}", PLAIN, "generic"),
        ("{{ messages[0].content }} <tool_call>", PLAIN, "generic"),
        ("{% if tools %}functions{% endif %}", PLAIN, "generic"),
        ('{% if tools %}<tool_call>{"arguments": ...}{% endif %}', PLAIN, "hermes"),
        ("{% if tools %}<tool_call>name<arg_key>key{% endif %}", PLAIN, "generic"),
        ("{% if tools %}<tool_call>name<arg_key>key<arg_value>{% endif %}", PLAIN, "glm"),
        ('{% if tools %}<minimax:tool_call><invoke name="f">{% endif %}', PLAIN, "minimax"),
        ("{% if tools %}<｜DSML｜invoke>{% endif %}", PLAIN, "deepseek_v32"),
        ("{% if tools %}<|tool_call>call:f{}<tool_call|>{% endif %}", PLAIN, "gemma"),
        ("{% if tools %}<start_function_call>call:f{}{% endif %}", PLAIN, "gemma"),
        ("{% if tools %}answer with <|tool_call|>{% endif %}", PLAIN, "granite"),
        ("{% if tools %}<｜DSML｜invoke>{% endif %}", byte_tokenizer("｜DSML｜"), "generic"),
        ("{% if tools %}<tool_call><function=f><parameter=a>{% endif %}", PLAIN, "qwen3_coder"),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", MISTRAL, "mistral"),
        ("{% if tools %}[TOOL_CALLS]{% endif %}", PLAIN, "generic"),
        ("{% if tools %}<|python_tag|>{% endif %}", LLAMA, "llama3"),
        ("{% if tools %}ipython {{ '\"parameters\": ' }}{% endif %}", PLAIN, "llama3"),
    ],
)
def test_the_template_tells(source: str, tokenizer: Tokenizer, name: str) -> None:
    assert choose_format(template(source), tokenizer).name == name


def test_a_model_without_a_template_has_the_generic_format() -> None:
    assert choose_format(None, PLAIN).name == "generic"


@pytest.mark.parametrize("name", [name for name in get_args(ToolFormatName) if name != "auto"])
def test_a_format_can_be_asked_for(name: ToolFormatName) -> None:
    assert choose_format(template("{{ tools }}"), MISTRAL, name).name == name


def test_a_format_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes no tools"):
        choose_format(template("{{ messages }}"), PLAIN, "hermes")
    with pytest.raises(ConfigError, match=r"no token \[TOOL_CALLS\]"):
        choose_format(template("{{ tools }}"), PLAIN, "mistral")
    with pytest.raises(ConfigError, match="special token"):
        choose_format(template("{{ tools }}"), byte_tokenizer("｜DSML｜"), "deepseek_v32")
