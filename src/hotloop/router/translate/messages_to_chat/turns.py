"""A conversation in content blocks, as the messages of a chat.

    user       [tool_result, tool_result, text, image]  ->  tool, tool, user
    assistant  [thinking, text, text, tool_use]         ->  assistant, with reasoning_content and a call

Each turn is rendered from itself alone, so a longer conversation begins with exactly what the shorter one was.
"""

from collections.abc import Sequence

from hotloop.core.errors import RequestError
from hotloop.router.translate.calls import write_arguments
from hotloop.router.translate.field import Field, Json
from hotloop.router.translate.messages_to_chat.content import leave_out, render_content, render_parts, render_result
from hotloop.router.translate.messages_to_chat.writing import Writing


def render_turns(body: Field, writing: Writing) -> list[Json]:
    system = body.get("system")
    messages = _render_system(system, writing) if system else []
    turns = body.need("messages").each()
    if not turns:
        raise RequestError("messages: there is nothing to answer", param="messages")
    for turn in turns:
        messages += _render_turn(turn, writing)
    if messages[-1]["role"] == "assistant":
        writing.notes.add("the last turn is the assistant's: it is answered, not continued")
    return messages


def _render_turn(turn: Field, writing: Writing) -> list[Json]:
    role, content = turn.need("role"), turn.need("content")
    match role.text():
        case "user":
            return _render_user(content, writing)
        case "assistant":
            return [_render_assistant(content, writing)]
        case "system":
            return _render_system(content, writing)
    raise role.refuse("expected user, assistant or system")


def _render_system(content: Field, writing: Writing) -> list[Json]:
    rendered = render_content(content, writing)
    return [{"role": "system", "content": rendered}] if rendered else []


def _render_user(content: Field, writing: Writing) -> list[Json]:
    if content.is_text:
        return [{"role": "user", "content": content.text()}]
    blocks = content.each()
    results = [render_result(block, writing) for block in blocks if block.kind() == "tool_result"]
    parts = [part for _, pictures in results for part in pictures]
    parts += render_parts([block for block in blocks if block.kind() != "tool_result"], writing)
    messages = [message for message, _ in results]
    return messages if messages and not parts else [*messages, {"role": "user", "content": parts or ""}]


def _render_assistant(content: Field, writing: Writing) -> Json:
    """An answer comes back in as many blocks as it was given out in, and was one text."""
    if content.is_text:
        return {"role": "assistant", "content": content.text()}
    blocks = content.each()
    for block in blocks:
        writing.lose_mark(block)
        if block.kind() not in ("text", "thinking", "tool_use"):
            leave_out(block, writing)
    text = "".join(block.need("text").text() for block in blocks if block.kind() == "text")
    calls = [_render_call(block) for block in blocks if block.kind() == "tool_use"]
    message: Json = {"role": "assistant", "content": text or None if calls else text}
    message |= _render_thought([block for block in blocks if block.kind() == "thinking"], writing)
    return {**message, "tool_calls": calls} if calls else message


def _render_call(block: Field) -> Json:
    function = {"name": block.need("name").text(), "arguments": write_arguments(block.get("input"))}
    return {"id": block.need("id").text(), "type": "function", "function": function}


def _render_thought(blocks: Sequence[Field], writing: Writing) -> Json:
    """Engines that give reasoning out as such take it back the same way, and templates know where it belongs."""
    thought = "".join(block.need("thinking").text() for block in blocks)
    if not thought:
        return {}
    if writing.is_strict:
        writing.notes.add("thinking left out: the replica's API has no place for it")
        return {}
    return {"reasoning_content": thought}
