"""Tools that come late do not change what was before them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.chat.assembly.test_spans import WITH_TOOLS, told
from tests.chat.assembly.test_system_turns import HOISTING, REFUSING
from tests.chat.speaking import QWEN
from tests.engine.tiny import TOKENIZER
from tests.properties import examples
from tests.server.serving import CHATML

from hotloop.chat.formats import choose_format
from hotloop.chat.prompt import ChatInput, Prompts
from hotloop.core.config import ServerConfig
from hotloop.core.message import Message, Tool, ToolCall
from hotloop.models.template import ChatTemplate
from hotloop.models.tokenizer import Tokenizer
from hotloop.stable.late import LateTools, ToolHistory, all_at_once, join_late, place_marked, tell_late


def tool(name: str, about: str = "") -> Tool:
    return Tool(name, about or f"Runs {name}.", {"type": "object", "properties": {"x": {"type": "string"}}})


A, B, C, D = (tool(name) for name in "abcd")
HI, HELLO = Message("user", "hi"), Message("assistant", "hello")
CALL = Message("assistant", "", tool_calls=(ToolCall("call_1", "a", "{}"), ToolCall("call_2", "a", "{}")))
RESULTS = (Message("tool", "1", tool_call_id="call_1"), Message("tool", "2", tool_call_id="call_2"))
LONGER = (HI, CALL, *RESULTS)


def make(source: str = CHATML, tokenizer: Tokenizer = TOKENIZER, **rules: Any) -> Prompts:
    template = ChatTemplate(source, bos_token="", eos_token="<|im_end|>")
    return Prompts(template, tokenizer, choose_format(template, tokenizer), ServerConfig(**rules))


def heads(*pairs: tuple[tuple[Message, ...], tuple[Tool, ...]]) -> list[tuple[str, dict[int, tuple[str, str]]]]:
    """Of one request after the other: what is in the head, and what came and went behind which message."""
    history = ToolHistory()
    placed = [history.settle(messages, tools) for messages, tools in pairs]
    return [
        (
            "".join(tool.name for tool in head),
            {i: ("".join(tool.name for tool in change.added), "".join(change.removed)) for i, change in late.items()},
        )
        for head, late in placed
    ]


def test_what_comes_later_is_placed_behind_what_was_newest() -> None:
    last = (*LONGER, HELLO, Message("user", "more"))
    assert heads(((HI,), (A, B)), (LONGER, (A, B, C)), (last, (A, B, C)), (last, (A, B, C))) == [
        ("ab", {}),
        ("ab", {3: ("c", "")}),
        ("ab", {3: ("c", "")}),
        ("ab", {3: ("c", "")}),
    ]


def test_what_goes_stays_in_the_head_and_may_come_again() -> None:
    last = (*LONGER, HELLO, Message("user", "more"))
    longest = (*last, HELLO, Message("user", "again"))
    assert heads(((HI,), (A, B, C)), (LONGER, (A, B)), (last, (A, B)), (longest, (A, B, C)))[1:] == [
        ("abc", {3: ("", "c")}),
        ("abc", {3: ("", "c")}),
        ("abc", {3: ("", "c"), 7: ("c", "")}),
    ]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ((A, B), (A, tool("b", "Is another."), C)),  # it would have to be told twice
        ((A, B, C), (D,)),  # hardly the same conversation
        ((), (A, B)),  # nothing tells yet how calls are written
        ((A, B), ()),
        ((A, B), (B, A)),
    ],
)
def test_where_it_is_better_to_begin_anew(before: tuple[Tool, ...], now: tuple[Tool, ...]) -> None:
    history = ToolHistory()
    history.settle((HI,), before)
    assert history.settle(LONGER, now) == (now, {})


def test_a_conversation_that_does_not_go_on_is_another() -> None:
    assert heads(((HI,), (A,)), ((HI,), (A, B))) == [("a", {}), ("ab", {})]
    assert heads(((HI,), (A,)), ((Message("user", "ho"), HELLO, HI), (A, B)))[1] == ("ab", {})


def test_two_conversations_that_begin_alike_keep_their_own_heads() -> None:
    assert heads(((HI,), (A,)), ((HI,), (A, B)), (LONGER, (A,)), ((HI, HELLO, HI), (A, B)))[2:] == [
        ("a", {}),
        ("ab", {}),
    ]


def test_scopes_do_not_see_each_other() -> None:
    history = ToolHistory()
    history.settle((HI,), (A,), scope="one")
    assert history.settle(LONGER, (A, B), scope="other") == ((A, B), {})
    assert history.settle(LONGER, (A, B), scope="one").head == (A,)


def test_strictness_is_not_in_the_prompt_and_comes_from_the_request() -> None:
    history = ToolHistory()
    history.settle((HI,), (A, B))
    loose = replace(A, is_strict=False)
    assert history.settle(LONGER, (loose, B, C)).head == (loose, B)


def test_what_is_remembered_is_bounded() -> None:
    history = ToolHistory()
    for i in range(300):
        large = tool(f"t{i}", "x" * 60_000)
        history.settle((Message("user", str(i)),), (large,))
    assert history._tools.currsize <= 4_000_000
    grown = (Message("user", "0"), HELLO, HI)
    assert history.settle(grown, (tool("t0", "x" * 60_000), A)).late == {}  # forgotten: all in the head, once


def test_marks_before_the_conversation_belong_to_the_head() -> None:
    system = Message("system", "Be kind.")
    marked = ((-1, LateTools((B,))), (0, LateTools((C,), ("a",))), (1, LateTools((D,))))
    assert place_marked((system, HI), (A,), marked) == ((B, C), {1: LateTools((D,))})
    assert place_marked((system, HI), (), ((1, LateTools((D,))),)) == ((D,), {})  # or nothing would tell how to call
    assert place_marked((system, HI), (), ((1, LateTools()), (1, LateTools((D,))))) == ((D,), {})
    placed = place_marked(LONGER, (A,), ((1, LateTools((D,))), (2, LateTools((B,))), (3, LateTools((C,), ("b",)))))
    assert placed == ((A,), {3: LateTools((D, C), ("b",))})  # results stay together
    assert all_at_once((A, B), [LateTools((C,), ("a",)), LateTools((A,))]) == (B, A, C)


def test_what_a_tool_is_is_told_once_however_often_it_comes() -> None:
    toggled = [(i, LateTools((B,))) if i % 2 else (i, LateTools(removed=("b",))) for i in range(1_000)]
    messages = [Message("user", str(i)) for i in range(1_000)]
    prompts = make()
    tools = (A, tool("b", "x" * 10_000))
    prompt = prompts.chat(ChatInput(messages=tuple(messages), tools=tools, late=toggled))
    assert prompt.text.count("x" * 10_000) == 1
    assert prompt.text.count("Runs b.") == 1
    assert prompt.text.count("can be called again: b") == 499
    late = join_late((A,), {1: LateTools((B,))}, {1: LateTools(removed=("b",)), 2: LateTools((B,)), 3: LateTools((B,))})
    assert late == {1: LateTools(removed=("b",)), 2: LateTools((B,)), 3: LateTools(again=("b",))}


def test_what_was_done_is_told_in_few_words() -> None:
    many = tuple(tool(f"t{i}" * 50) for i in range(100))
    told = tell_late({3: LateTools(many, ("gone",))})
    assert [len(line) < 700 for line in told] == [True, True]
    assert told[0].endswith("and 95 more added later, described after messages[3]")
    assert told[1] == "tools: gone removed, noted after messages[3]"


@pytest.mark.parametrize("source", [CHATML, WITH_TOOLS, HOISTING, REFUSING])
def test_a_prompt_begins_as_the_one_before_it(source: str) -> None:
    prompts = make(source)
    for late in ((), ((3, LateTools((D,))),)):
        first = prompts.chat(ChatInput(messages=(HI,), tools=(A, B), is_answer_next=False))
        grown = ChatInput(messages=LONGER, tools=(A, B) if late else (A, B, C), late=late)
        second = prompts.chat(grown)
        assert second.text.startswith(first.text)
        assert "can also call" in second.text[len(first.text) :]
        assert any("added later" in change for change in second.changes)
        assert prompts.chat(grown).token_ids == second.token_ids


@pytest.mark.parametrize("source", [CHATML, WITH_TOOLS, REFUSING])
def test_switched_off_all_are_in_the_head(source: str) -> None:
    prompts = make(source, late_tools=False)
    prompts.chat(ChatInput(messages=(HI,), tools=(A, B)))
    whole = prompts.chat(ChatInput(messages=LONGER, tools=(A, B, C, D)))
    assert prompts.chat(ChatInput(messages=LONGER, tools=(A, B, C), late=((3, LateTools((D,))),))) == whole
    assert "can also call" not in whole.text


@pytest.mark.parametrize("source", [CHATML, WITH_TOOLS, REFUSING])
def test_every_token_of_them_is_accounted_for(source: str) -> None:
    prompts = make(source, QWEN)
    prompts.chat(ChatInput(messages=(HI,), tools=(A, B, C)))
    prompt = prompts.chat(ChatInput(messages=LONGER, tools=(D, A, B), late=((0, LateTools((tool("e"),))),)))
    parts = told(prompt, QWEN)
    late = [(index, text) for kind, index, text in parts if kind == "late_tools"]
    assert [index for index, _ in late] == [0, 3]
    assert '"e"' in late[0][1]
    assert late[1][1].endswith("no longer be called: c")
    assert [index for kind, index, _ in parts if kind == "tool"] == [1, 2, None]  # `c` is no longer in the request
    assert [text for kind, _, text in parts if kind == "message"] == ["hi", "1", "2"]


Request = tuple[tuple[Message, ...], tuple[Tool, ...], tuple[tuple[int, LateTools], ...]]


@st.composite
def histories(draw: st.DrawFn) -> list[Request]:
    """A conversation that grows turn by turn, and with it the tools: some appear, some go, some are marked."""
    messages: list[Message] = [Message("system", "Be kind.")] if draw(st.booleans()) else []
    names = [f"t{i}" for i in range(12)]
    tools = [tool(name) for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True))]
    marked: list[tuple[int, LateTools]] = []
    requests = []
    for turn in range(draw(st.integers(1, 5))):
        if turn:
            calls = tuple(ToolCall(f"c{turn}_{i}", tools[0].name, "{}") for i in range(draw(st.integers(0, 2))))
            messages.append(Message("assistant", f"answer {turn}", tool_calls=calls))
            messages += [Message("tool", f"result {call.id}", tool_call_id=call.id) for call in calls]
            added = draw(st.lists(st.sampled_from(names), max_size=2, unique=True))
            known = {each.name for each in tools}
            tools += [tool(name) for name in added if name not in known]
            if draw(st.booleans()) and len(tools) > 2:
                tools.pop()
        if not turn or messages[-1].role == "assistant" or draw(st.booleans()):
            messages.append(Message("user", draw(st.text(max_size=5))))
        if draw(st.booleans()):
            marked.append((len(messages) - 1, LateTools((tool(f"m{turn}"),))))
        requests.append((tuple(messages), tuple(draw(st.permutations(tools))), tuple(marked)))
    return requests


@settings(max_examples=examples(40), deadline=None)
@given(histories(), st.sampled_from([CHATML, WITH_TOOLS, REFUSING]))
def test_a_conversation_that_grows_only_adds_to_its_prompt(requests: list[Request], source: str) -> None:
    prompts, before = make(source), ()
    for messages, tools, marked in requests:
        given = ChatInput(messages=messages, tools=tools, late=marked, is_answer_next=False)
        read = prompts.chat(given).token_ids
        assert (*read[: len(before)],) == before
        assert prompts.chat(given).token_ids == read
        before = (*read,)


@settings(max_examples=examples(40), deadline=None)
@given(histories(), st.sampled_from([CHATML, WITH_TOOLS, REFUSING]))
def test_what_is_marked_is_told_alike_by_a_server_that_has_seen_nothing(requests: list[Request], source: str) -> None:
    prompts = make(source)
    for messages, _, marked in requests:
        given = ChatInput(messages=messages, tools=requests[0][1], late=marked)
        assert prompts.chat(given).text == make(source).chat(given).text
