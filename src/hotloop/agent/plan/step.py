"""One step of a plan as a value: a call whose arguments may refer to what earlier steps gave.

Steps refer only backwards, so that no plan has a circle. A step that could never be run as it is written makes the
whole plan a bad one.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from hotloop.agent.plan.reference import STEP_ID, BadReference, find_references
from hotloop.core.message import Tool


class BadPlan(Exception):
    """A plan that cannot be followed; `str(error)` says why."""


@dataclass(frozen=True, slots=True)
class Step:
    id: str
    tool: Tool
    arguments: dict[str, Any]
    """As written: a value may be a reference."""
    needs: tuple[str, ...]
    """The steps it refers to, each once."""


class _Written(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(pattern=f"^{STEP_ID}$")]
    tool: str
    arguments: dict[str, Any]


def parse_step(text: str, tools: Mapping[str, Tool], earlier: Container[str]) -> Step:
    """A step that can be run once the earlier ones are done. Raises BadPlan if it never can."""
    try:
        written = msgspec.json.decode(text.encode("utf-8", "replace"), type=_Written)
        needs = tuple(dict.fromkeys(reference.step_id for reference in find_references(written.arguments)))
    except (msgspec.DecodeError, BadReference) as error:
        raise BadPlan(f"a step cannot be read: {error}") from None
    except RecursionError:
        raise BadPlan("a step is nested too deeply") from None
    if written.id in earlier:
        raise BadPlan(f"there are two steps {written.id!r}")
    if written.tool not in tools:
        raise BadPlan(f"step {written.id!r} calls {written.tool!r}, and there is no such tool")
    for step_id in needs:
        if step_id not in earlier:
            raise BadPlan(f"step {written.id!r} refers to {step_id!r}, and there is no such step before it")
    tool = tools[written.tool]
    _check_names(written, tool)
    return Step(written.id, tool, written.arguments, needs)


def _check_names(written: _Written, tool: Tool) -> None:
    """Whether values are right is for the tool to say, once they are known; which must be there is known now."""
    given, properties = written.arguments.keys(), tool.parameters.get("properties", {})
    if missing := [name for name in tool.parameters.get("required", ()) if name not in given]:
        raise BadPlan(f"step {written.id!r} lacks the argument {missing[0]!r} of {tool.name}")
    is_closed = tool.parameters.get("additionalProperties") is False
    if is_closed and (unknown := [name for name in given if name not in properties]):
        raise BadPlan(f"step {written.id!r} gives {tool.name} an argument {unknown[0]!r}, which it does not take")
