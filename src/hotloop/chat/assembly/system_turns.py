"""System messages in the middle of a conversation, for templates that would refuse them or move them to the front.

Most templates word a system message where it stands, and then nothing is to be done. For the others a late one becomes
words of the user's, set apart: what came before it stays as it was.
"""

from collections.abc import Sequence
from dataclasses import replace

from hotloop.core.errors import RequestError
from hotloop.core.message import Message
from hotloop.models.template import ChatTemplate

_TURNS = (
    Message("system", "Be kind."),
    Message("user", "One."),
    Message("assistant", "Two."),
    Message("user", "Three."),
)
_LATE = Message("system", "Be brief.")


def keeps_system_turns(template: ChatTemplate) -> bool:
    """Whether a late system message only adds to what was there before it. Found out by trying."""
    try:
        before = template.render(_TURNS, add_generation_prompt=False)
        after = template.render((*_TURNS, _LATE), add_generation_prompt=False)
    except RequestError:
        return False
    return after.startswith(before) and _LATE.content in after[len(before) :]


def word_system_turns(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Leading system messages as one; later ones at the user's next turn, or the last, or as one of their own."""
    turns: list[Message] = []
    waiting: list[str] = []
    for i, message in enumerate(messages):
        if message.role != "system":
            turns.append(_prepend(waiting, message))
            waiting = []
        elif all(turn.role == "system" for turn in turns):
            turns = [replace(message, content=f"{turns[0].content}\n\n{message.content}") if turns else message]
        else:
            waiting.append(f"<system>\n{message.content}\n</system>")
            next_role = messages[i + 1].role if i + 1 < len(messages) else None
            if next_role not in ("system", "user"):
                _append(waiting, turns)
                waiting = []
    return tuple(turns)


def _prepend(words: Sequence[str], message: Message) -> Message:
    return replace(message, content="\n\n".join([*words, message.content])) if words else message


def _append(words: Sequence[str], turns: list[Message]) -> None:
    if turns[-1].role == "user":
        turns[-1] = replace(turns[-1], content="\n\n".join([turns[-1].content, *words]))
    else:
        turns.append(Message("user", "\n\n".join(words)))
