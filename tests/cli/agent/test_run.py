"""`hotloop run`: the files it takes, what it prints, how it ends."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from rich.console import Console
from tests.cli.test_main import hotloop

from hotloop.agent.events import (
    CallArguments,
    CallDispatched,
    CallFinished,
    CallOpened,
    RunEnded,
    RunStarted,
    Text,
    TurnFinished,
    TurnStarted,
)
from hotloop.agent.limits import RunUsage
from hotloop.cli.agent.timeline import BAR_CELLS, Timeline
from hotloop.cli.agent.view import LiveView, render_event
from hotloop.cli.main import run
from hotloop.cli.output import Bar, draw_bar, shorten
from hotloop.wire.usage import ApiUsage

WEATHER = """
from hotloop import Agent, ScriptedCall, Prices, ScriptedModel, tool

@tool(read_only=True)
def weather(city: str) -> str:
    return f"18 degrees in {city}"

@tool(needs_approval=True)
def book(city: str) -> str:
    return f"booked {city}"

def answer(ask):
    last = ask.messages[-1]
    if last.role == "tool":
        return f"It says: {last.content}"
    if "book" in last.content:
        return ["I will.", ScriptedCall("book", city="Rome")]
    return [ScriptedCall("weather", city="Paris"), ScriptedCall("weather", city="Rome")]

agent = Agent(ScriptedModel(answer), tools=[weather, book], instructions="Be brief.", prices=Prices(prompt=1e6))
"""


@pytest.fixture
def weather(tmp_path: Path) -> str:
    return write(tmp_path, WEATHER)


class Ran(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def hotloop_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """The command in this process, with nobody at a terminal."""

    def ran(*argv: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        return Ran(run(["run", *argv]), *capsys.readouterr())

    return ran


def write(folder: Path, text: str) -> str:
    path = folder / "my_agent.py"
    path.write_text(text)
    return str(path)


def test_the_answer_is_on_stdout_and_the_rest_on_stderr(weather: str, hotloop_run: Callable[..., Ran]):
    result = hotloop_run(weather, "How warm is it?")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "It says: 18 degrees in Rome\n"
    assert 'weather {"city": "Paris"} began' in result.stderr
    assert "2 turns, 2 calls" in result.stderr
    assert "of money" in result.stderr


NOISY = """
import os, subprocess, sys
from hotloop import Agent, ScriptedCall, ScriptedModel, tool

print("loaded")

@tool
def shout() -> str:
    print("printed")
    os.write(1, b"written\\n")
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    return "done"

agent = Agent(ScriptedModel([ScriptedCall("shout"), "Quiet."]), tools=[shout])
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("flags", [["--json"], []])
def test_what_tools_print_is_kept_out_of_stdout(tmp_path: Path, flags: list[str]):
    result = hotloop("run", write(tmp_path, NOISY), "go", *flags)
    assert result.returncode == 0
    if flags:
        assert [json.loads(line)["event"] for line in result.stdout.splitlines()][-1] == "run_ended"
    else:
        assert result.stdout == "Quiet.\n"
    for words in ("loaded", "printed", "written", "from a child"):
        assert words in result.stderr


def test_the_prompt_may_come_from_stdin(weather: str, hotloop_run: Callable[..., Ran]):
    assert hotloop_run(weather, stdin="How warm is it?\n").stdout == "It says: 18 degrees in Rome\n"
    empty = hotloop_run(weather)
    assert empty.returncode == 2
    assert "no prompt given" in empty.stderr


def test_events_as_json(weather: str, capsys: pytest.CaptureFixture[str]):
    assert run(["run", weather, "How warm is it?", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [events[0]["event"], events[-1]["event"]] == ["run_started", "run_ended"]
    assert events[-1]["end"] == "done"
    assert events[-1]["output"] == "It says: 18 degrees in Rome"
    assert events[-1]["usage"]["num_output"] > 0
    assert {"call_opened", "call_dispatched", "call_finished", "turn_finished"} <= {each["event"] for each in events}
    assert all(each["at_s"] >= 0 for each in events)


@pytest.mark.parametrize(
    ("approve", "answer"),
    [("all", "booked Rome"), ("none", "Error: the call was not approved"), (None, "no terminal to ask on")],
)
def test_approval(weather: str, approve: str | None, answer: str, hotloop_run: Callable[..., Ran]):
    flags = ["--approve", approve] if approve else []
    assert answer in hotloop_run(weather, "Please book it.", *flags).stdout


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("typed", "answer"),
    [("yes", "booked Rome"), ("n", "the call was not approved\r\n"), ("Paris instead", "not approved: Paris instead")],
)
def test_a_person_is_asked(weather: str, typed: str, answer: str):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "hotloop", "run", weather, "Please book it."]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = read_until(ours, "Run this call?")
        os.write(ours, f"{typed}\n".encode())
        shown += read_until(ours, None)
        assert process.wait(60) == 0
    os.close(ours)
    assert 'book {"city": "Rome"}' in shown
    assert answer in shown


def test_what_is_approved_is_what_is_shown(tmp_path: Path):
    """A return between two values could hide the first on a terminal; what was typed too early answers nothing."""
    call = 'hidden = ScriptedCall("book")\nhidden.arguments = \'{"city": "Rome"\\r   }\'\n\ndef answer'
    path = write(tmp_path, WEATHER.replace("def answer", call).replace('ScriptedCall("book", city="Rome")', "hidden"))
    ours, theirs = pty.openpty()
    os.write(ours, b"yes\n")
    command = [sys.executable, "-m", "hotloop", "run", path, "Please book it."]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = read_until(ours, "Run this call?")
        os.write(ours, b"no\n")
        shown += read_until(ours, None)
        assert process.wait(60) == 0
    os.close(ours)
    assert 'book {"city": "Rome"\\r   }' in shown
    assert "the call was not approved" in shown


def read_until(source: int, words: str | None) -> str:
    """What a terminal shows until it shows this, or until its program has gone."""
    shown = b""
    while words is None or words.encode() not in shown:
        try:
            piece = os.read(source, 4096)
        except OSError:  # how Linux says that nobody has the other end
            break
        if not piece:
            break
        shown += piece
    return shown.decode()


def test_a_conversation_is_saved_and_resumed(weather: str, tmp_path: Path, hotloop_run: Callable[..., Ran]):
    saved = tmp_path / "talk.json"
    assert hotloop_run(weather, "How warm is it?", "--save", str(saved)).returncode == 0
    assert len(json.loads(saved.read_text())["messages"]) == 6
    assert hotloop_run(weather, "And now?", "--continue", str(saved), "--save", str(saved)).returncode == 0
    messages = json.loads(saved.read_text())["messages"]
    assert [m["content"] for m in messages if m["role"] in ("system", "user")] == [
        "Be brief.",
        "How warm is it?",
        "And now?",
    ]


def test_a_run_is_recorded_and_replayed_without_its_model_and_tools(
    weather: str, tmp_path: Path, hotloop_run: Callable[..., Ran]
):
    tape = tmp_path / "tape.jsonl"
    first = hotloop_run(weather, "How warm is it?", "--record", str(tape))
    assert first.returncode == 0, first.stderr
    Path(weather).write_text(WEATHER.replace("18 degrees", "99 degrees").replace("It says", "Others say"))
    again = hotloop_run(weather, "How warm is it?", "--replay", str(tape))
    assert (again.returncode, again.stdout) == (0, first.stdout)
    departed = hotloop_run(weather, "How cold is it?", "--replay", str(tape))
    assert departed.returncode == 1
    assert len(departed.stderr.strip().splitlines()[-1]) > 0


@pytest.mark.parametrize(
    ("text", "flags", "reason"),
    [
        ("x = 1", [], "does not define an Agent"),
        ("import nonsense_module", [], "line 1: ModuleNotFoundError"),
        ("def broken(:", [], "line 1: SyntaxError"),
        ("\n\nraise ValueError('too early')", [], "line 3: ValueError: too early"),
        (
            WEATHER + "\nother = Agent(ScriptedModel(['b']))\ndel agent\nmore = Agent(ScriptedModel(['c']))",
            [],
            "several",
        ),
        (WEATHER, ["--agent", "smith"], "no agent 'smith'; it has: agent"),
        (WEATHER + "\ncontext = 7", [], "`context` must be a list"),
        (WEATHER, ["--continue", "nowhere.json"], "cannot read nowhere.json"),
        (WEATHER, ["--record", "a", "--replay", "b"], "cannot be used together"),
        (WEATHER, ["--approve", "maybe"], "--approve"),
        (WEATHER, ["--url", "nonsense"], "no model at"),
    ],
)
def test_what_is_wrong_is_one_line(
    text: str, flags: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["run", write(tmp_path, text), "Hello", *flags]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert reason in line


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]):
    assert run(["run", "nowhere.py", "Hello"]) == 2
    assert "there is no file nowhere.py" in capsys.readouterr().err


def test_the_only_agent_is_taken_whatever_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write(tmp_path, "from hotloop import *\nfriend = Agent(ScriptedModel(['hello']))")
    assert run(["run", path, "Hello"]) == 0
    assert capsys.readouterr().out == "hello\n"


def test_an_output_that_is_no_text_is_printed_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = "ScriptedModel([ScriptedCall('final_answer', value=[1, 2])])"
    lines = f"from hotloop import *\nagent = Agent({model}, output=list[int])"
    assert run(["run", write(tmp_path, lines), "Count."]) == 0
    assert json.loads(capsys.readouterr().out) == [1, 2]


def test_a_run_that_fails_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["run", write(tmp_path, "from hotloop import *\nagent = Agent(ScriptedModel([]))"), "Hello"]) == 1
    assert "the script has 0 answers" in capsys.readouterr().err


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_it_says_what_was_done(number: signal.Signals, code: int, tmp_path: Path):
    text = (
        "import asyncio\nfrom hotloop import *\n"
        "@tool\nasync def sleep() -> None:\n    await asyncio.Event().wait()\n"
        "@tool\ndef quick() -> int:\n    return 1\n"
        "model = ScriptedModel([ScriptedCall('quick'), [ScriptedCall('quick'), ScriptedCall('sleep')]])\n"
        "agent = Agent(model, tools=[quick, sleep])\n"
    )
    saved = tmp_path / "talk.json"
    command = [sys.executable, "-m", "hotloop", "run", write(tmp_path, text), "Wait.", "--save", str(saved)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        told = ""
        while "sleep {} began" not in told or told.count("quick took") < 2:
            told += (line := process.stderr.readline())
            assert line, "it ended too early"
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait(60) == code
    assert "cancelled in turn 2: 2 calls finished; stopped: sleep {}" in rest
    assert "Traceback" not in rest
    messages = json.loads(saved.read_text())["messages"]
    assert [m["role"] for m in messages] == ["user", *["assistant", "tool"], *["assistant", "tool", "tool"]]
    assert messages[-1]["content"].startswith("Error: this call was broken off"), "and nobody does it again unknowingly"


def test_the_conversation_is_saved_after_every_turn(tmp_path: Path):
    """The program is killed in its second turn, which leaves it no time to save anything."""
    saved = tmp_path / "talk.json"
    text = (
        "import os, signal, time\nfrom hotloop import *\n"
        "@tool\ndef quick() -> int:\n    return 1\n"
        "@tool\ndef die() -> None:\n"
        "    deadline = time.monotonic() + 20\n"
        f"    while not os.path.exists({str(saved)!r}) and time.monotonic() < deadline:\n        time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "agent = Agent(ScriptedModel([ScriptedCall('quick'), ScriptedCall('die')]), tools=[quick, die])\n"
    )
    assert hotloop("run", write(tmp_path, text), "Go.", "--save", str(saved)).returncode == -signal.SIGKILL
    assert [m["role"] for m in json.loads(saved.read_text())["messages"]] == ["user", "assistant", "tool"]
    assert saved.stat().st_mode & 0o777 == 0o600


def test_a_turn_that_cannot_be_saved_is_told_and_ends_no_run(
    weather: str, tmp_path: Path, hotloop_run: Callable[..., Ran]
):
    ran = hotloop_run(weather, "How warm is it?", "--save", str(tmp_path / "nowhere" / "talk.json"))
    assert "It says: 18 degrees" in ran.stdout
    assert ran.stderr.count("cannot write") == 3, "after two turns, and in the end"
    assert ran.returncode == 2


def a_turn() -> list[object]:
    usage = ApiUsage(num_prompt=100, num_cached=87, num_output=7)
    return [
        RunStarted("r", "s", at=0.0),
        TurnStarted(1, at=0.0),
        Text(1, "Let me\x1b[2J look.", at=1.0),
        CallOpened(1, "a", "weather", at=2.0),
        CallArguments(1, "a", '{"city":"Rome"}', at=4.0),
        CallDispatched(1, "a", "weather", '{"city":"Rome"}', at=4.0),
        CallFinished(1, "a", "weather", "18\ndegrees", False, 6.0, at=10.0),
        TurnFinished(1, usage, 1, at=10.0),
    ]


def test_a_call_is_drawn_over_time():
    timeline = Timeline()
    [turn] = [turn for event in a_turn() if (turn := timeline.push(event))]  # type: ignore[arg-type]
    console = Console(file=io.StringIO(), width=160)
    console.print(turn)
    model, call = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert model.startswith("turn 1")
    assert "100 prompt tokens, 87% cached, 7 output" in model
    assert model.count("━") == 0.4 * BAR_CELLS
    assert call.count("·") == 0.2 * BAR_CELLS
    assert call.count("━") == 0.6 * BAR_CELLS
    assert "6.0 s" in call
    assert "18 degrees" in call


def test_a_turn_can_be_drawn_at_any_moment_and_ends_in_a_line():
    console = Console(file=io.StringIO(), width=160, force_terminal=True, highlight=False)
    with LiveView(console) as view:
        for event in a_turn():
            view.push(event)  # type: ignore[arg-type]
        with view.pause():
            console.print("somebody else")
        view.push(RunEnded("done", "x", spent=RunUsage(num_turns=1)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[2J" not in shown, "a model must not move the cursor"
    assert "1 turn, 1 call, " in shown


def test_bars_stay_within_their_cells():
    assert draw_bar([Bar(0.0, 99.0, ("━", ""))], 0.0, 1.0, 30).plain == "━" * 30
    assert draw_bar([Bar(5.0, 6.0, ("━", ""))], 0.0, 1.0, 30).plain.strip() == "━"
    assert draw_bar([], 0.0, 0.0, 30).plain.strip() == ""


def test_long_lines_are_shortened():
    assert shorten("a\n b  c", 10) == "a b c"
    assert shorten("x" * 50, 10) == "xxxxxxx..."
    assert shorten("x" * 50 + "yyy", 10, tail=True) == "...xxxxyyy"


def test_an_error_is_rendered_as_its_line():
    event = RunEnded("failed", error=RuntimeError("no\nway"), at=2.0)  # type: ignore[arg-type]
    assert render_event(event, 1.0)["error"] == "no\nway"
