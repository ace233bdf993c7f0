"""What came of a call, as the model is told it."""

from typing import NamedTuple

from hotloop.agent.journal import WaitingCall
from hotloop.core.message import Attachment


class Outcome(NamedTuple):
    """What the model is told."""

    text: str
    is_error: bool = False
    num_tries: int = 1
    whole: str = ""
    """The text before it was cut to fit the model's window, if it was."""
    num_chars_cut: int = 0
    """Left out of the text, by this cut or before."""
    traceback: str = ""
    attachments: tuple[Attachment, ...] = ()
    waits_for: tuple[WaitingCall, ...] = ()
    """Calls that somebody has to decide on first, this one or those of a sub-agent: there is no result yet."""
