"""The tutorials run as they stand in docs/tutorials.md, against servers whose models are scripted.

Those that need LangGraph or Claude Code are in tests/clients/test_tutorials.py.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from tests.server.calls import write_call
from tests.server.serving import Serving
from tests.vllm_server import VllmServer

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorials.md"
LIMIT_S = 120


def blocks(tutorial: str, language: str) -> list[str]:
    section = PAGE.read_text("utf-8").partition(f"\n## {tutorial}\n")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def run(folder: Path, *command: str, code: int = 0) -> str:
    """With hotloop where a shell finds it, as once it is installed."""
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment(folder), timeout=LIMIT_S, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def environment(folder: Path) -> dict[str, str]:
    binaries = folder / "bin"
    binaries.mkdir(exist_ok=True)
    for name, arguments in (("hotloop", "-m hotloop "), ("python", "")):
        (binaries / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments}"$@"\n')
        (binaries / name).chmod(0o755)
    sources = os.pathsep.join([str(ROOT / "src"), *filter(None, sys.path)])
    home = {"HOME": str(folder), "HOTLOOP_HOME": str(folder / "home"), "HOTLOOP_TRACE": "auto"}
    home |= {"GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    return {**os.environ, **home, "PYTHONPATH": sources, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.long
def test_an_agent(tmp_path: Path) -> None:
    weather, unit_test = blocks("An agent", "python")
    install, serve, *commands = "".join(blocks("An agent", "bash")).splitlines()
    assert (install, serve) == ("pip install 'hotloop[cpu]'", "hotloop serve")
    calls = "\n".join(write_call("weather", city=city) for city in ("Paris", "Rome"))
    with Serving(script=[calls, "In Rome."]) as serving:
        (tmp_path / "weather.py").write_text(weather.replace("http://127.0.0.1:8700", serving.url))
        said, shown = (run(tmp_path, *shlex.split(command)) for command in commands)
    assert said.splitlines() == ["In Rome.", "2 turns, 2 calls"]
    assert "2 turns" in shown
    assert "weather" in shown
    (tmp_path / "test_weather.py").write_text(unit_test)
    assert "1 passed" in run(tmp_path, "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_weather.py")


@pytest.mark.long
def test_a_router_in_front_of_vllm(tmp_path: Path) -> None:
    install, doctor, route = "".join(blocks("A router in front of vLLM", "bash")).splitlines()
    [client] = blocks("A router in front of vLLM", "python")
    assert install.startswith("pip install 'hotloop[")
    with VllmServer() as first, VllmServer() as second:

        def at(command: str) -> list[str]:
            return shlex.split(
                command.replace("http://127.0.0.1:8000", first.url).replace("http://127.0.0.1:8001", second.url)
            )

        examined = run(tmp_path, *at(doctor), "--idle", "0", code=1)
        assert "vllm" in examined.lower()
        num_asked = len(first.bodies)
        with routing(tmp_path, [*at(route), "--port", "0"]) as url:
            said = run(tmp_path, "python", "-c", client.replace("http://127.0.0.1:8780", url))
        asked = [len(first.bodies) - num_asked, len(second.bodies)]
    prompts, cached = zip(*(map(int, line.split()) for line in said.splitlines()), strict=True)
    assert sorted(asked) == [0, 3], "all turns went to one replica"
    assert cached[1:] == prompts[:2], "each found the whole prompt before it"


@contextmanager
def routing(folder: Path, command: list[str]) -> Iterator[str]:
    """The address of a router that runs meanwhile."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment(folder)) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().rpartition(" ")[2].strip()
            process.terminate()
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """What an agent sends on the main branch, and after a clock has come into its system prompt."""
    with_clock = ROOT / "examples" / "clock.requests.jsonl"
    shutil.copy(with_clock, tmp_path / "agent.requests.jsonl")
    without = re.sub(r"\d\d:\d\d:\d\d\.", "noon.", with_clock.read_text("utf-8"))
    (tmp_path / "main.requests.jsonl").write_text(without)
    return tmp_path


@pytest.mark.long
def test_the_linter_before_a_commit(recordings: Path) -> None:
    settings, _ = map(yaml.safe_load, blocks("The linter in CI", "yaml"))
    [hook] = settings["repos"][0]["hooks"]
    [shipped] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    assert (hook["id"], hook["entry"], hook["language"]) == (shipped["id"], shipped["entry"], shipped["language"])
    files = sorted(path.name for path in recordings.iterdir() if re.search(hook["files"], path.name))
    assert files == ["agent.requests.jsonl", "main.requests.jsonl"]
    assert "HL002" in run(recordings, *shlex.split(hook["entry"]), *files, code=1)
    run(recordings, *shlex.split(hook["entry"]), "main.requests.jsonl")


@pytest.mark.long
def test_the_linter_on_a_pull_request(recordings: Path) -> None:
    _, workflow = map(yaml.safe_load, blocks("The linter in CI", "yaml"))
    install, lint, check = (step for step in workflow["jobs"]["lint"]["steps"] if "run" in step)
    assert install["run"] == "pip install hotloop"
    assert "::warning file=agent.requests.jsonl" in run(recordings, "bash", "-c", lint["run"], code=1)
    shell = check["shell"].removesuffix(" {0}").split()
    run(recordings, *shell, "-c", check["run"], code=1)
    assert "tokens recomputed" in (recordings / "summary.md").read_text()
