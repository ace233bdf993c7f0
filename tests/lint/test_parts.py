"""Bodies and answers of every API become the same parts."""

import json

import pytest
from tests.lint.stories import TOOLS, assistant, call, result, user

from hotloop.lint.parts import parse_answer, parse_stream, parts_of
from hotloop.wire.usage import ApiUsage


def short(parts):
    return [(part.kind, part.path, part.text) for part in parts]


def test_a_chat_is_read_system_first_then_tools_then_messages():
    body = {
        "messages": [
            {"role": "system", "content": "S"},
            user("U"),
            assistant("A", call("find", '{"id": 1}'), reasoning_content="T"),
            result("R"),
            {
                "role": "user",
                "content": [{"type": "text", "text": "P"}, {"type": "image_url", "image_url": {"url": "x"}}],
            },
        ],
        "tools": TOOLS[:1],
    }
    parts = [*parts_of(body, "chat")]
    assert [part.kind for part in parts] == [
        "system",
        "tool",
        "text",
        "thinking",
        "text",
        "call",
        "result",
        "text",
        "text",
    ]
    assert [part.path for part in parts[-2:]] == ["messages[4].content[0].text", "messages[4].content[1]"]
    assert parts[5].path == "messages[2].tool_calls[0].function.arguments"
    assert parts[5].label == "find"


def test_messages_are_read_tools_first():
    body = {
        "tools": [{"name": "look", "input_schema": {}, "cache_control": {"type": "ephemeral"}}],
        "system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "U"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "T"},
                    {"type": "tool_use", "name": "look", "input": {"a": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "R"}]}]},
        ],
    }
    parts = [*parts_of(body, "messages")]
    assert short(parts)[1:] == [
        ("system", "system[0].text", "S"),
        ("text", "messages[0].content", "U"),
        ("thinking", "messages[1].content[0]", "T"),
        ("call", "messages[1].content[1].input", '{"a": 1}'),
        ("result", "messages[2].content[0].content", "R"),
    ]
    assert [part.has_breakpoint for part in parts] == [True, True, False, False, False, False]
    assert "cache_control" not in parts[0].text


def test_responses_have_items():
    body = {
        "instructions": "S",
        "input": [
            {"role": "user", "content": "U"},
            {"type": "reasoning", "summary": [{"text": "T"}]},
            {"type": "function_call", "name": "find", "arguments": "{}"},
            {"type": "function_call_output", "output": "R"},
        ],
    }
    assert short(parts_of(body, "responses")) == [
        ("system", "instructions", "S"),
        ("text", "input[0].content", "U"),
        ("thinking", "input[1]", "T"),
        ("call", "input[2].arguments", "{}"),
        ("result", "input[3].output", "R"),
    ]


@pytest.mark.parametrize("api", ["chat", "messages", "responses"])
@pytest.mark.parametrize(
    "body", [{}, {"messages": "x", "tools": 1, "input": 2}, {"messages": [1, None], "tools": ["x"]}]
)
def test_what_is_in_the_wrong_place_is_passed_over(api, body):
    assert all(part.kind == "tool" for part in parts_of(body, api))


def sse(*events):
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def test_a_streamed_chat_is_the_answer_it_would_have_been():
    pieces = [{"content": "Hel"}, {"content": "lo"}]
    pieces += [{"tool_calls": [{"index": 0, "id": "c", "function": {"name": "find", "arguments": '{"id"'}}]}]
    pieces += [{"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}]
    events = [{"id": "x", "choices": [{"delta": piece}]} for piece in pieces]
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    streamed = parse_stream(sse(*events, {"id": "x", "choices": [], "usage": usage}), "chat")
    whole = parse_answer(
        {"choices": [{"message": assistant("Hello", call("find", '{"id": 1}'))}], "usage": usage, "id": "x"}, "chat"
    )
    assert streamed == whole


def test_a_streamed_message_is_the_answer_it_would_have_been():
    events = [
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 5, "cache_read_input_tokens": 2}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "look", "input": {}}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}},
        {"type": "message_delta", "usage": {"output_tokens": 4}},
    ]
    answer = parse_stream(sse(*events), "messages")
    assert [(part.kind, part.text) for part in answer.parts] == [("text", "Hi"), ("call", '{"a": 1}')]
    assert answer.usage == ApiUsage(7, 2, 4)


def test_a_streamed_response_ends_in_the_whole_one():
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi"}]}
    events = [{"type": "response.created", "response": {"id": "r", "output": []}}]
    events += [{"type": "response.completed", "response": {"id": "r", "output": [item]}}]
    answer = parse_stream(sse(*events), "responses")
    assert [(part.text, answer.id) for part in answer.parts] == [("Hi", "r")]


def test_a_stream_that_broke_off_is_read_as_far_as_it_came():
    answer = parse_stream(b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n\ndata: {"cho', "chat")
    assert [part.text for part in answer.parts] == ["Hel"]


def test_calls_whose_pieces_are_mixed_are_told_apart():
    pieces = [
        (0, "a", "find", ""),
        (1, "b", "look", ""),
        (0, None, None, '{"id"'),
        (1, None, None, "{"),
        (0, None, None, ": 1}"),
    ]
    deltas = [{"index": i, "id": call_id, "function": {"name": n, "arguments": text}} for i, call_id, n, text in pieces]
    deltas.append({"index": 1, "function": {"arguments": "}"}})
    answer = parse_stream(sse(*({"choices": [{"delta": {"tool_calls": [delta]}}]} for delta in deltas)), "chat")
    assert [(part.label, part.text) for part in answer.parts] == [("find", '{"id": 1}'), ("look", "{}")]


def test_a_deferred_tool_is_no_part_of_the_beginning():
    tools = [{"name": "look", "input_schema": {}}, {"name": "late", "input_schema": {}, "defer_loading": True}]
    parts = [*parts_of({"tools": tools, "messages": [user("U")]}, "messages")]
    assert [(part.kind, part.label) for part in parts] == [("tool", "look"), ("text", "")]
