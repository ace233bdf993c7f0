"""How the events of a run are shown: those of sub-agents under the name of their agent."""

import io
import json

from rich.console import Console

from hotloop.agent.events import CallDispatched, CallFinished, Compacted, Event, RunStarted, SubAgentEvent, TurnStarted
from hotloop.cli.agent.timeline import Timeline
from hotloop.cli.agent.view import JsonView, PlainView
from hotloop.wire.usage import ApiUsage


def within(agent: str, inner: Event) -> SubAgentEvent:
    return SubAgentEvent(1, "call-1", agent, "run-2", inner)


CALL = CallDispatched(1, "call-1", "research", '{"prompt": "x"}')
BEGUN = within("research", within("clerk", CallDispatched(1, "call-2", "weather", '{"city": "Rome"}')))
ENDED = within("research", within("clerk", CallFinished(1, "call-2", "weather", "24 degrees", False, 0.5)))


def test_lines_say_whose_call_it_is() -> None:
    shown = io.StringIO()
    view = PlainView(Console(file=shown))
    for event in (RunStarted("run-1", "session-1"), BEGUN, ENDED, within("research", TurnStarted(1))):
        view.push(event)
    begun, ended = shown.getvalue().splitlines()
    assert begun.endswith('research:  clerk:  weather {"city": "Rome"} began')
    assert ended.endswith("research:  clerk:  weather took 0.50 s: 24 degrees")


def test_results_that_compaction_cut_are_told() -> None:
    shown = io.StringIO()
    PlainView(Console(file=shown)).push(Compacted(3, 9, 4, ApiUsage(100), 2))
    assert "shortened from 9 messages to 4, 2 results cut" in shown.getvalue()


def test_a_row_says_what_its_agent_does() -> None:
    timeline = Timeline()
    for event in (TurnStarted(1), CALL):
        timeline.push(event)
    assert timeline.turn
    row = timeline.turn.calls["call-1"]
    assert row.note == "running"
    timeline.push(BEGUN)
    assert row.note == "running clerk weather"
    assert timeline.num_calls == 0


def test_json_has_the_event_in_the_event() -> None:
    shown = io.StringIO()
    JsonView(shown).push(BEGUN)
    line = json.loads(shown.getvalue())
    assert (line["event"], line["agent"], line["call_id"], line["run_id"]) == (
        "sub_agent_event",
        "research",
        "call-1",
        "run-2",
    )
    assert line["inner"]["inner"]["event"] == "call_dispatched"
    assert line["inner"]["inner"]["name"] == "weather"
