"""Comparisons that clients ask for in the words of their own API, through the real clients."""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import Message
from openai.types.responses import Response
from tests.server.asking import check_events
from tests.server.claude import TOOLS, claude, post, read_events
from tests.server.serving import MODEL, Serving, check_error

from hotloop.core.config import EngineConfig, ServerConfig

RULES = "Read all of it before you say a word, and then say it well, for nobody will ask you twice. " * 2
LATER: list[Any] = [
    {"role": "assistant", "content": "This was said long ago, and it is still what it was then."},
    {"role": "user", "content": "Go on."},
]


@pytest.fixture(scope="module")
def house() -> Iterator[Serving]:
    with Serving() as serving:
        yield serving


@pytest.fixture(scope="module")
def client(house: Serving) -> Iterator[anthropic.Anthropic]:
    with claude(house) as client:
        yield client


@pytest.fixture(scope="module")
def gpt(house: Serving) -> Iterator[openai.OpenAI]:
    with house.openai() as client:
        yield client


def ask(client: anthropic.Anthropic, question: str = "Hello", previous: str | None = None, **fields: Any) -> Message:
    """A conversation that begins with this question; `previous` names the answer to compare with."""
    answer = client.messages.create(
        model=MODEL,
        max_tokens=4,
        messages=[{"role": "user", "content": question}, *LATER],
        diagnostics={"previous_message_id": previous},
        **{"system": RULES} | fields,
    )
    return Message.model_validate_json(answer.model_dump_json(), strict=True)


def reason(answer: Message) -> Any:
    assert answer.diagnostics
    return answer.diagnostics.cache_miss_reason


def test_nothing_to_tell(client: anthropic.Anthropic) -> None:
    first = ask(client)
    assert first.diagnostics is None, "nothing to compare with"
    assert ask(client, previous=first.id).diagnostics is None, "nothing has changed"
    plain = client.messages.create(model=MODEL, max_tokens=4, messages=[{"role": "user", "content": "Hello"}])
    assert plain.diagnostics is None, "nobody asked"


def test_what_has_changed(client: anthropic.Anthropic) -> None:
    first = ask(client, tools=TOOLS)
    changes = {
        "system_changed": ask(client, previous=first.id, tools=TOOLS, system=f"Now. {RULES}"),
        "tools_changed": ask(client, previous=first.id, tools=[TOOLS[0], TOOLS[1] | {"name": "watch"}]),
        "messages_changed": ask(client, "Good day", previous=first.id, tools=TOOLS),
    }
    for kind, answer in changes.items():
        assert reason(answer).type == kind
        assert reason(answer).cache_missed_input_tokens > 0


def test_the_same_in_a_stream(client: anthropic.Anthropic, house: Serving) -> None:
    first = ask(client)
    body = {"system": f"Now. {RULES}", "messages": [{"role": "user", "content": "Hello"}, *LATER], "stream": True}
    fields = {"max_tokens": 4, "diagnostics": {"previous_message_id": first.id}, **body}
    events = read_events(house.http.post("/v1/messages", json=fields, headers={"x-api-key": "none"}).text)
    start = events[0]["message"]["diagnostics"]
    assert start["cache_miss_reason"]["type"] == "system_changed"
    with client.messages.stream(
        model=MODEL, max_tokens=4, messages=body["messages"], diagnostics={"previous_message_id": "msg_none"}
    ) as stream:
        final = stream.get_final_message()
    assert reason(final).type == "previous_message_not_found"
    work = events[-2]["usage"]["hotloop"]
    assert work["causes"]["diverged"] == start["cache_miss_reason"]["cache_missed_input_tokens"]


def test_messages_of_others_are_not_found(client: anthropic.Anthropic, house: Serving) -> None:
    theirs = ask(client)
    with claude(house, api_key="another") as other:
        assert reason(ask(other, previous=theirs.id)).type == "previous_message_not_found"


def test_what_anthropic_has_no_word_for() -> None:
    with Serving(engine_config=EngineConfig(prefix_cache=False)) as serving, claude(serving) as client:
        assert reason(ask(client, previous=ask(client).id)).type == "unavailable"
    with Serving(ServerConfig(port=0, explanations="off")) as serving, claude(serving) as client:
        assert reason(ask(client, previous=ask(client).id)).type == "unavailable"


@pytest.mark.parametrize("diagnostics", ["x", {"previous_message_id": 7}])
def test_nonsense_is_refused(house: Serving, diagnostics: Any) -> None:
    assert post(house, diagnostics=diagnostics).status_code == 400


def respond(gpt: openai.OpenAI, text: str, previous: str | None = None, **fields: Any) -> Response:
    options: Any = {"comparison_response_id": previous}
    answer = gpt.responses.create(
        model=MODEL,
        instructions=RULES,
        input=[{"role": "user", "content": text}, *LATER],
        max_output_tokens=4,
        prompt_cache_options=options,
        **fields,
    )
    return Response.model_validate_json(answer.model_dump_json(), strict=True)


def test_responses(gpt: openai.OpenAI) -> None:
    first = respond(gpt, "Hello there")
    assert first.prompt_cache_diagnostics is None
    same = respond(gpt, "Hello there", first.id).prompt_cache_diagnostics
    assert same
    assert same.type == "cache_hit"
    missed = respond(gpt, "Good day", first.id).prompt_cache_diagnostics
    assert missed
    assert missed.type == "cache_miss"
    assert missed.reason == "input_changed"
    assert missed.cache_missed_tokens > 0
    assert missed.comparison_reusable_tokens
    tool: Any = {"type": "function", "name": "watch", "parameters": {"type": "object"}, "strict": False}
    changed = respond(gpt, "Hello there", first.id, tools=[tool]).prompt_cache_diagnostics
    assert changed
    assert changed.type == "cache_miss"
    unknown = respond(gpt, "Hello there", "resp_none").prompt_cache_diagnostics
    assert unknown
    assert unknown.type == "comparison_response_not_found"


def test_a_streamed_response(gpt: openai.OpenAI, house: Serving) -> None:
    first = respond(gpt, "Hello there")
    body = {
        "input": "Hello there",
        "max_output_tokens": 4,
        "stream": True,
        "prompt_cache_options": {"comparison_response_id": first.id},
    }
    headers = {"authorization": "Bearer none"}
    events = check_events(house.http.post("/v1/responses", json=body, headers=headers).text)
    assert events[-1]["response"]["prompt_cache_diagnostics"]["type"] == "cache_miss"
    assert "prompt_cache_diagnostics" not in events[0]["response"]


@pytest.mark.parametrize("stream", [False, True])
def test_chats_have_it_beside_their_usage(gpt: openai.OpenAI, stream: bool) -> None:
    def chat(text: str, previous: str | None = None) -> tuple[str, Any]:
        fields: Any = {"extra_body": {"prompt_cache_options": {"comparison_response_id": previous}}, "max_tokens": 4}
        messages: Any = [{"role": "system", "content": RULES}, {"role": "user", "content": text}, *LATER]
        if not stream:
            answer = gpt.chat.completions.create(model=MODEL, messages=messages, **fields)
            assert answer.usage
            return answer.id, answer.usage.model_extra["hotloop"]
        *_, last = gpt.chat.completions.create(
            model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}, **fields
        )
        assert last.usage
        return last.id, last.usage.model_extra["hotloop"]

    first, work = chat("Hello there")
    assert "prompt_cache_diagnostics" not in work
    assert chat("Hello there", first)[1]["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    missed = chat("Good day", first)[1]
    assert missed["prompt_cache_diagnostics"]["reason"] == "input_changed"
    assert missed["prompt_cache_diagnostics"]["cache_missed_tokens"] == missed["causes"]["diverged"]


def test_answers_of_every_api_can_be_asked_about(
    client: anthropic.Anthropic, gpt: openai.OpenAI, house: Serving
) -> None:
    completion = gpt.completions.create(model=MODEL, prompt=RULES, max_tokens=2)
    for answer_id in (ask(client).id, respond(gpt, "Hello").id, completion.id):
        response = house.http.get(f"/v1/cache/explain/{answer_id}", headers={"authorization": "Bearer none"})
        assert response.json()["id"] == answer_id
    check_error(house.http.get("/v1/cache/explain/"), 404)
