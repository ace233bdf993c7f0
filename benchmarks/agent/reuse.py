"""What keeping the results of tools that only read is worth, on recorded runs: `python -m benchmarks.agent.reuse FILE`.

Nothing runs: the record says which calls were made, in which order, and by the tool's name whether it only reads. Each
run has a cache of its own, every other call drops all of it, and a call takes a duration by lot.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.agent.speculation import Pace, is_read_only, read_runs
from hotloop.agent.tools.outcome import Outcome
from hotloop.agent.tools.results import ResultCache
from hotloop.agent.tools.tool import RunContext, ToolOptions
from hotloop.core.message import Message, Tool


class RecordedTool:
    wants: tuple[type, ...] = ()

    def __init__(self, name: str, cache_s: float) -> None:
        is_reading = is_read_only(name)
        self.spec = Tool(name, "", {})
        self.traits = ToolOptions(read_only=is_reading, cache_s=cache_s if is_reading else 0.0)

    def check(self, arguments: str) -> None:
        pass

    async def run(self, arguments: str, run_context: RunContext) -> str:
        return ""


class Figures(NamedTuple):
    num_calls: int = 0
    num_read_only: int = 0
    num_saved: int = 0
    tool_s: float = 0.0
    saved_s: float = 0.0


async def measure(runs: Sequence[Sequence[Message]], cache_s: float = 3600.0) -> Figures:
    figures, pace = Figures(), Pace()
    for number, messages in enumerate(runs):
        now = 0.0
        results = ResultCache(clock=lambda: now).open(f"run {number}", "")  # noqa: B023  it is used up in this round
        tools: dict[str, RecordedTool] = {}
        calls = [call for message in messages for call in message.tool_calls]
        for index, call in enumerate(calls):
            tool = tools.setdefault(call.name, RecordedTool(call.name, cache_s))
            took_s = pace.tool_s(f"run {number} call {index}")
            reuse = results.find(tool, call.arguments, RunContext())

            async def fetch(took_s: float = took_s) -> Outcome:
                nonlocal now
                now += took_s
                return Outcome("")

            if not reuse:
                await results.fetch(tool, call.arguments, RunContext(), fetch)
            figures = Figures(
                figures.num_calls + 1,
                figures.num_read_only + tool.traits.read_only,
                figures.num_saved + bool(reuse),
                figures.tool_s + took_s,
                figures.saved_s + (took_s if reuse else 0.0),
            )
    return figures


if __name__ == "__main__":
    for name in sys.argv[1:]:
        found = asyncio.run(measure(read_runs(Path(name))))
        share = found.num_saved / max(1, found.num_read_only)
        print(f"{Path(name).name}: {found}, {share:.1%} of the calls that only read")
