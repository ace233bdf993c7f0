"""What all runs of an agent have in common."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hotloop.agent.checks import ContextFunction
from hotloop.agent.compaction import Compaction
from hotloop.agent.limits import Limits
from hotloop.agent.model import Model
from hotloop.agent.speculation import SpeculativeTools
from hotloop.agent.tools.consent import Approve, OnUncertain
from hotloop.agent.tools.results import ResultCache
from hotloop.agent.tools.sub_agent import check_approver
from hotloop.agent.tools.tool import AgentTool, FinalAnswer, RunContext
from hotloop.core.prices import Prices
from hotloop.core.request import Priority
from hotloop.trace.tracer import Tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    model: Model
    limits: Limits = field(default_factory=Limits)
    prices: Prices = field(default_factory=Prices)
    approve: Approve | None = None
    speculation: SpeculativeTools | None = None
    results: ResultCache = field(default_factory=ResultCache)
    compaction: Compaction | None = None
    max_result_share: float = 0.25
    can_prefill_ahead: bool = True
    tool_choice: Literal["auto", "required"] = "auto"
    max_tokens: int | None = None
    temperature: float | None = None
    priority: Priority | None = None
    task: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    tracer: Tracer | None = None
    """None is that of whatever runs it, or the default one."""
    on_uncertain: OnUncertain | None = None
    validators: tuple[ContextFunction, ...] = ()
    input_guards: tuple[ContextFunction, ...] = ()
    output_guards: tuple[ContextFunction, ...] = ()
    source: str = ""
    """The file that the agent is from, for who wants to go on with its runs."""

    @property
    def functions(self) -> tuple[ContextFunction, ...]:
        return (*self.validators, *self.input_guards, *self.output_guards)


@dataclass(frozen=True, slots=True)
class Equipment:
    """What an agent brings into a run: a model and how to ask it, its tools, and how it gives its answer."""

    settings: RunSettings
    tools: Sequence[AgentTool]
    final: FinalAnswer | None = None
    instructions: str = ""

    def following(self, first: RunSettings) -> "Equipment":
        """The same in the run of another agent, which is that agent's in all that goes beyond the turns."""
        settings = replace(
            self.settings,
            approve=self.settings.approve or first.approve,
            limits=first.limits,
            input_guards=first.input_guards,
            name=first.name,
            tracer=first.tracer,
            source=first.source,
        )
        return replace(self, settings=settings)

    def check(self, run_context: RunContext) -> None:
        """Raise ConfigError if something is missing that one of the tools, validators and guards needs."""
        run_context.check(self.tools)
        for function in self.settings.functions:
            function.check(run_context)
        check_approver(self.tools, self.settings.approve)
