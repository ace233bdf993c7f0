"""Every example runs: its agent and its tools as they are, with a model that says what it is told."""

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotloop import ScriptedCall, ScriptedModel, ToolError
from hotloop.agent.agent import Agent
from hotloop.agent.tools.sub_agent import SubAgent
from hotloop.cli.agent.file import AgentFile, load_agent_file
from hotloop.core.message import Message

EXAMPLES = Path(__file__).parents[1] / "examples"
AGENTS = sorted(path.stem for path in EXAMPLES.glob("*.py") if not path.stem.endswith("_server"))


def load(name: str) -> AgentFile:
    return load_agent_file(EXAMPLES / f"{name}.py")


def on_script(agent: "Agent[Any]", *script: Any) -> "Agent[Any]":
    agent.settings = replace(agent.settings, model=ScriptedModel(script))
    return agent


async def results(found: AgentFile, *calls: ScriptedCall) -> list[str]:
    """What the model is given for its calls."""
    agent = on_script(found.agent, list(calls), "done")
    result = await agent.run("Do it.", context=found.context)
    messages: tuple[Message, ...] = result.conversation.messages
    return [m.content for m in messages if m.role == "tool"]


@pytest.mark.parametrize("name", AGENTS)
async def test_an_example_has_an_agent_at_the_usual_address(name: str):
    found = load(name)
    assert found.agent.address == "http://localhost:8700/v1"
    assert found.agent.instructions


async def test_the_shop_answers_from_its_database():
    found = load("shop")
    countries, number, ada, nobody, counted = await results(
        found,
        ScriptedCall("sales", by="country"),
        ScriptedCall("count_orders", status="open"),
        ScriptedCall("orders_of", customer="Ada"),
        ScriptedCall("orders_of", customer="Bob"),
        ScriptedCall("query", sql="SELECT count(*) AS n FROM orders"),
    )
    assert countries.startswith('[{"country":')
    assert int(number) == 10
    assert '"customer":"Ada"' in ada
    assert "the customers are Ada" in nobody
    assert counted == '[{"n":40}]'


@pytest.mark.parametrize("sql", ["DELETE FROM orders", "DROP TABLE customers", "nonsense"])
async def test_nobody_can_write_to_the_shop(sql: str):
    found = load("shop")
    refused, counted = await results(
        found, ScriptedCall("query", sql=sql), ScriptedCall("query", sql="SELECT count(*) n FROM orders")
    )
    assert refused.startswith("Error: ")
    assert counted == '[{"n":40}]'


async def test_the_repository_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("def main():\n    pass\n")
    monkeypatch.chdir(tmp_path)
    listed, read, hits = await results(
        load("repository"),
        ScriptedCall("list_files"),
        ScriptedCall("read_file", path="src/main.py", first_line=2),
        ScriptedCall("search", text="DEF MAIN"),
    )
    assert (listed, read, hits) == ("src/main.py", "    pass", "src/main.py:1: def main():")


@pytest.mark.parametrize(
    "path", ["..", "../secret.txt", "/etc/passwd", "src/../../secret.txt", "link", "link/secret.txt"]
)
def test_no_path_leads_out_of_the_repository(path: str, tmp_path: Path):
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "repository" / "src").mkdir(parents=True)
    (tmp_path / "repository" / "link").symlink_to(tmp_path)
    repository = runpy.run_path(str(EXAMPLES / "repository.py"))["Repository"](tmp_path / "repository")
    with pytest.raises(ToolError, match="outside of the repository"):
        repository.find(path)
    assert list(repository.files(repository.root)) == []


async def test_a_link_to_a_file_outside_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "link.txt").symlink_to(tmp_path / "secret.txt")
    monkeypatch.chdir(tmp_path / "repository")
    assert await results(load("repository"), ScriptedCall("search", text="secret")) == ["nothing found"]


@pytest.mark.long
async def test_the_notes_are_kept_by_an_mcp_server():
    written, read, listed = "written", "a tent", '{"result":["groceries","ideas","trip"]}'
    found = load("notes_mcp")
    async with on_script(
        found.agent,
        ScriptedCall("write_note", title="trip", text=read),
        [ScriptedCall("read_note", title="trip"), ScriptedCall("list_notes")],
        "done",
    ) as agent:
        result = await agent.run("A note, please.")
    assert [m.content for m in result.conversation.messages if m.role == "tool"] == [written, read, listed]


async def test_the_pipeline_reads_once_says_its_classes_and_shares_results_with_its_sub_agent():
    found = load("pipeline")
    asks = ScriptedCall("what_to_pack", prompt="for Rome")
    looks = [ScriptedCall("weather", city="Rome"), ScriptedCall("weather", city="Rome"), asks]
    script = ScriptedModel([looks, "By train."])
    helper = ScriptedModel([[ScriptedCall("weather", city="Rome")], "A hat."])
    advisor = next(tool for tool in found.agent.tools if isinstance(tool, SubAgent))
    inner = advisor._run.__self__
    inner.settings = replace(inner.settings, model=helper)
    found.agent.settings = replace(found.agent.settings, model=script, approve=lambda call: True)
    result = await found.agent.run("Go.", context=found.context)
    said = [message.content for message in result.conversation.messages if message.role == "tool"]
    assert said == ['{"city":"Rome","celsius":23}'] * 2 + ["A hat."]
    assert result.spent.num_reused == 1
    assert [ask.priority.name for ask in (script.asks[0], helper.asks[0])] == ["INTERACTIVE", "WORKFLOW"]
    assert (helper.asks[0].task, helper.asks[0].parent_id) == ("simple_qa", result.conversation.session_id)
