"""What the engine is asked to do, whatever API asks, and who hears when it is done."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hotloop.chat.prompt import Prompt
from hotloop.chat.stream import CallParser, PlainText
from hotloop.core.grammar import Grammar
from hotloop.core.reasoning import Reasoning
from hotloop.core.request import SamplingParams
from hotloop.server.calling import Calling
from hotloop.server.explain.inquiry import CacheExplanation
from hotloop.server.holds import Pin
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
    reasoning: Reasoning | None = None
    inquiry: CacheExplanation
    caller: Caller
    calling: Calling = field(default_factory=Calling)
    pins: Sequence[Pin] = ()
    has_results: bool = False
    num_choices: int = 1
    parser: Callable[[], CallParser] = PlainText
    is_stream: bool = False
    has_usage: bool = False
    is_silent: bool = False
    """Whether there is no answer: the prompt was only to be prefilled."""
