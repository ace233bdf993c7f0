"""Requests in the shape of each client are answered, and cached when the next turn comes; docs/clients.md has each."""

from pathlib import Path
from typing import Any

import pytest
from tests.clients.shapes import SHAPES, WORD, Shape
from tests.server.calls import write_call
from tests.server.serving import Serving

from hotloop.trace import names
from hotloop.trace.tracer import ListTracer

PAGE = (Path(__file__).parents[2] / "docs/clients.md").read_text()
ANSWER = "The word is known."


def post(serving: Serving, shape: Shape, body: dict[str, Any]) -> Any:
    """The whole answer to a request, which is sent as a stream too if that is how the client sends it."""
    plain = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    whole = serving.http.post(shape.path, json=plain)
    assert whole.status_code == 200, whole.text
    if body.get("stream"):
        streamed = serving.http.post(shape.path, json=body)
        assert streamed.status_code == 200, streamed.text
        assert '"error":{' not in streamed.text
    return whole.json()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.sampled(4)
def test_a_client_is_answered_and_its_next_turn_is_cached(shape: Shape) -> None:
    first = write_call("run", command="cat word.txt") if shape.has_tools else "Let me see."
    tracer = ListTracer(keeps_content=True)
    with Serving(script=[first, ANSWER], tracer=tracer) as serving:
        body = {"model": "tiny", **shape.body}
        answer = post(serving, shape, body)
        body = shape.go_on(body, answer)
        if shape.has_tools:
            assert WORD in str(body), "it was a call, and has its result"
        assert ANSWER in str(post(serving, shape, body))
    requests = [span.attributes for span in tracer.spans if span.name == names.REQUEST]
    before, after = requests[0], requests[len(requests) // 2]  # the first of each turn
    num_known = before[names.NUM_PROMPT] + before[names.NUM_OUTPUT]
    # What is forced behind the last token that was sampled needs no KV, and a block counts when it is full.
    assert after[names.NUM_CACHED] >= num_known - len("}\n</tool_call>") - 16


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_the_page_says_how_to_set_it_up(shape: Shape) -> None:
    assert shape.name.lower() in PAGE.lower()
