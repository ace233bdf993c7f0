"""The answers of OpenAI's chat completions as replicas write them, who take liberties with it.

Reasoning is `reasoning_content` to most and `reasoning` to some; why a stop string ended an answer is vLLM's
`stop_reason` and SGLang's `matched_stop`; a choice of a stream may hold a whole `message`.
"""

from typing import Any

import msgspec

from hotloop.router.translate.failures import bad_answer, read_event_failure
from hotloop.router.translate.usage import ChatUsage


class Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None

    @property
    def text(self) -> str:
        """The arguments, which some give as a value."""
        if self.arguments is None or isinstance(self.arguments, str):
            return self.arguments or ""
        return msgspec.json.encode(self.arguments).decode()


class CallPiece(msgspec.Struct):
    function: Function | None = None
    index: int | None = None
    id: str | None = None


class Said(msgspec.Struct):
    """A message, or what it has gained."""

    content: str | list[Any] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallPiece] | None = None

    @property
    def thought(self) -> str:
        return self.reasoning_content or self.reasoning or ""

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(str(part.get("text") or "") for part in self.content if isinstance(part, dict))
        return self.content or self.refusal or ""


class Choice(msgspec.Struct):
    index: int | None = None
    delta: Said | None = None
    message: Said | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    matched_stop: Any = None

    @property
    def said(self) -> Said:
        return self.delta or self.message or Said()

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, if the replica tells; token ids are no strings."""
        return next((stop for stop in (self.stop_reason, self.matched_stop) if isinstance(stop, str)), None)


class Completion(msgspec.Struct):
    """A whole answer, or a chunk of one."""

    id: str | None = None
    model: str | None = None
    choices: list[Choice] | None = None
    usage: ChatUsage | None = None
    error: Any = None

    @property
    def first(self) -> Choice | None:
        return next((choice for choice in self.choices or () if not choice.index), None)


_decoder = msgspec.json.Decoder(Completion)


def read_completion(data: bytes) -> Completion:
    """Raises RemoteError if it makes no sense, or tells of a failure."""
    try:
        completion = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad_answer(error) from None
    if completion.error:
        raise read_event_failure({"error": completion.error})
    return completion
