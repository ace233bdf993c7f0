"""The picture of docs/agents.md: the run of examples/pipeline.py, with everything on and with each part off in turn.

`python -m docs.pipeline_parts measure` runs it and writes docs/figures/pipeline.json; `make docs` draws that, and a
test checks that the picture is up to date. What the model says is a script, at a pace that is stated; all else is real.
"""

import asyncio
import json
import platform
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

from docs.prefix_map import DARK, LIGHT
from hotloop import Agent, ScriptedCall, ScriptedModel
from hotloop.agent.conversation import Conversation
from hotloop.agent.events import CallDispatched, CallFinished, RunEnded, RunStarted
from hotloop.agent.model import Ask
from hotloop.agent.predict.predictor import Predictor
from hotloop.agent.scripted import Script
from hotloop.agent.speculation import SpeculativeTools
from hotloop.agent.tools.sub_agent import SubAgent
from hotloop.agent.tools.tool import FunctionTool
from hotloop.cli.agent.file import load_agent_file
from hotloop.core.stream import CallDelta, TextDelta
from hotloop.trace.tracer import NullTracer
from hotloop.wire.event import Event

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures" / "pipeline.json"
FIRST_TOKEN_S, TOKENS_PER_S, CHARS_PER_TOKEN = 0.3, 60.0, 4.0
PROMPT = "Is it warmer in Rome or in Oslo, and how do I get there from Paris?"
ROME, OSLO = ScriptedCall("weather", city="Rome"), ScriptedCall("weather", city="Oslo")
SCRIPT: Script = [
    [ROME, OSLO, ScriptedCall("trains", origin="Paris", destination="Rome")],
    ["Rome is warmer.\n", ROME, ScriptedCall("what_to_pack", prompt="A week in Rome, by train from Paris.")],
    "It is warmer in Rome: 23 degrees, and 6 in Oslo. The train from Paris takes nine hours and costs 55 euros.\n",
]
HELPER: Script = [[ROME], "Light clothes, and something against the sun.\n"]
ON = {"early": True, "parallel": True, "kept": True, "ahead": True}
NEW = ON | {"ahead": False}
PARTS = {
    "everything on": ON,
    "calls begin when the answer is whole": ON | {"early": False},
    "one tool at a time": ON | {"parallel": False},
    "results are fetched again": ON | {"kept": False},
    "nothing runs ahead, as nothing was learned yet": NEW,
    "the same, and calls begin when the answer is whole": NEW | {"early": False},
    "the same, and one tool at a time": NEW | {"parallel": False},
    "the same, and results are fetched again": NEW | {"kept": False},
    "none of these": dict.fromkeys(ON, False),
}
PICTURES = {"pipeline.svg": LIGHT, "pipeline-dark.svg": DARK}
_WIDTH, _LEFT, _LANE, _STYLE = 860, 8, 9, "font-family='system-ui, sans-serif' font-size='13'"


class PacedModel(ScriptedModel):
    """Writes as fast as a model does. `times` has when it wrote; a late one gives out nothing until all is written."""

    def __init__(self, script: Script, *, is_late: bool) -> None:
        super().__init__(script)
        self.times: list[tuple[float, float]] = []
        self._is_late = is_late

    async def stream(self, ask: Ask) -> AsyncGenerator[Event, None]:
        began_at, held = time.monotonic(), []
        await asyncio.sleep(FIRST_TOKEN_S)
        async for event in super().stream(ask):
            text = (
                event.text if isinstance(event, TextDelta) else event.arguments if isinstance(event, CallDelta) else ""
            )
            await asyncio.sleep(len(text) / CHARS_PER_TOKEN / TOKENS_PER_S)
            if self._is_late:
                held.append(event)
            else:
                yield event
        self.times.append((began_at, time.monotonic()))
        for event in held:
            yield event


def _num_chars(event: Event) -> int:
    match event:
        case TextDelta():
            return len(event.text)
        case CallDelta():
            return len(event.arguments)
    return 0


def equip(parts: dict[str, bool], model: ScriptedModel, helper: ScriptedModel, predictor: Predictor) -> Agent[Any]:
    agent = load_agent_file(ROOT / "examples" / "pipeline.py").agent
    for each in agent.tools:
        if isinstance(each, SubAgent):
            inner = each._run.__self__  # type: ignore[attr-defined]
            inner.settings = replace(inner.settings, model=helper, tracer=NullTracer())
        elif isinstance(each, FunctionTool) and not parts["kept"]:
            each.options = replace(each.options, cache_s=0.0)
    limits = replace(agent.settings.limits, **({} if parts["parallel"] else {"concurrency": 1}))
    speculation = SpeculativeTools(predictor) if parts["ahead"] else None
    agent.settings = replace(
        agent.settings,
        model=model,
        limits=limits,
        speculation=speculation,
        tracer=NullTracer(),
        approve=lambda call: True,
    )
    return agent


async def learned() -> Predictor:
    """What twelve runs like it have taught."""
    predictor = Predictor()
    agent = equip(ON | {"ahead": False}, ScriptedModel(SCRIPT), ScriptedModel(HELPER), predictor)
    conversation = Conversation()
    await agent.run(PROMPT, conversation=conversation)
    for _ in range(12):
        predictor.learn(conversation.messages)
    return predictor


async def run_with(parts: dict[str, bool]) -> dict[str, Any]:
    is_late = not parts["early"]
    model, helper = PacedModel(SCRIPT, is_late=is_late), PacedModel(HELPER, is_late=is_late)
    agent = equip(parts, model, helper, await learned())
    began_at, ended_at, bars, speculative = 0.0, 0.0, [], set()
    async for event in agent.stream(PROMPT):
        match event:
            case RunStarted():
                began_at = event.at
            case CallDispatched(was_speculative=True):
                speculative.add(event.call_id)
            case CallFinished():
                kind = "ahead" if event.call_id in speculative else "kept" if event.saved_s else "tool"
                bars.append((kind, event.at - event.duration_s, event.at))
            case RunEnded():
                assert event.end == "done", event.error
                ended_at = event.at
    bars += [("model", *each) for each in model.times]
    placed = [[kind, round(since - began_at, 3), round(until - began_at, 3)] for kind, since, until in bars]
    return {"wall_s": round(ended_at - began_at, 3), "bars": sorted(placed, key=lambda bar: bar[1])}


async def measure() -> dict[str, Any]:
    runs = {name: await run_with(parts) for name, parts in PARTS.items()}
    return {"date": time.strftime("%Y-%m-%d"), "machine": f"{platform.machine()}, two cores", "runs": runs}


def draw(colours: tuple[str, str, str, str, str], figures: dict[str, Any]) -> str:
    model, ahead, tool, ink, paper = colours
    most = max(run["wall_s"] for run in figures["runs"].values())
    scale = (_WIDTH - 2 * _LEFT) / most
    parts, y = [], 20
    for name, run in figures["runs"].items():
        parts.append(f"<text x='{_LEFT}' y='{y}'>{name}: {run['wall_s']:.1f} s</text>")
        free_at: list[float] = []
        for kind, since, until in run["bars"]:
            lane = 0 if kind == "model" else 1 + next((i for i, at in enumerate(free_at) if at <= since), len(free_at))
            if lane:
                free_at[lane - 1 : lane] = [until]
            colour, top = {"model": model, "ahead": ahead}.get(kind, tool), y + 6 + lane * (_LANE + 2)
            width = max(2.0, (until - since) * scale)
            place = f"x='{_LEFT + since * scale:.1f}' y='{top}' width='{width:.1f}' height='{_LANE}'"
            parts.append(f"<rect {place} rx='1' fill='{colour}'/>")
        y += 6 + (1 + len(free_at)) * (_LANE + 2) + 24
    for x, colour, words in (
        (8, model, "the model writes"),
        (160, tool, "a tool runs"),
        (280, ahead, "begun before asked"),
    ):
        parts.append(f"<rect x='{x}' y='{y - 10}' width='10' height='10' fill='{colour}'/>")
        parts.append(f"<text x='{x + 16}' y='{y}'>{words}</text>")
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {y + 10}' {_STYLE} fill='{ink}'>"
    return "\n".join([head, f"<rect width='100%' height='100%' fill='{paper}'/>", *parts, "</svg>", ""])


if __name__ == "__main__":
    if "measure" in sys.argv:
        FIGURES.write_text(json.dumps(asyncio.run(measure()), indent=1) + "\n", encoding="utf-8")
    for name, colours in PICTURES.items():
        (ROOT / "docs" / name).write_text(draw(colours, json.loads(FIGURES.read_text("utf-8"))), encoding="utf-8")
