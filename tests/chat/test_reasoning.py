"""Which marks a model thinks in is told from its template and its vocabulary."""

import pytest
from tests.chat.reasoning_templates import STYLES, thinking_template
from tests.chat.speaking import byte_tokenizer

from hotloop.chat.formats import choose_format
from hotloop.chat.reasoning import ReasoningFormat, ReasoningWish, choose_reasoning
from hotloop.core.config import ThinkingFormatName
from hotloop.core.message import Message, Thought
from hotloop.models.template import ChatTemplate

CHATML = "{% for message in messages %}{{ message.content }}{% endfor %}"
TOKENIZER = byte_tokenizer("<|im_start|>")
MARKS = ("[THINK]", "[/THINK]", "<|channel>", "<channel|>", "<mm:think>", "</mm:think>")
SPECIAL = byte_tokenizer("<|im_start|>", *MARKS)


def template_of(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="", eos_token="<|im_end|>")


def recognised(source: str, name: ThinkingFormatName = "auto") -> ReasoningFormat | None:
    return choose_reasoning(template_of(source), TOKENIZER, name)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("is_opened", [False, True])
def test_a_template_says_how_its_model_thinks(style: str, is_opened: bool) -> None:
    opening, closing = STYLES[style]
    thinking = recognised(thinking_template(opening, closing, is_opened=is_opened))
    assert thinking
    assert (thinking.name, thinking.opening, thinking.closing) == (style, opening, closing)
    assert (thinking.tail, thinking.gap) == ("\n", "\n\n")
    assert thinking.is_opened_by_template == is_opened
    assert not thinking.is_special
    fitted = choose_reasoning(template_of(thinking_template(opening, closing)), SPECIAL)
    assert fitted
    assert fitted.is_special == (style != "think")


def test_a_template_that_speaks_of_no_thoughts_has_none_unless_its_vocabulary_does() -> None:
    assert recognised(CHATML) is None
    thinker = choose_reasoning(template_of(CHATML), byte_tokenizer(verbatim=("<think>", "</think>")))
    assert thinker
    assert (thinker.name, thinker.tail, thinker.gap) == ("think", "", "")
    assert choose_reasoning(None, TOKENIZER) is None


def test_the_choice_can_be_set() -> None:
    assert recognised(thinking_template(), "off") is None
    chosen = recognised(CHATML, "mistral")
    assert chosen
    assert chosen.name == "mistral"


def test_a_prompt_may_end_inside_a_thought() -> None:
    source = thinking_template(is_opened=True)
    thinking, template = recognised(source), template_of(source)
    assert thinking
    turns = (Message("user", "What does <think> mean?"),)
    assert thinking.is_open_in(template.render(turns))
    assert not thinking.is_open_in(template.render(turns, extra={"enable_thinking": False}))
    assert not thinking.is_open_in(template.render(turns, add_generation_prompt=False))


def test_templates_are_told_what_they_know_of() -> None:
    assert ReasoningWish(is_wanted=False).variables("{{ enable_thinking }}") == {"enable_thinking": False}
    assert ReasoningWish(is_wanted=True, effort="low").variables("{{ thinking_mode }}") == {"thinking_mode": "enabled"}
    asked = ReasoningWish(is_wanted=True, effort="low").variables("{{ thinking }} {{ reasoning_effort }}")
    assert asked == {"thinking": True, "reasoning_effort": "low"}
    assert ReasoningWish().variables("{{ enable_thinking }}") == {}


def test_the_templates_here_keep_thoughts_inside_a_tool_loop_alone() -> None:
    """What the other tests take for granted."""
    template = template_of(thinking_template())
    assert choose_format(template, TOKENIZER).name == "hermes"
    answer = Message("assistant", "Hi.", thoughts=(Thought("Hm."),))
    assert "<think>\nHm.\n</think>\n\nHi." in template.render((Message("user", "a"), answer, Message("tool", "b")))
    assert "Hm." not in template.render((Message("user", "a"), answer, Message("user", "b")))
