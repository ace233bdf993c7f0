"""Functions of the user's that a run asks: for its instructions, whether its answer will do, whether it may go on.

    def instructions(user: Context[User]) -> str: ...
    def only_short(answer: str) -> None: ...            raises ToolError, whose words the model reads and tries again
    def on_topic(prompt: str) -> str | None: ...        words say why the run must end

Beside their own arguments they take things of the run's context by type, as tools do.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_type_hints

from hotloop.agent.tools.tool import RunContext, call_function, context_kind
from hotloop.core.errors import ConfigError, HotloopError


class GuardTripped(HotloopError):
    """A guard has ended the run. `guard` is its name, `reason` what it said."""

    def __init__(self, guard: str, reason: str) -> None:
        super().__init__(f"the guard {guard} has ended the run: {reason}")
        self.guard = guard
        self.reason = reason


class ContextFunction:
    """A function with so many arguments of its own; all others must be of the context, or have a default."""

    def __init__(self, function: Callable[..., Any], num_arguments: int, role: str) -> None:
        self.name = getattr(function, "__name__", type(function).__name__)
        self._role = role
        self._function = function
        hints = get_type_hints(function, include_extras=True) if inspect.isroutine(function) else {}
        parameters = inspect.signature(function).parameters.values()
        kinds = {each.name: context_kind(self.name, each.name, hints.get(each.name, Any)) for each in parameters}
        self._wanted = {name: kind for name, kind in kinds.items() if kind}
        own = [each for each in parameters if each.name not in self._wanted and each.default is each.empty]
        if len(own) != num_arguments:
            takes = f"{num_arguments or 'no'} argument{'' if num_arguments == 1 else 's'}"
            raise ConfigError(f"{role} {self.name} must take {takes} beside things of the context, not {len(own)}")

    @property
    def wants(self) -> tuple[type, ...]:
        return tuple(self._wanted.values())

    def check(self, run_context: RunContext) -> None:
        """Raise ConfigError if something is missing that it wants."""
        run_context.require(f"{self._role} {self.name}", self.wants)

    async def call(self, run_context: RunContext, *values: Any) -> Any:
        things: dict[str, Any] = {name: run_context.find(kind) for name, kind in self._wanted.items()}
        return await call_function(self._function, *values, **things)


def as_functions(functions: Iterable[Callable[..., Any]], role: str) -> tuple[ContextFunction, ...]:
    return tuple(ContextFunction(each, 1, role) for each in functions)


async def check_guards(guards: Sequence[ContextFunction], run_context: RunContext, value: Any) -> None:
    """All at once. Raises GuardTripped by the first that objects; one that fails objects, too."""

    async def check(guard: ContextFunction) -> None:
        try:
            reason = await guard.call(run_context, value)
        except HotloopError:
            raise
        except Exception as error:
            raise GuardTripped(guard.name, f"it failed: {error!r}") from error
        if isinstance(reason, str) and reason:
            raise GuardTripped(guard.name, reason)

    tasks = [asyncio.ensure_future(check(guard)) for guard in guards]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
