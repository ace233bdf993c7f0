"""One call of one tool, to its end: a deadline, another try where that does no harm, and always an outcome.

Nothing a tool does gets out of here but its outcome; only being cancelled does.
"""

import asyncio
from dataclasses import dataclass

from hotloop.agent.tools.context import Surroundings
from hotloop.agent.tools.result import render_result
from hotloop.agent.tools.tool import AgentTool, ToolCrashed, ToolError
from hotloop.core.errors import HotloopError

MAX_TRIES = 3
FIRST_PAUSE_S = 0.1  # before another try; twice as long before the next


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the model is told."""

    text: str
    is_error: bool = False
    num_tries: int = 1


async def carry_out(tool: AgentTool, arguments: str, surroundings: Surroundings) -> Outcome:
    """Run a tool. A tool that crashed or ran late is tried again if that does no harm; what it refused is not."""
    pause_s = FIRST_PAUSE_S
    max_tries = MAX_TRIES if tool.traits.can_retry else 1
    for num_tries in range(1, max_tries + 1):
        outcome, can_retry = await _try(tool, arguments, surroundings, num_tries)
        if not can_retry or num_tries == max_tries or _is_cancelled():
            break
        await asyncio.sleep(pause_s)
        pause_s *= 2
    return outcome


async def _try(tool: AgentTool, arguments: str, surroundings: Surroundings, num_tries: int) -> tuple[Outcome, bool]:
    """The outcome, and whether another try might go better."""
    timeout_s = tool.traits.timeout_s
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            return Outcome(render_result(await tool.run(arguments, surroundings)), num_tries=num_tries), False
    except TimeoutError:
        if not deadline.expired():
            return _failure("TimeoutError", num_tries), True
        return _failure(f"{tool.spec.name} did not answer within {timeout_s:g} s", num_tries), True
    except ToolError as error:
        return _failure(str(error) or type(error).__name__, num_tries), isinstance(error, ToolCrashed)
    except HotloopError as error:
        return _failure(str(error), num_tries), False
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        return _failure(f"{tool.spec.name} cancelled itself", num_tries), True
    except (Exception, SystemExit, BaseExceptionGroup) as error:  # not ours: whatever it raises is for the model
        return _failure(f"{type(error).__name__}: {error}", num_tries), True


def _is_cancelled() -> bool:
    """Whether we were told to stop, though the tool may have made something else of it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _failure(reason: str, num_tries: int) -> Outcome:
    return Outcome(render_result(f"Error: {reason}"), is_error=True, num_tries=num_tries)
