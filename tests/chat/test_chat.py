"""One call makes of a chat body all that the engine is given, and the parser that reads the answer."""

from typing import Any

import pytest
from tests.chat.reasoning_templates import thinking_template
from tests.chat.speaking import byte_tokenizer

from hotloop.chat.chat import Chat, TextInput
from hotloop.chat.prompt import CacheBreakpoint, ChatInput
from hotloop.chat.reasoning import ReasoningWish
from hotloop.chat.structure import Structure
from hotloop.chat.tools import Calling, ToolChoice
from hotloop.core.config import ServerConfig
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar
from hotloop.core.message import Message, Tool
from hotloop.core.retention import Pin
from hotloop.core.stream import CallOpened, StreamEvent, TextDelta, ThoughtDelta
from hotloop.models.template import ChatTemplate

TOKENIZER = byte_tokenizer("<|im_start|>", "<|im_end|>")
HI = Message("user", "hi")
SCHEMA = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}, "required": ["a"]}
F = Tool("f", "", SCHEMA, is_strict=True)
ONE_OF = Structure("choice", "choice", ["yes", "no"])


class FakeCompiler:
    """Compiles nothing, and refuses grammars with a forbidden word in them."""

    def __init__(self, forbidden: str = "\0") -> None:
        self.grammars: list[Grammar] = []
        self._forbidden = forbidden

    def prepare(self, grammar: Grammar) -> None:
        self.grammars.append(grammar)
        if self._forbidden in grammar.text:
            raise RequestError("it does not compile")


def make_chat(compiler: FakeCompiler | None = None, *, max_context: int = 4096, **config: Any) -> Chat:
    template = ChatTemplate(thinking_template(is_opened=True), bos_token="", eos_token="<|im_end|>")
    given = ServerConfig(**config)
    return Chat(template, TOKENIZER, compiler or FakeCompiler(), lambda value, _: str(value), given, max_context)


def read(parser: Any, *texts: str) -> list[StreamEvent]:
    return [event for text in texts for event in parser.push(text)] + parser.finish()


def test_a_chat_is_prepared_as_a_whole() -> None:
    compiler, told = FakeCompiler(), list[str]()
    given = ChatInput(
        messages=(HI,), tools=(F,), calling=Calling((F,), places={"f": "tools[0].parameters"}), changes=("read",)
    )
    prepared = make_chat(compiler).prepare(given)

    [prompt] = prepared.prompts
    assert prompt.text.endswith("hi<|im_end|>\n<|im_start|>assistant\n<think>\n")
    assert compiler.grammars == [prepared.grammar]
    assert prepared.reasoning
    assert prepared.reasoning.is_open
    assert prepared.can_call
    dropped = "tools[0].parameters: not enforced, but checked afterwards: properties.a: 'uniqueItems'"
    assert prepared.changes == ("read", dropped)

    call = '<tool_call>\n{"name": "f", "arguments": {"a": [1]}}\n</tool_call>'
    first, *rest = read(prepared.parser(told.append), "Hm.</think>\n\n", call)
    assert first == ThoughtDelta("Hm.")
    assert [event.name for event in rest if isinstance(event, CallOpened)] == ["f"]
    assert told == ["tools[0].parameters: the arguments of f do not follow the schema: {'a': [1]}"]


def test_what_is_only_prefilled_has_no_grammar_and_its_answer_is_discarded() -> None:
    compiler = FakeCompiler()
    prepared = make_chat(compiler).prepare(ChatInput(messages=(HI,), structures=(ONE_OF,), is_prefill_only=True))

    assert not compiler.grammars
    assert (prepared.grammar, prepared.reasoning) == (None, None)
    assert read(prepared.parser(print), "yes") == []


@pytest.mark.parametrize(
    ("given", "num_answer"),
    [
        (ChatInput(messages=(HI,), structures=(ONE_OF,)), 1),
        (TextInput(texts=["x", "x" * 59], structures=(ONE_OF,), max_tokens=2), 2),
    ],
)
def test_nothing_is_compiled_for_a_prompt_that_leaves_no_room(given: ChatInput | TextInput, num_answer: int) -> None:
    num_prompt = max(len(prompt.token_ids) for prompt in make_chat().prepare(given).prompts)
    for num_missing in (0, 1):
        compiler = FakeCompiler()
        make_chat(compiler, max_context=num_prompt + num_answer - num_missing).prepare(given)
        assert len(compiler.grammars) == 1 - num_missing


def test_an_answer_that_has_begun_goes_on_under_its_grammar_and_does_not_reason() -> None:
    prepared = make_chat().prepare(ChatInput(messages=(HI,), begun="ye", structures=(ONE_OF,)))
    assert prepared.grammar
    assert (prepared.grammar.begun, prepared.reasoning) == ("ye", None)
    assert prepared.prompts[0].text.endswith("</think>\n\nye")


@pytest.mark.parametrize(
    ("wish", "most", "expected"),
    [
        (ReasoningWish(), None, None),
        (ReasoningWish(), 9, 9),
        (ReasoningWish(max_tokens=5), 9, 5),
        (ReasoningWish(effort="low"), None, 1024),
        (ReasoningWish(effort="high"), None, None),
        (ReasoningWish(is_wanted=False), 9, 0),
    ],
)
def test_reasoning_is_limited_by_whoever_wants_least(
    wish: ReasoningWish, most: int | None, expected: int | None
) -> None:
    prepared = make_chat(max_thinking=most).prepare(ChatInput(messages=(HI,), reasoning=wish))
    assert prepared.reasoning
    assert prepared.reasoning.max_tokens == expected
    assert prepared.reasoning.is_open == (wish.is_wanted is not False)


def test_what_does_not_compile_is_told_of_the_field_it_came_in() -> None:
    with pytest.raises(RequestError, match="choice: it does not compile") as caught:
        make_chat(FakeCompiler("yes")).prepare(ChatInput(messages=(HI,), structures=(ONE_OF,)))
    assert caught.value.param == "choice"
    tools, places = (Tool("f", is_strict=True), Tool("odd", is_strict=True)), {"f": "tools[0]", "odd": "tools[1]"}
    calling = Calling(tools, ToolChoice("required"), places, frozenset(places))
    with pytest.raises(RequestError, match="does not compile") as caught:
        make_chat(FakeCompiler("odd")).prepare(ChatInput(messages=(HI,), tools=tools, calling=calling))
    assert caught.value.param == "tools[1]"


def test_breakpoints_and_a_whole_prompt_are_pinned() -> None:
    messages = (HI, Message("assistant", "Hello."), Message("user", "one\ntwo"))
    marks = (CacheBreakpoint(0, 2, 300), CacheBreakpoint(2, 3, 3600))
    prepared = make_chat().prepare(ChatInput(messages=messages, breakpoints=marks, retention_s=60))
    first, second, whole = prepared.pins
    token_ids = prepared.prompts[0].token_ids
    assert TOKENIZER.decode(token_ids[: first.num_tokens], keep_special=True).endswith("user\nhi")
    assert TOKENIZER.decode(token_ids[: second.num_tokens], keep_special=True).endswith("one")
    assert (first.ttl_s, second.ttl_s, whole) == (300, 3600, Pin(len(token_ids), 60))


def test_texts_and_tokens_go_the_same_way() -> None:
    given = TextInput(texts=["hello", TOKENIZER.encode("bye")], structures=(ONE_OF,), max_tokens=1)
    prepared = make_chat().prepare(given)
    assert [prompt.text for prompt in prepared.prompts] == ["hello", "bye"]
    assert prepared.grammar == Grammar("lark", 'start: "yes" | "no"')
    assert read(prepared.parser(print), "yes") == [TextDelta("yes")]
    with pytest.raises(RequestError, match="a prompt is empty"):
        make_chat().prepare(TextInput(texts=["hello", ""], max_tokens=1))
