"""Commands from the outside: what they print and how they exit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.bench.fake_server import FakeServer

from hotloop import __version__
from hotloop.cli.app import load_all
from hotloop.cli.commands import COMMANDS, overview
from hotloop.cli.main import run

HEAVY = (
    *("numpy", "starlette", "uvicorn", "httpx", "tokenizers", "jinja2", "gguf", "msgspec", "jsonschema"),
    *("asyncio", "cyclopts", "rich", "hotloop.core.config", "hotloop.cli.serving.serve", "hotloop.cli.bench"),
)


def hotloop(*argv: str, stdin: str = "", timeout_s: float = 120, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hotloop", *argv]
    env = {**os.environ, **environ}
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=env, timeout=timeout_s, check=False)


def test_help_loads_nothing_heavy():
    code = f"""
import sys
from hotloop.cli.main import run
run(sys.argv[1:])
print([name for name in {HEAVY} if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"]])
def test_help_lists_every_command_at_any_width(argv: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(argv) == 0
    said = capsys.readouterr().out
    for name, (_, summary) in [item for commands in COMMANDS.values() for item in commands.items()]:
        assert f"  {name} " in said
        assert " ".join(summary.split()) in " ".join(said.split())
    assert said.isascii()
    assert max(map(len, overview(60).splitlines())) <= 60


def test_the_list_of_commands_says_what_each_says_itself():
    listed = {name: summary for commands in COMMANDS.values() for name, (_, summary) in commands.items()}
    whole = load_all()
    assert {name: (whole[name].help or "").partition("\n\n")[0].strip() for name in listed} == listed


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "command",
    ["serve", "chat", "run", "predict", "simulate", "size", "pull", "rm", "models", "bench", "demo", "version"],
)
def test_every_command_is_there_and_has_help(command: str, capsys: pytest.CaptureFixture[str]):
    assert run([command, "--help"]) == 0
    assert f"hotloop {command}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]):
    assert run(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hotloop"] == __version__
    assert run(["version"]) == 0
    assert __version__ in capsys.readouterr().out
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["lnt", "x"], "there is no command 'lnt': did you mean `hotloop lint`? `hotloop --help` lists them"),
        (["zzz"], "there is no command 'zzz': `hotloop --help` lists them"),
        (["--nope"], "there is no command '--nope': `hotloop --help` lists them"),
        (["serve", "--prt", "1"], "Unknown option: --prt. Did you mean --port?"),
        (["serve", "--port", "x"], "--port"),
        (["serve", "--max-running", "0"], "max_running must be at least 1"),
        (["serve", "--kv-memory", "lots"], "not a size"),
        (["bench", "replay"], "--url"),
        (["bench", "replay", "--url", "http://x", "--agents", "0"], "--agents"),
        (["bench", "replay", "--url", "http://x", "--data", "none.jsonl"], "cannot read none.jsonl"),
        (["chat", "--temperature", "-1"], "--temperature"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]
):
    assert run(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hotloop: ")
    assert captured.err.count("\n") == 1
    assert reason in captured.err


def test_a_failure_is_one_line_and_exit_code_1(tmp_path: Path):
    result = hotloop("pull", str(tmp_path / "none.gguf"), HOTLOOP_HOME=str(tmp_path))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("hotloop: there is no model")
    assert result.stderr.count("\n") == 1


def test_models_lists_what_can_be_pulled(tmp_path: Path):
    result = hotloop("models", "--json", HOTLOOP_HOME=str(tmp_path))
    assert [(entry["name"], entry["is_pulled"]) for entry in json.loads(result.stdout)] == [("smollm2-135m", False)]
    assert "hotloop pull smollm2-135m" in hotloop("models", HOTLOOP_HOME=str(tmp_path)).stdout


def test_an_interrupt_exits_with_130():
    with FakeServer(hangs=True) as server:
        command = [sys.executable, "-m", "hotloop", "bench", "replay", "--url", server.url]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            try:
                assert server.asked.wait(60)
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=60)
            finally:
                process.kill()
    assert (process.returncode, errors) == (130, b"")


def test_a_reader_that_has_gone_is_no_traceback():
    command = f"{sys.executable} -m hotloop serve --help | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "Traceback" not in result.stderr
