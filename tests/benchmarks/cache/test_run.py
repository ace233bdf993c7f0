"""Conversations held with a real server whose model is a hash, with every breaker."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.cache.__main__ import cache
from benchmarks.cache.breakers import BREAKERS
from benchmarks.cache.dialogue import Asking
from benchmarks.cache.report import Figures, figures_of
from benchmarks.cache.run import Company, hold, hold_all
from benchmarks.cache.script import Beat, Heard, Script
from benchmarks.cache.wire import Wire
from benchmarks.command import run
from tests.server.calls import write_call
from tests.server.serving import Serving

from hotloop.core.config import ServerConfig
from hotloop.core.errors import RemoteError
from hotloop.wire.field import Json

KINDS = {"kind": {"enum": ["gift", "loan"]}}


def function(name: str) -> Json:
    parameters = {"type": "object", "properties": KINDS, "required": [*KINDS]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = tuple(function(name) for name in ("find", "send", "take"))
BEATS = (
    Beat((Heard("hello"),)),
    Beat((Heard("Find it."),), "find"),
    Beat((Heard("It was found.", is_result=True), Heard("And now?"))),
)
SCRIPTS = [Script(f"run-{i}", "Be kind.", TOOLS, BEATS) for i in range(2)]
UNPROTECTED = ServerConfig(
    port=0, exact_turns=False, canonical_tools=False, move_volatile_lines=False, late_system_as_user=False
)


SCRIPT = ("Good day.", write_call("find", kind="loan"), "All.")


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with Serving(script=SCRIPT) as serving:
        yield serving


async def run_all(serving: Serving, *groups: str) -> dict[str, Figures]:
    async with Wire(serving.url) as wire:
        held = await hold_all(Company(wire, SCRIPTS, 2), groups, 64)
    assert not any(each.errors for each in held.values())
    return {name: figures_of(each) for name, each in held.items()}


async def test_protections_keep_broken_prompts_whole(serving: Serving):
    measured = await run_all(serving, "timestamp", "tools", "late-system", "retokenised")
    none = measured["none"]
    assert (none.num_conversations, none.num_turns, none.num_recomputed, none.num_exact) == (2, 4, 0, 4)
    for name, figures in measured.items():
        if name != "time, unlisted":
            assert figures.recomputed_share <= 0.05, name
    unlisted = measured["time, unlisted"]
    assert unlisted.recomputed_share > 0.5
    assert "diverged" in unlisted.causes


@pytest.mark.long
async def test_without_them_each_breaker_is_named():
    with Serving(UNPROTECTED, script=SCRIPT) as serving:
        measured = await run_all(serving, "timestamp", "tools")
    for name, figures in measured.items():
        if name != "none":
            assert figures.recomputed_share > 0.3, name
            assert "diverged" in figures.causes, name


async def test_a_conversation_that_fails_ends_and_the_others_go_on(serving: Serving):
    long = Script("long", "", (), (BEATS[0], Beat((Heard("x" * 9000),)), BEATS[0]))
    num_turns: list[None] = []
    async with Wire(serving.url) as wire:
        company = Company(wire, [long, SCRIPTS[0]], watch=lambda: num_turns.append(None))
        held = await hold(company, Asking(max_tokens=4, salt="failing"), BREAKERS[0])
    figures = figures_of(held)
    assert (figures.num_conversations, figures.num_turns, figures.num_errors) == (2, 2, 1)
    assert held.errors[0].startswith("long: ")
    assert len(num_turns) == 5


async def test_a_server_that_is_not_there_is_named():
    with pytest.raises(RemoteError, match="cannot reach"):
        async with Wire("http://127.0.0.1:1"):
            pass


def write_transcript(path: Path) -> Path:
    messages: list[Json] = []
    for i, beat in enumerate(BEATS):
        roles = (("tool" if heard.is_result else "user", heard.text) for heard in beat.news)
        messages += [{"role": role, "content": text} for role, text in roles]
        call = {"id": f"call_{i}", "type": "function", "function": {"name": beat.tool, "arguments": "{}"}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call] if beat.tool else []})
    row = {"id": "a", "system": SCRIPTS[0].system, "tools": [*TOOLS], "messages": messages}
    path.write_text(json.dumps(row) + "\n")
    return path


def test_the_command(serving: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = write_transcript(tmp_path / "runs.jsonl")
    argv = ["--url", serving.url, "--data", str(path), "--scenario", "tools"]
    assert run(cache, [*argv, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)[serving.url]
    assert [*values] == ["none", "tools shuffled", "schema keys shuffled"]
    assert values["none"]["num_turns"] == 2
    assert run(cache, argv) == 0
    table = capsys.readouterr().out
    assert "tools shuffled" in table


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--scenario", "tools,nonsense"], "there is no scenario 'nonsense'"),
        (["--scenario", " "], "there is no scenario ''"),
        (["--turns", "1"], "--turns must be at least 2"),
        (["--data", "nowhere"], "cannot read nowhere"),
    ],
)
def test_bad_flags_are_one_clear_line(argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]):
    assert run(cache, ["--url", "http://127.0.0.1:1", *argv]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
