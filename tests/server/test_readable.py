"""Pictures, documents and hosted tools' notes in a history: a short text in their place, on all three APIs."""

from typing import Any

import anthropic
import openai
import pytest
from tests.server.asking import ask
from tests.server.claude import claude, post, prompt_tokens
from tests.server.serving import HELLO, MODEL, Serving, check_error
from tests.wire.test_image import GIF, JPEG, PNG, url

SIZED = "[image, 640×480]"
PICTURE = url(PNG)
DATA = PICTURE.partition(",")[2]


def image(data: str = DATA) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def changes(usage: Any) -> list[str]:
    told: list[str] = usage["hotloop"].get("changes", [])
    return told


CHAT: list[tuple[Any, str]] = [
    ({"type": "image_url", "image_url": {"url": PICTURE}}, SIZED),
    ({"type": "image_url", "image_url": {"url": url(JPEG)}}, SIZED),
    ({"type": "image_url", "image_url": {"url": url(GIF)}}, SIZED),
    ({"type": "image_url", "image_url": {"url": "https://x/y.png"}}, "[image]"),
    (
        {"type": "file", "file": {"filename": "a\n[b].pdf", "file_data": "data:application/pdf;base64,AA"}},
        "[document, a b .pdf]",
    ),
    ({"type": "file", "file": {"file_id": "f1"}}, "[document]"),
    ({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}, "[audio]"),
]


@pytest.mark.parametrize(("part", "words"), CHAT, ids=[words for _, words in CHAT])
def test_chat(client: openai.OpenAI, serving: Serving, part: Any, words: str) -> None:
    """As many tokens as the words have, in the user's turn and in a tool's result."""
    for role in ("user", "tool"):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        before = [*HELLO, {"role": "assistant", "tool_calls": [call]}] if role == "tool" else HELLO
        about = {"role": role, **({"tool_call_id": "1"} if role == "tool" else {})}
        seen, worded = (
            client.chat.completions.create(
                model=MODEL, messages=[*before, {**about, "content": [text("See:"), each]}], max_tokens=1
            ).usage
            for each in (part, text(words))
        )
        assert seen
        assert worded
        assert seen.prompt_tokens == worded.prompt_tokens
        label = words[1:].split(",")[0].rstrip("]")
        assert changes(seen.to_dict()) == [f"content of type {label} became a short text, 1 in all: only text is read"]
        assert changes(worded.to_dict()) == []


SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result", "url": "u"}]}
RESULT = {"type": "search_result", "title": "T", "source": "S", "content": [text("C")]}
PAPER = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}
PDF = {"type": "document", "title": "Book", "source": {"type": "url", "url": "https://x/y.pdf"}}
MESSAGES: list[tuple[list[Any], list[Any]]] = [
    ([{"role": "user", "content": [image(), text("hi")]}], [{"role": "user", "content": f"{SIZED}\nhi"}]),
    ([{"role": "user", "content": [image("!"), text("hi")]}], [{"role": "user", "content": "[image]\nhi"}]),
    ([{"role": "user", "content": [PDF, text("hi")]}], [{"role": "user", "content": "[document, Book]\nhi"}]),
    ([{"role": "user", "content": [PAPER, RESULT]}], [{"role": "user", "content": "words\nT\nS\nC"}]),
    (
        [
            *HELLO,
            {"role": "assistant", "content": [SEARCH, FOUND, text("Yes.")]},
            {"role": "user", "content": [image()]},
        ],
        [
            *HELLO,
            {"role": "assistant", "content": "[server_tool_use, web_search]\n[web_search_tool_result]\nYes."},
            {"role": "user", "content": SIZED},
        ],
    ),
    (
        [
            *HELLO,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [text("a"), image()]}]},
        ],
        [
            *HELLO,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": f"a\n{SIZED}"}]},
        ],
    ),
]


@pytest.mark.parametrize(("given", "worded"), MESSAGES, ids=range(len(MESSAGES)))
def test_messages(serving: Serving, given: Any, worded: Any) -> None:
    with claude(serving) as client:
        counts = [client.messages.count_tokens(model=MODEL, messages=each).input_tokens for each in (given, worded)]
        answer = client.messages.create(model=MODEL, messages=given, max_tokens=1)
    assert counts == [prompt_tokens(answer)] * 2
    assert bool(changes(answer.usage.to_dict())) == (given is not MESSAGES[3][0])


def test_a_mark_behind_a_picture_stays(serving: Serving) -> None:
    block = image() | {"cache_control": {"type": "ephemeral"}}
    usage = post(serving, messages=[{"role": "user", "content": [text("Look here:"), block]}]).json()["usage"]
    assert usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"] > len(SIZED)


RESPONSES: list[tuple[Any, str]] = [
    ({"type": "input_image", "image_url": PICTURE}, SIZED),
    ({"type": "input_image", "file_id": "f1"}, "[image]"),
    ({"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AA"}, "[document, a.pdf]"),
]


@pytest.mark.parametrize(("part", "words"), RESPONSES, ids=[words for _, words in RESPONSES])
def test_responses(serving: Serving, part: Any, words: str) -> None:
    said = {"type": "input_text", "text": "See:"}
    for item in ({"role": "user"}, {"type": "function_call_output", "call_id": "1"}):
        name = "output" if "type" in item else "content"
        seen, worded = (
            ask(serving, input=[{"role": "user", "content": "hi"}, {**item, name: [said, each]}]).json()
            for each in (part, {"type": "input_text", "text": words})
        )
        assert seen["usage"]["input_tokens"] == worded["usage"]["input_tokens"]
        assert len(changes(seen["usage"])) == 1


def test_a_response_goes_on_with_a_picture_alone(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="hello", max_output_tokens=2)
    item: Any = {"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]}
    second = client.responses.create(model=MODEL, input=[item], previous_response_id=first.id, max_output_tokens=2)
    third = client.responses.create(model=MODEL, input="more", previous_response_id=second.id, max_output_tokens=2)
    assert third.usage
    assert len(changes(third.usage.to_dict())) == 1
    listed = client.responses.input_items.list(third.id, order="asc").data
    assert [item.type for item in listed] == ["message"] * 5


def test_hosted_calls_among_the_items(serving: Serving) -> None:
    calls = [
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "mcp_call", "name": "f", "id": "m"},
    ]
    made = ask(serving, input=[*calls, {"role": "user", "content": "hi"}]).json()
    assert [change.split()[3] for change in changes(made["usage"])] == ["web_search_call", "mcp_call"]


def test_nothing_else_is_an_error(serving: Serving) -> None:
    part = {"type": "image_url", "image_url": {"url": PICTURE}}
    system = {"role": "system", "content": "Help."}
    error = check_error(serving.chat(messages=[system, {"role": "user", "content": [part]}]), 400, "invalid_value")
    assert error["param"] == "messages[1].content[0]"
    assert "'image_url' is not supported: only text is" in error["message"]
    item = {"role": "user", "content": [{"type": "input_image", "image_url": PICTURE}]}
    assert check_error(ask(serving, input=[item]), 400)["param"] == "input[0].content[0]"
    with claude(serving) as client, pytest.raises(anthropic.BadRequestError, match="only text is"):
        client.messages.create(model=MODEL, max_tokens=1, messages=[{"role": "user", "content": [image()]}])  # type: ignore[typeddict-item]


def test_the_prefix_stays_cached_when_a_picture_is_in_it(serving: Serving) -> None:
    look = {
        "role": "user",
        "content": [text("Look at this, please. " * 10), {"type": "image_url", "image_url": {"url": PICTURE}}],
    }
    first = serving.chat(messages=[look]).json()
    answer = first["choices"][0]["message"]
    second = serving.chat(messages=[look, answer, {"role": "user", "content": "And now?"}]).json()["usage"]
    assert second["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 16
