"""A run that can be had again: `record` it, and `replay` it exactly, without the model and without running the tools.

    record(agent, "run.jsonl").run_sync("Is it warmer in Paris or in Rome?")
    replay(agent, "run.jsonl").run_sync("Is it warmer in Paris or in Rome?")

A replay that is asked something else, by other instructions, tools or a changed loop, fails and says where it departs.
"""

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from hotloop.agent.agent import Agent, ToolSource
from hotloop.agent.tape.lines import TapeWriter
from hotloop.agent.tape.recording import RecordingModel, RecordingSource, RecordingTool, recording_approval
from hotloop.agent.tape.replaying import ReplayModel, ReplaySource, ReplayTool, Tape
from hotloop.agent.tools.foresight import NoForesight
from hotloop.agent.tools.tool import AgentTool

T = TypeVar("T")


def record(agent: Agent[T], path: Path | str) -> Agent[T]:
    """The same agent, whose runs are written to a new tape."""
    tape, settings = TapeWriter(path), agent.settings
    approve = recording_approval(settings.approve, tape) if settings.approve else None
    own, sources = _part(agent)
    tools: list[AgentTool | ToolSource] = [RecordingTool(each, tape) for each in own]
    tools += [RecordingSource(each, tape) for each in sources]
    return agent.rebuild(replace(settings, model=RecordingModel(settings.model, tape), approve=approve), tools)


def replay(agent: Agent[T], path: Path | str, *, is_paced: bool = False) -> Agent[T]:
    """The same agent, on a tape. `is_paced`: it takes as long as it did then.

    Nothing is foreseen: what was run ahead of time is on the tape as a result like any other.
    """
    tape, settings = Tape(path, is_paced=is_paced), agent.settings
    approve = tape.approve if tape.has_verdicts else None
    own, _ = _part(agent)
    tools: list[AgentTool | ToolSource] = [*(ReplayTool(each, tape) for each in own), ReplaySource(tape)]
    changed = replace(settings, model=ReplayModel(tape), approve=approve, foresight=NoForesight())
    return agent.rebuild(changed, tools)


def _part(agent: Agent[T]) -> tuple[list[AgentTool], list[ToolSource]]:
    """Tools, and what tools come from."""
    own: list[AgentTool] = []
    sources: list[ToolSource] = []
    for each in agent.tools:
        if isinstance(each, ToolSource):
            sources.append(each)
        else:
            own.append(each)
    return own, sources
