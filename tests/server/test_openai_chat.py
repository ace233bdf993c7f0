"""A message told whole and told in pieces, without a server."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.tiny import TOKENIZER
from tests.server.calls import write_call
from tests.server.jobs import make_job

from hotloop.chat.formats import choose_format
from hotloop.core.request import FinishReason, TokenEvent, TokenLogprob, Usage
from hotloop.server.delivery import Piece, parse_piece
from hotloop.server.openai.chat import ChatRenderer
from hotloop.wire.request import ApiRequest, Choice

FORMAT = choose_format(None, TOKENIZER, "generic")
CALL = write_call("look", at="x")
TEXTS = ["", "words", CALL, f"words\n{CALL}\n{CALL}", f"{CALL[:40]}", "<tool_call>\nno JSON", f"{CALL}<tool_ca"]


class Pieces:
    """The pieces of one choice."""

    def __init__(self) -> None:
        self._parser = FORMAT.parser()

    def next(self, text: str, finish: FinishReason | None = None, **fields: Any) -> Piece:
        event = TokenEvent("r", (1,), text, Usage(1, 0, 1), finish_reason=finish, **fields)
        return parse_piece(self._parser, event)


def piece(text: str, finish: FinishReason | None = None, **fields: Any) -> Piece:
    return Pieces().next(text, finish, **fields)


def renderer(*, has_logprobs: bool = False, is_named: bool = False) -> ChatRenderer:
    choice = Choice("required", "f") if is_named else Choice()
    job = make_job(can_call=True, logprobs=0 if has_logprobs else None)
    return ChatRenderer(TOKENIZER, job, ApiRequest(api="chat", model="m", turns=(), choice=choice))


def whole(text: str, finish: FinishReason = FinishReason.STOP, **settings: Any) -> dict[str, Any]:
    return renderer(**settings).whole(0, piece(text, finish))


def told(message: dict[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return message["content"] or "", calls


@given(text=st.sampled_from(TEXTS), cuts=st.sets(st.integers(0, 200)))
def test_the_pieces_of_any_stream_are_the_whole(text: str, cuts: set[int]) -> None:
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[a:b] for a, b in pairwise(bounds)] or [""]
    stream, pieces = renderer(), Pieces()
    content, calls = "", []
    for i, part in enumerate(parts):
        is_last = i == len(parts) - 1
        last = pieces.next(part, FinishReason.STOP if is_last else None)
        for chunk in stream.deltas(3, last):
            assert (chunk["index"], chunk["finish_reason"]) == (3, None)
            content += chunk["delta"].get("content", "")
            for gained in chunk["delta"].get("tool_calls", ()):
                if "id" in gained:
                    calls.append((gained["function"]["name"], ""))
                name, arguments = calls[gained["index"]]
                calls[gained["index"]] = (name, arguments + gained["function"]["arguments"])
    expected = whole(text)
    assert (content, calls) == told(expected["message"])
    assert stream.closing(3, last)["finish_reason"] == expected["finish_reason"]


@pytest.mark.parametrize(
    ("text", "finish", "settings", "reason"),
    [
        (CALL, FinishReason.STOP, {}, "tool_calls"),
        (CALL, FinishReason.STOP, {"is_named": True}, "stop"),
        (CALL, FinishReason.LENGTH, {}, "length"),
        ("words", FinishReason.STOP, {}, "stop"),
        ("words", FinishReason.LENGTH, {}, "length"),
    ],
)
def test_reasons_to_finish(text: str, finish: FinishReason, settings: dict[str, Any], reason: str) -> None:
    assert whole(text, finish, **settings)["finish_reason"] == reason


def test_a_stop_string_after_a_call_is_a_stop() -> None:
    choice = renderer().whole(0, piece(CALL, FinishReason.STOP, stop_match="x"))
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "x")


def test_content_is_null_only_beside_calls() -> None:
    assert whole("")["message"] == {"role": "assistant", "content": "", "refusal": None}
    assert whole(CALL)["message"]["content"] is None
    assert whole(f"words {CALL}")["message"]["content"].strip() == "words"


def test_what_is_held_back_keeps_its_logprobs() -> None:
    stream = renderer(has_logprobs=True)
    [chunk] = stream.deltas(0, piece("<tool", logprobs=(TokenLogprob(1, -0.5),)))
    assert chunk["delta"] == {}
    assert len(chunk["logprobs"]["content"]) == 1
