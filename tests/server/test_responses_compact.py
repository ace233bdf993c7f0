"""A conversation is made shorter, and goes on from what is left of it."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.chat.reasoning_templates import thinking_template
from tests.server.asking import ask, function
from tests.server.calls import WEATHER, write_call
from tests.server.serving import MODEL, Serving, check_error

from hotloop.core.config import ServerConfig
from hotloop.wire.field import Json
from hotloop.wire.part import seal_text, unseal_text
from hotloop.wire.responses.compact import REQUEST

SUMMARY = "The user wants an umbrella forecast; Rome was asked for, and it rains there."
SCRIPT = [
    f"<think>\nI ask.\n</think>\n\n{write_call('weather', city='Rome', days=3)}",
    f"<think>\nShort.\n</think>\n\n{SUMMARY}",
    "Take one.",
]
TOOLS: Any = [function("weather", WEATHER)]
ASKED: Json = {"role": "user", "content": "Do I need an umbrella? " * 20}


@pytest.fixture
def thinker() -> Iterator[Serving]:
    with Serving(script=SCRIPT, template=thinking_template()) as serving:
        yield serving


def compact(serving: Serving, **body: Any) -> Any:
    return serving.http.post("/v1/responses/compact", json={"model": MODEL, **body})


def make_items(first: Json) -> list[Json]:
    output = first["output"]
    return [ASKED, *output, {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "rain"}]


def test_a_summary_takes_the_place_of_all_but_what_the_user_said(thinker: Serving) -> None:
    with thinker.openai() as client:
        first = ask(thinker, input=[ASKED], tools=TOOLS, max_output_tokens=400).json()
        items: Any = make_items(first)
        made = client.responses.compact(model=MODEL, input=items, extra_body={"tools": TOOLS})
        said, compaction = made.output
        assert (made.object, said.type, compaction.type) == ("response.compaction", "message", "compaction")
        assert said.content[0].text == ASKED["content"]  # type: ignore[union-attr]
        assert unseal_text(compaction.encrypted_content or "") == SUMMARY  # type: ignore[union-attr]
        num_first = first["usage"]["input_tokens"]
        assert made.usage.input_tokens_details.cached_tokens >= num_first - 16, "it is put behind what is cached"
        assert made.usage.input_tokens > num_first + len(REQUEST)
        assert made.usage.output_tokens > len(SUMMARY)
        assert made.usage.output_tokens_details.reasoning_tokens > 0

        after: Any = [*made.to_dict(warnings=False)["output"], {"role": "user", "content": "So?"}]
        counted = client.responses.input_tokens.count(model=MODEL, input=after)
        assert counted.input_tokens < made.usage.input_tokens - len(REQUEST)
        rendered = thinker.http.post("/v1/responses", json={"input": after, "max_output_tokens": 1}).json()
        assert rendered["usage"]["input_tokens"] == counted.input_tokens


def test_a_chain_is_made_shorter_by_its_id(thinker: Serving) -> None:
    first = ask(thinker, input=[ASKED], tools=TOOLS, max_output_tokens=400).json()
    result = make_items(first)[-1]
    whole = compact(thinker, input=make_items(first), tools=TOOLS).json()
    chained = compact(thinker, input=[result], previous_response_id=first["id"], tools=TOOLS).json()
    assert chained["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert [item["type"] for item in chained["output"]] == ["message", "compaction"]
    named = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
    by_name = compact(thinker, input=[ASKED, *named, result], tools=TOOLS).json()
    assert by_name["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    check_error(compact(thinker, previous_response_id="resp_1"), 404, "previous_response_not_found")


def test_nothing_of_it_is_stored(thinker: Serving) -> None:
    first = ask(thinker, input=[ASKED], tools=TOOLS, max_output_tokens=400).json()
    made = compact(thinker, input=make_items(first), tools=TOOLS).json()
    check_error(thinker.http.get(f"/v1/responses/{made['id']}"), 404, "response_not_found")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "compaction", "encrypted_content": "gAAAA"}]}, "input[0]"),
        ({"input": [{"type": "compaction", "encrypted_content": "hotloop:text:?"}]}, "input[0]"),
        ({"input": [{"type": "compaction", "encrypted_content": 7}]}, "input[0].encrypted_content"),
        ({"input": "x", "tools": 7}, "tools"),
    ],
    ids=str,
)
def test_bad_input(serving: Serving, body: Json, param: str) -> None:
    assert check_error(compact(serving, **body), 400, "invalid_value")["param"] == param


def test_other_refusals(serving: Serving) -> None:
    check_error(compact(serving, input="a" * 9999), 400, "context_length_exceeded")
    check_error(compact(serving, input="a", model="another"), 404, "model_not_found")
    check_error(serving.http.get("/v1/responses/compact"), 404)


def test_a_model_that_writes_no_summary_has_made_nothing_shorter() -> None:
    with Serving(script=["\n" * 8]) as serving:
        error = check_error(compact(serving, input="hello"), 500)
    assert "no summary" in error["message"]


def test_a_model_cannot_end_its_turn_before_it_has_written_a_summary() -> None:
    with Serving(script=[""]) as serving:
        assert compact(serving, input="hello").json()["usage"]["output_tokens"] > 4


@pytest.mark.long
def test_a_summary_that_is_cut_is_told() -> None:
    with Serving(script=["word " * 1000]) as serving:
        made = compact(serving, input="x" * 3000).json()
    assert any(change.startswith("the summary was cut off after") for change in made["usage"]["hotloop"]["changes"])


def test_a_summary_and_what_follows_it_are_one_turn() -> None:
    """Templates in which user and assistant take turns refuse two messages of the user's in a row."""
    taking_turns = (
        "{% for m in messages %}{% if not loop.first and m.role == messages[loop.index0 - 1].role %}"
        "{{ raise_exception('they take turns') }}{% endif %}"
        "{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    summary = {"type": "compaction", "encrypted_content": seal_text(SUMMARY)}
    user = {"role": "user", "content": "So?"}
    with Serving(script=["Yes."], template=taking_turns) as serving:
        assert ask(serving, input=[user, user]).status_code == 400
        made = ask(serving, input=[user, user, summary, user], max_output_tokens=9).json()
        assert made["output"][0]["content"][0]["text"] == "Yes."
        more = [user, summary, user, {"role": "assistant", "content": "Yes."}, user]
        assert ask(serving, input=more).status_code == 200
        assert ask(serving, input=[{"role": "user", "content": []}, summary]).status_code == 200


def test_what_a_key_has_stored_is_made_shorter_for_nobody_else() -> None:
    with Serving(ServerConfig(port=0, cache_isolation="key"), script=SCRIPT, template=thinking_template()) as serving:
        with serving.openai("anna") as anna:
            first = anna.responses.create(model=MODEL, input="hello", tools=TOOLS)
        with serving.openai("bob") as bob, pytest.raises(openai.NotFoundError):
            bob.responses.compact(model=MODEL, previous_response_id=first.id)
