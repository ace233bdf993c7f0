"""Prompts far beyond the context are refused for little: they are not tokenized, nothing is compiled for them, and
nothing of them is kept.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine.tiny import byte_tokenizer
from tests.server.serving import HELLO, Serving, check_error

from hotloop.models.tokenizer import Tokenizer

LONG = f"<|{'long' * 50}|>"
FAR = "word " * 200_000  # a million bytes, for a context of 4096 tokens of at most 204
LIMIT = "this model's maximum context length is 4096 tokens"  # the words clients know
MANY = "<|im_end|>" * 4_500  # few bytes for each token, and still too many tokens


class CountingTokenizer(Tokenizer):
    """Knows how much it was made to read."""

    num_chars = 0

    def __init__(self) -> None:
        inner = byte_tokenizer()._inner
        inner.add_special_tokens([LONG])
        super().__init__(inner)

    def encode(self, text: str, *, add_bos: bool = False) -> list[int]:
        self.num_chars += len(text)
        return super().encode(text, add_bos=add_bos)


TOKENIZER = CountingTokenizer()


@pytest.fixture(scope="module")
def counting() -> Iterator[Serving]:
    with Serving(tokenizer=TOKENIZER) as serving:
        serving.chat()
        serving.complete()
        yield serving


def told(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def bodies(text: str) -> dict[str, tuple[dict[str, Any], str]]:
    """The body for each endpoint, and the field at fault."""
    parts = [{"type": "text", "text": text[: len(text) // 2]}, {"type": "text", "text": text[len(text) // 2 :]}]
    return {
        "/v1/completions": ({"prompt": text}, "prompt"),
        "/v1/chat/completions": ({"messages": told(text)}, "messages"),
        "/v1/responses": ({"input": text}, "input"),
        "/v1/responses/input_tokens": ({"input": text}, "input"),
        "/v1/messages": ({"messages": [{"role": "user", "content": parts}], "max_tokens": 4}, "messages"),
        "/v1/messages/count_tokens": ({"messages": told(text)}, "messages"),
        "/tokenize": ({"prompt": text}, "prompt"),
    }


@pytest.mark.parametrize("path", bodies(""))
def test_what_cannot_fit_is_refused_by_its_bytes(counting: Serving, path: str) -> None:
    body, param = bodies(FAR)[path]
    TOKENIZER.num_chars = 0
    response = counting.http.post(path, json=body)
    assert TOKENIZER.num_chars == 0, "nothing was tokenized"
    least = -(-len(FAR) // TOKENIZER.max_token_bytes)
    if path.startswith("/v1/messages"):
        assert response.status_code == 400
        assert response.json()["error"]["message"] == f"prompt is too long: {least} tokens > 4095 maximum"
    else:
        error = check_error(response, 400, "context_length_exceeded")
        assert error["param"] == param
        assert error["message"] == f"{LIMIT}: at least {least} prompt tokens do not fit"


def test_what_will_not_fit_is_read_only_until_that_is_seen(counting: Serving) -> None:
    text = "word " * 160_000  # which would fit if it were cut into the longest tokens
    assert len(text) < len(LONG) * 4096
    TOKENIZER.num_chars = 0
    check_error(counting.complete(prompt=text), 400, "context_length_exceeded")
    assert TOKENIZER.num_chars <= 1 << 16


@pytest.mark.parametrize("text", [FAR, MANY, "a" * 5000])
def test_nothing_is_kept_of_what_is_refused(counting: Serving, text: str) -> None:
    splicer = counting.server._service.chat.prompts._splicer
    before = splicer._pieces.currsize
    check_error(counting.complete(prompt=text), 400, "context_length_exceeded")
    check_error(counting.chat(messages=told(text)), 400, "context_length_exceeded")
    assert splicer._pieces.currsize == before


@pytest.mark.parametrize("text", [FAR, "a" * 5000])
def test_no_schema_is_compiled_for_what_is_refused(counting: Serving, text: str) -> None:
    grammars = counting.engine.grammars
    shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": f"{len(text)}"}}}
    before = grammars.num_misses
    check_error(counting.chat(messages=told(text), response_format=shape), 400, "context_length_exceeded")
    check_error(counting.complete(prompt=text, response_format=shape), 400, "context_length_exceeded")
    message = {"messages": told(text), "max_tokens": 4, "output_config": {"format": shape["json_schema"]}}
    message["output_config"]["format"]["type"] = "json_schema"
    assert counting.http.post("/v1/messages", json=message).status_code == 400
    assert grammars.num_misses == before
    assert counting.chat(messages=HELLO, response_format=shape).status_code == 200
    assert grammars.num_misses == before + 1


def test_a_text_of_long_tokens_still_fits(counting: Serving) -> None:
    """No prose has so few tokens: it is counted before it is encoded."""
    response = counting.complete(prompt=LONG * 4000, max_tokens=1)
    assert response.status_code == 200
    assert response.json()["usage"]["prompt_tokens"] == 4000
