"""A program whose agent appends to a file, to be killed at any moment and begun again: it goes on where it was.

It says when it begins, and how its run ended. A call that was running when the process ended is looked up in the file:
what is there was done.
"""

import asyncio
from multiprocessing.connection import Connection
from pathlib import Path

from hotloop.agent.agent import Agent
from hotloop.agent.events import RunEnded
from hotloop.agent.journal import Uncertain
from hotloop.agent.limits import Limits
from hotloop.agent.model import Ask
from hotloop.agent.scripted import Part, ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import tool
from hotloop.trace.store import StoreTracer

LINES = [f"{turn}-{i}" for turn in range(4) for i in range(2)]


def make_agent(effects: Path, tracer: StoreTracer) -> Agent[str]:
    @tool
    def append(line: str) -> str:
        with effects.open("a") as file:
            file.write(f"{line}\n")
        return f"appended {line}"

    @tool(read_only=True)
    def look(at: str) -> str:
        return f"{at} is there"

    def answer(ask: Ask) -> Part | list[Part]:
        """What is missing of the next turn: of an answer that was cut off, the model sees the calls that were made."""
        calls = [call.arguments for message in ask.messages for call in message.tool_calls]
        missing = [line for line in LINES if not any(f'"{line}"' in arguments for arguments in calls)]
        if not missing:
            return "done"
        turn = missing[0].split("-")[0]
        writes: list[Part] = [ScriptedCall("append", line=line) for line in missing if line.startswith(f"{turn}-")]
        return ["I see. ", ScriptedCall("look", at=turn), *writes]

    def decide(call: Uncertain) -> bool | str:
        line = call.arguments.split('"')[3]
        return "it was done" if line in effects.read_text().splitlines() else True

    effects.touch()
    model = ScriptedModel(answer, pace_s=0.002)
    return Agent(model, [append, look], limits=Limits(turns=None), on_uncertain=decide, tracer=tracer)


async def run(store: Path, effects: Path) -> str:
    tracer = StoreTracer(store)
    assert tracer.journal
    earlier = await asyncio.wrap_future(tracer.journal.list(1))
    if earlier and earlier[0].state == "done":  # it was killed between that and saying so
        return "done"
    agent = make_agent(effects, tracer)
    async for event in agent.stream_resume(earlier[0].run_id) if earlier else agent.stream("go"):
        if isinstance(event, RunEnded):
            ended = f"{event.end} {event.error or ''}".strip()
    tracer.close()
    return ended


def main(folder: Path, told: "Connection[str, str]") -> None:
    told.send("begins")
    told.send(asyncio.run(run(folder / "trace.db", folder / "effects")))
