"""The code of docs/agents.md runs, from top to bottom, with a model that says what it is told."""

import ast
import asyncio
import inspect
import re
from pathlib import Path

import pytest

from hotloop import ScriptedCall, ScriptedModel
from hotloop.agent.model import Ask

PAGE = Path(__file__).parents[1] / "docs" / "agents.md"
ADDRESS = '"http://localhost:8700/v1"'


def answer(ask: Ask) -> str | ScriptedCall:
    """What the page's agents are told, in place of a server."""
    names = {tool.name for tool in ask.tools}
    if "final_answer" in names:
        return ScriptedCall("final_answer", city="Rome", degrees=24)
    is_asked = ask.messages[-1].role == "user"
    if "pay" in names and is_asked:
        return ScriptedCall("pay", amount=5)
    return ScriptedCall("weather", city="Rome") if is_asked and "weather" in names else "done"


def test_the_code_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOTLOOP_TRACE", str(tmp_path / "trace.db"))
    names: dict[str, object] = {"MODEL": ScriptedModel(answer), "__name__": "__main__"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) > 10
    for block in blocks:
        code = compile(block.replace(ADDRESS, "MODEL"), PAGE.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, names))
        else:
            exec(code, names)
    assert names["forecast"] == names["Forecast"]("Rome", 24)  # type: ignore[operator]
