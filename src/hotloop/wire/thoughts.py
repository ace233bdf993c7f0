"""What a model thought, as Anthropic's blocks and as OpenAI's reasoning items.

A maker takes back only what it has signed or sealed itself. Where a thought is given out in the other's shape, its
signature says whose it is, so that it finds its way back.
"""

from hotloop.core.message import Thought
from hotloop.wire.field import Field, Json, read_text

_MESSAGES, _RESPONSES = "messages:", "responses:"


def is_signed(thought: Thought) -> bool:
    return bool(thought.maker) and (thought.is_sealed or bool(thought.signature))


def parse_block(block: Field) -> Thought:
    match block.kind():
        case "redacted_thinking":
            return Thought(block.need("data").text(), is_sealed=True, maker="messages")
        case "thinking":
            return sign_thought(block.need("thinking").text(), read_text(block, "signature") or "")
    raise block.need("type").refuse("expected thinking or redacted_thinking")


def sign_thought(text: str, signature: str) -> Thought:
    if signature.startswith(_RESPONSES):
        return Thought("", signature.removeprefix(_RESPONSES), maker="responses", summary=text)
    return Thought(text, signature, maker="messages" if signature else "")


def render_block(thought: Thought) -> Json:
    if thought.is_sealed:
        return {"type": "redacted_thinking", "data": thought.text}
    signature = _RESPONSES + thought.signature if thought.maker == "responses" else thought.signature
    return {"type": "thinking", "thinking": thought.shown, "signature": signature}


def open_thought(text: str, summary: str, sealed: str) -> Thought:
    """A reasoning item; `sealed` is its `encrypted_content`."""
    if sealed.startswith(f"{_MESSAGES}:"):
        return Thought(sealed.removeprefix(f"{_MESSAGES}:"), is_sealed=True, maker="messages")
    if sealed.startswith(_MESSAGES):
        return Thought(text, sealed.removeprefix(_MESSAGES), maker="messages", summary=summary)
    is_own = bool(sealed or summary or not text)
    return Thought(text, sealed, maker="responses" if is_own else "", summary=summary)


def seal_thought(thought: Thought) -> Json:
    """The `encrypted_content` of a reasoning item, if it has any."""
    sealed = thought.signature
    if thought.maker == "messages":
        sealed = f"{_MESSAGES}:{thought.text}" if thought.is_sealed else _MESSAGES + sealed if sealed else ""
    return {"encrypted_content": sealed} if sealed else {}
