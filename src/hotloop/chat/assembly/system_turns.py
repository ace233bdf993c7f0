"""Which templates word a late system message where it stands; for the others it becomes words of the user's."""

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


def spread_notes(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Each note as a system message behind the message that has it."""
    spread: list[Message] = []
    for message in messages:
        spread += [replace(message, note=""), Message("system", message.note)] if message.note else [message]
    return tuple(spread)
