"""`hotloop demo`: the view of the fleet, and the whole of it with a small model."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.test_main import hotloop
from tests.models.tiny import write_smallest

from hotloop.bench.replay import Progress, ReplayedTurn
from hotloop.bench.workload import AgentJob, generate_jobs
from hotloop.cli.demo import SIZES, AgentTable, Size, Speed, choose_jobs
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
    assert shown(fleet).splitlines()[-1].strip() == "1/6 turns done"


def test_without_a_terminal_every_turn_is_a_line():
    output = io.StringIO()
    fleet = AgentTable.of(JOBS, Console(file=output, width=40))
    fleet.update(Progress("agent-1", 1))
    fleet.update(Progress("agent-1", 1, text="[bold]"))
    fleet.update(DONE)
    fleet.update(Progress("agent-0", 0, error="it broke [here]"))
    assert output.getvalue().splitlines() == [
        "  1/6  agent-1 turn 2/3: prefilled 100 of 1,000 tokens, first word after 0.25 s: ...[bold]",
        "  2/6  agent-0 turn 1/3: it broke [here]",
    ]


def a_machine(prefill: float, decode: float) -> Speed:
    """That computes so many tokens of a prompt, and of answers, in a second."""
    return Speed.of(3_500, ReplayedTurn("job", 1, 1000 / prefill, 1000 / prefill + 20 / decode, Usage(1000, 0, 21)))


def size_of(jobs: list[AgentJob]) -> tuple[int, int]:
    return len(jobs), len(jobs[0].turns)


def test_a_fast_machine_runs_all_of_it_and_a_slow_one_as_much_as_it_can():
    jobs, text = choose_jobs(a_machine(2_000, 100))
    assert jobs == SIZES[0].jobs()
    assert text.startswith(
        "It prefills 2,000 tokens per second, and decodes 100. Chosen for that:\n4 agents of 4 turns"
    )
    sizes = [size_of(choose_jobs(a_machine(speed, speed / 20))[0]) for speed in (800, 400, 200, 100, 1)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == size_of(SIZES[-1].jobs())


@pytest.mark.parametrize("speed", [1_000, 450, 180])  # of the slowest, a naive loop of the largest takes 225 s
def test_what_is_chosen_takes_no_longer_than_it_says(speed: float):
    machine = a_machine(speed, speed / 12)
    jobs, text = choose_jobs(machine)
    seconds = sum(turn.num_chars / 3.5 / speed + 24 * 12 / speed for job in jobs for turn in job.turns)
    assert seconds <= 40
    assert f"the naive half takes some {seconds:.0f} s" in text


def test_what_is_asked_for_is_run_on_any_machine():
    jobs, text = choose_jobs(a_machine(10, 1), agents=3, turns=5)
    assert size_of(jobs) == (3, 5)
    assert jobs == Size(3, 5, SIZES[-1].system_chars).jobs()
    assert "3 agents of 5 turns each" in text
    assert size_of(choose_jobs(a_machine(10, 1), agents=5)[0]) == (5, SIZES[-1].turns)


@pytest.mark.long
def test_the_demo_ends_with_a_table(tmp_path: Path, home_for_processes: Path):
    model = write_smallest(tmp_path / "m")
    result = hotloop("demo", "--model", str(model), "--agents", "2", "--turns", "1", timeout_s=280)
    assert result.returncode == 0, result.stderr
    assert "2 agents of 1 turns each" in result.stdout
    assert "naive: nothing reused, one request at a time" in result.stdout
    assert "agent-1 turn 1/1: prefilled" in result.stdout
    assert "  2/2  " in result.stdout
    assert "tokens recomputed" in result.stdout
    assert "times better" in result.stdout
    assert "tokens forced by the grammar" in result.stdout
    assert "of 4 answers are the same, word for word." in result.stdout


def test_the_demo_of_a_model_that_is_not_there_fails(empty_home: Path):
    result = hotloop("demo", "--model", "none.gguf")
    assert result.returncode == 1
    assert result.stderr.startswith("hotloop: there is no model 'none.gguf'")
