"""What the engine is asked to do, whatever API asks, and who hears when it is done."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hotloop.chat.prompt import Prompt
from hotloop.chat.stream import CallParser
from hotloop.core.grammar import Grammar
from hotloop.core.request import SamplingParams
from hotloop.server.calling import Calling
from hotloop.server.delivery import PlainText
from hotloop.server.explain.inquiry import Inquiry
from hotloop.server.holds import Pin, Turn
from hotloop.server.tenants import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the engine is asked to do. Each prompt is answered `num_choices` times."""

    endpoint: str
    prompt_param: str
    """The field that is at fault if a prompt is too long."""
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    grammar: Grammar | None
    turn: Turn
    inquiry: Inquiry
    caller: Caller
    calling: Calling = field(default_factory=Calling)
    pins: Sequence[Pin] = ()
    num_choices: int = 1
    parser: Callable[[], CallParser] = PlainText
    """What makes the parser of a choice's text."""
    is_stream: bool = False
    has_usage: bool = False
    """Whether a stream of chunks ends with the usage."""
    is_silent: bool = False
    """Whether there is no answer: the prompt was only to be prefilled."""
