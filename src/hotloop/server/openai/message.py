"""A choice of a chat completion: the assistant's message with its tool calls, at once or piece by piece."""

from collections.abc import Iterable, Sequence

from hotloop.core.request import FinishReason, TokenLogprob
from hotloop.models.tokenizer import Tokenizer
from hotloop.server.delivery import Piece
from hotloop.server.openai.render import Json, clamp
from hotloop.wire.answer import gather
from hotloop.wire.chat.writer import render_delta, render_message


class ChatWording:
    """A choice is a message from the assistant.

    `is_named`: the one tool to call was named, which OpenAI does not count as a reason to finish.
    """

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        has_logprobs: bool,
        can_call: bool = False,
        is_named: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._has_logprobs = has_logprobs
        self._can_call = can_call
        self._is_named = is_named

    def whole(self, index: int, piece: Piece) -> Json:
        return {
            "index": index,
            "message": render_message(gather(piece.parts)),
            "logprobs": self._render_logprobs(piece.logprobs),
            "finish_reason": self._finish_reason(piece),
            "stop_reason": piece.stop_match,
        }

    def opening(self, index: int) -> Json:
        content = None if self._can_call else ""
        return _chunk(index, {"role": "assistant", "content": content, "refusal": None})

    def deltas(self, index: int, piece: Piece) -> Iterable[Json]:
        """The log probabilities of all that is new go with the first piece, be it empty."""
        deltas = [delta for part in piece.parts if (delta := render_delta(part))]
        if piece.logprobs and not deltas:
            deltas.append({})
        logprobs = self._render_logprobs(piece.logprobs)
        for delta in deltas:
            yield _chunk(index, delta, logprobs)
            logprobs = None

    def closing(self, index: int, piece: Piece) -> Json:
        reason = self._finish_reason(piece)
        return {**_chunk(index, {}), "finish_reason": reason, "stop_reason": piece.stop_match}

    def _finish_reason(self, piece: Piece) -> str | None:
        """Calls are a reason of their own only where the model ended its turn by itself."""
        has_ended = piece.finish_reason is FinishReason.STOP and piece.stop_match is None
        has_called = has_ended and piece.num_calls > 0
        return "tool_calls" if has_called and not self._is_named else piece.finish_reason

    def _render_logprobs(self, logprobs: Sequence[TokenLogprob]) -> Json | None:
        if not self._has_logprobs:
            return None
        content = [
            {
                **self._render_token(logprob.token_id, logprob.logprob),
                "top_logprobs": [self._render_token(*top) for top in logprob.top],
            }
            for logprob in logprobs
        ]
        return {"content": content, "refusal": None}

    def _render_token(self, token_id: int, logprob: float) -> Json:
        token_bytes = self._tokenizer.token_bytes(token_id)
        return {
            "token": self._tokenizer.token_text(token_id),
            "logprob": clamp(logprob),
            "bytes": list(token_bytes) or None,
        }


def _chunk(index: int, delta: Json, logprobs: Json | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
