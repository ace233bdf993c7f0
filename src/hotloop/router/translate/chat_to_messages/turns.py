"""The messages of a chat as a system prompt and turns of content blocks.

    system, user, assistant + calls, tool, tool, user  ->  system | user, assistant, user [result, result, text]

Turns of one role that follow each other are one, since Anthropic wants all results of a turn together. Block for block,
a longer conversation begins with what the shorter one was.
"""

from collections.abc import Sequence

from hotloop.core.errors import RequestError
from hotloop.router.translate.calls import read_arguments, tidy_id
from hotloop.router.translate.chat_to_messages.content import mark_last, render_blocks
from hotloop.router.translate.chat_to_messages.marks import mark
from hotloop.router.translate.field import Field, Json, read_text
from hotloop.router.translate.notes import Notes

_SYSTEM = ("system", "developer")


def render_turns(body: Field, notes: Notes) -> Json:
    """`system`, if there is one, and `messages`."""
    messages = body.need("messages").each()
    num_system = next((i for i, message in enumerate(messages) if _role(message) not in _SYSTEM), len(messages))
    system = [block for message in messages[:num_system] for block in _render_said(message, notes)]
    turns = _join(messages[num_system:], notes)
    if not turns:
        raise RequestError("messages: there is nothing to answer", param="messages")
    return {**({"system": system} if system else {}), "messages": turns}


def _join(messages: Sequence[Field], notes: Notes) -> list[Json]:
    turns: list[Json] = []
    for message in messages:
        role, blocks = _render_message(message, notes)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _render_message(message: Field, notes: Notes) -> tuple[str, list[Json]]:
    match _role(message):
        case "user":
            return "user", _render_said(message, notes)
        case "assistant":
            return "assistant", mark_last(message, _render_answer(message, notes), notes)
        case "tool":
            return "user", [_render_result(message, notes)]
        case "system" | "developer":
            notes.add("a system message that comes late is given as the user's")
            return "user", _render_said(message, notes)
    raise message.need("role").refuse("expected system, developer, user, assistant or tool")


def _render_said(message: Field, notes: Notes) -> list[Json]:
    return mark_last(message, render_blocks(message.need("content"), notes), notes)


def _render_answer(message: Field, notes: Notes) -> list[Json]:
    if message.get("function_call"):
        raise message.need("function_call").refuse("is too old to be carried to this replica: use tool_calls")
    calls = message.get("tool_calls")
    blocks = _render_thought(message, notes) + render_blocks(message.get("content"), notes)
    if refusal := message.get("refusal"):
        blocks.append({"type": "text", "text": refusal.text()})
    return blocks + [_render_call(call, notes) for call in (calls.each() if calls else ())]


def _render_thought(message: Field, notes: Notes) -> list[Json]:
    """Anthropic takes back only what it has signed, which `thinking_blocks` has and a bare text has not."""
    if signed := message.get("thinking_blocks"):
        return [_render_signed(block) for block in signed.each()]
    if read_text(message, "reasoning_content"):
        notes.add("reasoning_content left out: it is not signed by the replica's API")
    return []


def _render_signed(block: Field) -> Json:
    names = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}.get(block.kind())
    if names is None:
        raise block.need("type").refuse("expected thinking or redacted_thinking")
    return {"type": block.kind(), **{name: block.need(name).text() for name in names}}


def _render_call(call: Field, notes: Notes) -> Json:
    function = call.need("function")
    arguments = function.get("arguments")
    value = read_arguments(arguments.text()) if arguments else {}
    if value is None:
        notes.add("arguments that are no JSON object are left out of the calls before")
    name = function.need("name").text()
    return {"type": "tool_use", "id": tidy_id(call.need("id")), "name": name, "input": value or {}}


def _render_result(message: Field, notes: Notes) -> Json:
    content = message.need("content")
    block: Json = {"type": "tool_result", "tool_use_id": tidy_id(message.need("tool_call_id"))}
    block["content"] = content.text() if content.is_text else render_blocks(content, notes)
    return mark(message, block, notes)


def _role(message: Field) -> str:
    return message.need("role").text()
