"""A program whose agent appends to a file, to be killed at any moment and begun again: it goes on where it was.

    python -m tests.agent.killed STORE EFFECTS [RUN]

It prints the run's id once that is in the journal, and the answer when there is one. A call that was running when the
process ended is looked up in the file: what is there was done.
"""

import asyncio
import sys
from pathlib import Path

from hotloop.agent.agent import Agent
from hotloop.agent.events import RunEnded, RunStarted, TurnStarted
from hotloop.agent.journal import Uncertain
from hotloop.agent.limits import Limits
from hotloop.agent.model import Ask
from hotloop.agent.scripted import Part, ScriptedCall, ScriptedModel
from hotloop.agent.tools.tool import tool
from hotloop.core.errors import ConfigError
from hotloop.trace.store import StoreTracer

LINES = [f"{turn}-{i}" for turn in range(4) for i in range(2)]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


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


async def run(store: Path, effects: Path, run_id: str | None) -> None:
    tracer = StoreTracer(store)
    agent = make_agent(effects, tracer)
    async for event in agent.stream_resume(run_id) if run_id else agent.stream("go"):
        if isinstance(event, RunStarted):
            begun = event.run_id
        elif isinstance(event, TurnStarted):
            assert tracer.journal
            await asyncio.wrap_future(tracer.journal.read(begun))  # written in order: so the run is there
            say(f"turn {event.turn} {begun}")
        elif isinstance(event, RunEnded):
            say(f"{event.end} {event.output} {event.error}")
    tracer.close()


async def main(store: Path, effects: Path, run_id: str | None) -> None:
    try:
        await run(store, effects, run_id)
    except ConfigError as error:
        if "is done" not in str(error):  # it was killed between that and saying so
            raise
        say("done done None")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
