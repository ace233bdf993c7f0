"""A chat completion as a message of content blocks."""

from collections.abc import Sequence

from hotloop.router.translate.calls import answer_id, read_arguments
from hotloop.router.translate.chat_shapes import CallPiece, Choice, Completion, Function, Said
from hotloop.router.translate.failures import bad_answer
from hotloop.router.translate.field import Json
from hotloop.router.translate.usage import ChatUsage, Counts

_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


def render_message(completion: Completion, model: str) -> Json:
    choice = completion.first
    if choice is None or choice.message is None:
        raise bad_answer("it has no message")
    counts = (completion.usage or ChatUsage()).counts
    stem = answer_id(completion.id, "")
    message = render_frame(f"msg_{stem}", completion.model or model, counts)
    content = _render_blocks(choice.message, stem)
    return {**message, "content": content, **render_stop(choice, has_calls=bool(choice.message.tool_calls))}


def render_frame(message_id: str, model: str, counts: Counts) -> Json:
    """A message before its first word."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": counts.render_message(),
    }


def render_stop(choice: Choice, *, has_calls: bool) -> Json:
    """Some end a turn of calls with the wrong reason; a stop string ends it whatever it was about to say."""
    if choice.finish_reason == "stop" and choice.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop_string}
    reason = _STOP_REASONS.get(choice.finish_reason or "stop", "end_turn")
    if reason == "end_turn" and has_calls:
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": None}


def call_id(piece: CallPiece, stem: str, num_before: int) -> str:
    """Some leave it out."""
    return piece.id or f"toolu_{stem}_{num_before}"


def _render_blocks(message: Said, stem: str) -> list[Json]:
    blocks: list[Json] = []
    if message.thought:
        blocks.append({"type": "thinking", "thinking": message.thought, "signature": ""})
    if message.text:
        blocks.append({"type": "text", "text": message.text})
    return blocks + _render_calls(message.tool_calls or (), stem)


def _render_calls(calls: Sequence[CallPiece], stem: str) -> list[Json]:
    """Arguments that were cut off, or that the model got wrong, are no value; the stop reason tells the first."""
    functions = [call.function or Function() for call in calls]
    return [
        {
            "type": "tool_use",
            "id": call_id(call, stem, i),
            "name": function.name or "",
            "input": read_arguments(function.text) or {},
        }
        for i, (call, function) in enumerate(zip(calls, functions, strict=True))
    ]
