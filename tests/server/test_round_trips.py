"""What the model generated is what the next prompt contains, id by id: by every API, with a tokenizer that merges.

The model babbles in tokens that its tokenizer would never cut a text into, so whatever is cut anew shows.
"""

import json
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import pytest
from benchmarks.cache.dialogue import Asking
from benchmarks.cache.script import Beat, Heard, Script
from numpy.typing import NDArray
from tests.loopback import http_at
from tests.server.dialogues import APIS, Dialogue

from hotloop.backends.null import NullBackend
from hotloop.core.config import EngineConfig, ServerConfig
from hotloop.core.request import Request, TokenEvent
from hotloop.engine.engine import Engine
from hotloop.models.model import Model, load_model
from hotloop.server.app import HttpServer

pytestmark = pytest.mark.model

TEXT, NUMBER = {"type": "string", "maxLength": 12}, {"type": "integer", "minimum": 0, "maximum": 99}
TOOL = {
    "type": "function",
    "function": {
        "name": "book_flight",
        "description": "Book a flight.",
        "parameters": {"type": "object", "properties": {"to": TEXT, "seats": NUMBER}, "required": ["to", "seats"]},
    },
}
BEATS = (
    Beat((Heard("Hello, I have a question."),)),
    Beat((Heard("Book me a flight to Rome."),), "book_flight"),
    Beat((Heard('{"status": "booked"}', is_result=True),), "book_flight"),
    Beat((Heard("It is full.", is_result=True),)),
    Beat((Heard("Never mind. Thank you!"),)),
)
SCRIPT = Script("run", "You are an agent of an airline.", (TOOL,), BEATS)


class Babbler(NullBackend):
    """Says only these tokens, one as likely as the other."""

    LIKELIEST = 1000.0  # so that no temperature makes it say anything else

    def __init__(self, token_ids: Sequence[int], **size: int) -> None:
        super().__init__(**size)
        self._spoken = token_ids

    def _next_token(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> int:
        return self._spoken[super()._next_token(token_ids, positions) % len(self._spoken)]


class RememberingEngine(Engine):
    """Knows every request it was ever given."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.requests: list[Request] = []

    def submit(self, requests: Sequence[Request], on_events: Callable[[Sequence[TokenEvent]], None]) -> None:
        self.requests += requests
        super().submit(requests, on_events)


class ModelServing:
    """A server with the words and the template of a real model, and a babbler in its place."""

    def __init__(self, model: Model, config: ServerConfig) -> None:
        tokenizer = model.tokenizer
        spoken = [i for i in range(tokenizer.vocab_size) if _is_syllable(tokenizer.token_bytes(i))]
        backend = Babbler(spoken, block_size=16, num_blocks=512, vocab_size=tokenizer.vocab_size, max_context=8192)
        settings = EngineConfig(debug_checks=True, draft_history_tokens=10_000)
        self.engine = RememberingEngine(tokenizer, backend, settings, name=model.name, template=model.template)
        self._is_ready = threading.Event()
        self._server = HttpServer(self.engine, config, on_ready=self._on_ready)
        self._thread = threading.Thread(target=self._server.run)

    def __enter__(self) -> Self:
        self.engine.start()
        self._thread.start()
        assert self._is_ready.wait(30)
        self.http = http_at(self._url)
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self._server.stop()
        self._thread.join(30)
        self.engine.close()

    def _on_ready(self, url: str, curl: str) -> None:
        self._url = url
        self._is_ready.set()


def _is_syllable(data: bytes) -> bool:
    """Many of them in a row are one word, which a tokenizer cuts otherwise."""
    return len(data) <= 2 and data.isalpha()


@pytest.fixture(scope="module")
def model(default_model_path: Path) -> Model:
    return load_model(str(default_model_path))


def hold(serving: ModelServing, dialogue: Dialogue) -> list[Request]:
    """The requests of a conversation, turn by turn."""
    num_before = len(serving.engine.requests)
    for beat in SCRIPT.beats:
        response = serving.http.post(dialogue.path, json=dialogue.ask(beat))
        assert response.status_code == 200, response.text
        dialogue.hear(read_events(response))
    return serving.engine.requests[num_before:]


def read_events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = (line for line in response.text.splitlines() if line.startswith("data:") and not line.endswith("[DONE]"))
    return [json.loads(line[5:]) for line in lines]


def is_kept(before: Request, after: Request) -> bool:
    """Whether all that was read and written is what the next prompt begins with."""
    return list(after.prompt_ids[: before.num_tokens]) == before.token_ids.tolist()


def is_cut_so(model: Model, request: Request) -> bool:
    """Whether the tokenizer would have cut the answer into the tokens that it is made of."""
    output_ids = request.output_ids.tolist()
    return model.tokenizer.encode(model.tokenizer.decode(output_ids, keep_special=True)) == output_ids


@pytest.mark.parametrize("api", APIS)
@pytest.mark.long
def test_the_next_prompt_has_the_very_tokens_that_were_generated(api: str, model: Model) -> None:
    with ModelServing(model, ServerConfig(port=0)) as serving:
        requests = hold(serving, APIS[api](SCRIPT, Asking(max_tokens=24, temperature=1, salt="s")))
    assert len(requests) == len(BEATS)
    assert sum(not is_cut_so(model, request) for request in requests) >= 3  # else this would prove nothing
    for before, after in pairwise(requests):
        assert is_kept(before, after)
        assert after.num_cached >= before.num_computed_at_end // 16 * 16


def test_without_exact_turns_answers_are_cut_anew(model: Model) -> None:
    with ModelServing(model, ServerConfig(port=0, exact_turns=False)) as serving:
        requests = hold(serving, APIS["chat"](SCRIPT, Asking(max_tokens=24, temperature=1, salt="s")))
    assert not all(is_kept(before, after) for before, after in pairwise(requests))
