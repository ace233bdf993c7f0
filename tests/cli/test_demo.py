"""`hotloop demo`: the view of the fleet, and the whole of it with a small model."""

import io
from pathlib import Path

from rich.console import Console
from tests.cli.test_main import hotloop
from tests.models.tiny import write_smallest

from hotloop.bench.replay import Progress, ReplayedTurn
from hotloop.bench.workload import generate_jobs
from hotloop.cli.demo import AgentTable
from hotloop.core.request import Usage

JOBS = generate_jobs(num_jobs=2, num_turns=3, num_output=4)
DONE = Progress("agent-1", 1, step=ReplayedTurn("agent-1", 1, 0.25, 1.0, Usage(1000, 900, 4)))


def shown(fleet: AgentTable) -> str:
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as capture:
        console.print(fleet)
    return capture.get()


def test_the_panel_follows_every_agent():
    fleet = AgentTable.of(JOBS)
    fleet.update(Progress("agent-1", 1))
    assert "prefilling ..." in shown(fleet)
    fleet.update(Progress("agent-1", 1, text="[bold] said"))
    fleet.update(Progress("agent-1", 1, text=" the\nagent"))
    assert "[bold] said the agent" in shown(fleet)
    fleet.update(DONE)
    assert shown(fleet).splitlines()[2].split()[:6] == ["agent-1", "2/3", "100", "900", "0.25", "s"]


def test_without_a_terminal_every_turn_is_a_line():
    output = io.StringIO()
    fleet = AgentTable.of(JOBS, Console(file=output, width=40))
    fleet.update(Progress("agent-1", 1))
    fleet.update(Progress("agent-1", 1, text="[bold]"))
    fleet.update(DONE)
    fleet.update(Progress("agent-0", 0, error="it broke [here]"))
    assert output.getvalue().splitlines() == [
        "  agent-1 turn 2/3: prefilled 100 of 1,000 tokens, first word after 0.25 s: ...[bold]",
        "  agent-0 turn 1/3: it broke [here]",
    ]


def test_the_demo_ends_with_a_table(tmp_path: Path, empty_home: Path):
    model = write_smallest(tmp_path / "m")
    result = hotloop("demo", "--model", str(model), "--agents", "2", "--turns", "1", timeout_s=280)
    assert result.returncode == 0, result.stderr
    assert "naive: nothing reused, one request at a time" in result.stdout
    assert "agent-1 turn 1/1: prefilled" in result.stdout
    assert "tokens recomputed" in result.stdout
    assert "times better" in result.stdout
    assert "tokens forced by the grammar" in result.stdout
    assert "of 4 answers are the same, word for word." in result.stdout


def test_the_demo_of_a_model_that_is_not_there_fails(empty_home: Path):
    result = hotloop("demo", "--model", "none.gguf")
    assert result.returncode == 1
    assert result.stderr.startswith("hotloop: there is no model 'none.gguf'")
