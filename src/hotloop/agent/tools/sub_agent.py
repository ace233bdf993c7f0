"""An agent as a tool of another: a call is a run of its own, told and charged to the run it is called from."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pydantic

from hotloop.agent.conversation import Conversation
from hotloop.agent.tools.consent import Approve
from hotloop.agent.tools.source import ToolSource
from hotloop.agent.tools.tool import AgentTool, RunContext, ToolOptions, plain_schema, validate
from hotloop.core.errors import ConfigError
from hotloop.core.message import Tool


class _Task(pydantic.BaseModel, extra="forbid"):
    prompt: str = pydantic.Field(description="what is to be done, with all there is to know for it")


class SubAgent:
    """A call is a run and a conversation of its own; what it uses up is charged to the run it is called from.

    All calls begin alike, so each conversation is a branch of one that has not begun.
    """

    def __init__(
        self,
        run: Callable[..., Awaitable[Any]],
        name: str,
        description: str,
        options: ToolOptions,
        wants: Sequence[type] = (),
        needs_approval: Sequence[str] = (),
    ) -> None:
        """`run` is the agent's, `wants` what its tools want, and `needs_approval` those that its caller approves."""
        self.spec = Tool(name, description, plain_schema(_Task))
        self.options = replace(options, resumable=True)
        self.wants = wants
        self.needs_approval = needs_approval
        self._run = run
        self._root = Conversation()

    def check(self, arguments: str) -> None:
        validate(_Task.model_validate_json, "arguments are", arguments)

    async def run(self, arguments: str, run_context: RunContext) -> Any:
        task = validate(_Task.model_validate_json, "arguments are", arguments)
        # The caller's things are at hand for the tools of this run, too; its Run among them makes it the caller.
        result = await self._run(task.prompt, conversation=self._root.fork(), context=run_context.things)
        return result.output


def approvals_of(tool: AgentTool | ToolSource) -> list[str]:
    """The tools that its caller has to approve: itself, or those of a sub-agent that has nobody to ask."""
    if isinstance(tool, ToolSource):
        return []  # what it has is seen once it is open
    inner = [f"{tool.spec.name}: {each}" for each in tool.needs_approval] if isinstance(tool, SubAgent) else []
    return [tool.spec.name] * tool.options.needs_approval + inner


def check_approver(tools: Iterable[AgentTool | ToolSource], approve: Approve | None) -> None:
    """Raise ConfigError if one of these needs approval and there is no approver."""
    for name in () if approve else (name for tool in tools for name in approvals_of(tool)):
        need = f"the tool {name!r} needs approval, and there is no approver"
        raise ConfigError(f"{need}: pass approve=..., or `hotloop run --approve`")
