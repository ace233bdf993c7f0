"""Calls as models really write them, on every API: recognised, never text, nothing behind them, and cached again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.server.asking import function
from tests.server.calls import TOOLS, WEATHER, check_call, tool, write_call
from tests.server.serving import HELLO, Serving

ARGUMENTS = {"city": "Paris", "days": 2}
BARE = json.dumps({"name": "weather", "arguments": ARGUMENTS})
PRETTY = f'{{\n  "name": "weather",\n  "arguments": {json.dumps(ARGUMENTS)}\n}}'
WRITTEN = {
    "bare": BARE,
    "doubled": "{" + BARE + "}",
    "doubled in a fence": f"```json\n{{{PRETTY}}}\n```",
    "closed without having been opened": f"{BARE}\n</tool_call>",
    "followed by text": f"```json\n{PRETTY}\n```\nI expect the weather to be fine.",
    "closed twice": write_call("weather", **ARGUMENTS) + "\n</tool_call>\n",
}
APIS = ("chat", "responses", "messages")


@contextmanager
def saying(*script: str) -> Iterator[Serving]:
    with Serving(script=script) as serving:
        yield serving


def ask(serving: Serving, api: str, *, is_strict: bool, stream: bool, **more: Any) -> list[tuple[str, Any]]:
    """The parts of an answer in their order: text, or a call's name and arguments."""
    schema, body = {"strict": is_strict}, {"stream": stream, "model": "tiny", **more}
    if api == "chat":
        path, body = "/v1/chat/completions", {"messages": HELLO, "tools": [tool("weather", WEATHER, **schema)], **body}
    elif api == "responses":
        path, body = "/v1/responses", {"input": "hello", "tools": [function("weather", WEATHER, **schema)], **body}
    else:
        tools = [{"name": "weather", "input_schema": WEATHER, **schema}]
        path, body = "/v1/messages", {"messages": HELLO, "max_tokens": 300, "tools": tools, **body}
    answer = serving.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return list(_told(api, answer.text) if stream else _parts(api, answer.json()))


def _parts(api: str, answer: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    if api == "chat":
        message = answer["choices"][0]["message"]
        yield from [("text", message["content"])] if message["content"] else []
        for call in message.get("tool_calls") or ():
            yield call["function"]["name"], json.loads(call["function"]["arguments"])
    for item in answer.get("output", ()):
        if item["type"] == "message":
            yield "text", item["content"][0]["text"]
        else:
            yield item["name"], json.loads(item["arguments"])
    for block in answer.get("content", ()):
        yield ("text", block["text"]) if block["type"] == "text" else (block["name"], block["input"])


def _told(api: str, text: str) -> Iterator[tuple[str, Any]]:
    """The same from a stream, in the order in which it was told."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    if api == "chat":
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        calls: dict[int, list[str]] = {}
        for delta in deltas:
            if delta.get("content"):
                yield "text", delta["content"]
            for piece in delta.get("tool_calls") or ():
                call = calls.setdefault(piece["index"], [piece["function"].get("name"), ""])
                call[1] += piece["function"]["arguments"]
        yield from ((name, json.loads(arguments)) for name, arguments in calls.values())
        return
    if api == "responses":
        yield from _parts(api, events[-1]["response"])
        return
    blocks = [dict(event["content_block"], text="") for event in events if event["type"] == "content_block_start"]
    for event in events:
        if event["type"] == "content_block_delta":
            delta = event["delta"]
            blocks[event["index"]]["text"] += delta.get("text", delta.get("partial_json", ""))
    for block in blocks:
        yield ("text", block["text"]) if block["type"] == "text" else (block["name"], json.loads(block["text"]))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("written", WRITTEN)
def test_a_call_is_one_however_it_is_written_and_nothing_follows_it(written: str, api: str) -> None:
    with saying(WRITTEN[written]) as serving:
        for is_strict in (True, False) if written != "closed twice" else (False,):
            for stream in (False, True):
                parts = ask(serving, api, is_strict=is_strict, stream=stream)
                assert parts == [("weather", ARGUMENTS)], (is_strict, stream)


SIX = "\n".join(write_call("weather", city="Rome", days=i % 5 + 1) for i in range(6))


@pytest.mark.long
def test_a_call_there_is_no_room_for_is_not_begun() -> None:
    """Tools of different sizes: there may be room for one of them, and not for the one the model wants."""
    fields = {"tools": TOOLS, "tool_choice": "required"}
    one = len(write_call("weather", city="Rome", days=1))
    with saying(SIX) as serving:
        for max_tokens in range(one, 4 * one, 5):
            [choice] = serving.chat(**fields, max_tokens=max_tokens).json()["choices"]
            assert (choice["finish_reason"], choice["message"]["content"]) == ("length", None)
            calls = choice["message"]["tool_calls"]
            assert max_tokens // (one + 1) - 1 <= len(calls) <= (max_tokens + 1) // (one + 1)
            for call in calls:
                check_call(call["function"]["name"], call["function"]["arguments"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_of_a_required_call_that_is_cut_nothing_is_text(api: str, stream: bool) -> None:
    limit = "max_output_tokens" if api == "responses" else "max_tokens"
    choice = {"type": "any", "disable_parallel_tool_use": True} if api == "messages" else "required"
    single = {} if api == "messages" else {"parallel_tool_calls": False}
    with saying(SIX) as serving:
        for max_tokens in (16, 20, 30):  # which end in the opening, in the key, in the name
            fields = {"tool_choice": choice, limit: max_tokens, **single}
            parts = ask(serving, api, is_strict=True, stream=stream, **fields)
            assert [part for part in parts if part != ("text", "")] == []


@pytest.mark.sampled(5)
@pytest.mark.parametrize("num_chars", [10, 1200])
@pytest.mark.parametrize("written", ["bare", "doubled", "pretty"])
def test_a_bare_call_comes_back_as_it_was_written(written: str, num_chars: int) -> None:
    call = {"name": "say", "arguments": {"words": "ab " * (num_chars // 3)}}
    text = {"bare": json.dumps(call), "doubled": "{" + json.dumps(call) + "}", "pretty": json.dumps(call, indent=1)}
    tools = [tool("say", {"type": "object", "properties": {"words": {"type": "string"}}}, strict=written != "pretty")]
    with saying(text[written], "Done.") as serving:
        first = serving.chat(tools=tools, max_tokens=5000).json()
        message = first["choices"][0]["message"]
        [called] = message["tool_calls"]
        assert json.loads(called["function"]["arguments"]) == call["arguments"]
        called["function"]["arguments"] = json.dumps(call["arguments"])  # as clients do that parse and write it anew
        history = [*HELLO, message, {"role": "tool", "tool_call_id": called["id"], "content": "said"}]
        second = serving.chat(messages=history, tools=tools, max_tokens=50).json()
    num_known = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= num_known - 16
    assert second["choices"][0]["message"]["content"] == "Done."
