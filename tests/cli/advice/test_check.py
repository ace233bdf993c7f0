"""`hotloop check`: what it counts, when it fails, and what it prints for a pull request."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.bench.fake_server import FakeServer
from tests.server.serving import Serving

from hotloop.cli.main import run
from hotloop.lint.gate import Figures, compare, render_markdown

ROOT = Path(__file__).parents[3]
CLOCK = ROOT / "examples" / "clock.requests.jsonl"


@pytest.fixture
def fixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "fixed.jsonl"
    run(["lint", str(CLOCK), "--fix", "--out", str(path), "--fail-on", "never"])
    capsys.readouterr()
    return path


def changes(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)}


def test_a_clock_in_the_prefix_fails_and_its_fix_does_not(fixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--baseline", str(fixed), "--against", str(CLOCK), "--json"]) == 1
    found = changes(capsys)
    assert {name for name, each in found.items() if each["is_worse"]} == {"tokens recomputed", "cost"}
    assert (found["tokens recomputed"]["before"], found["tokens recomputed"]["after"]) == (0, 3391)
    assert run(["check", "--baseline", str(CLOCK), "--against", str(fixed)]) == 0
    assert "**No worse than the baseline**" in capsys.readouterr().out
    assert run(["check", "--baseline", str(CLOCK), "--against", str(CLOCK)]) == 0


def test_the_page_shows_what_it_prints(fixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["check", "--baseline", str(fixed), "--against", str(CLOCK)])
    assert capsys.readouterr().out in (ROOT / "docs" / "lint.md").read_text("utf-8")


def test_more_steps_fail_beyond_the_tolerance() -> None:
    before, after = Figures(steps=100, money=1.0), Figures(steps=103, money=None)
    assert [each.name for each in compare(before, after, 0.02) if each.is_worse] == ["steps"]
    assert not any(each.is_worse for each in compare(before, after, 0.05))
    assert "| steps | 100 | 103 | +3 (+3%) ❌ |" in render_markdown(compare(before, after, 0.02))


def test_a_server_is_asked_the_recorded_requests_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = "Which of these tools may run ahead of the model, and why? " * 4
    messages = [{"role": "user", "content": said}]
    bodies = [{"model": "tiny", "max_tokens": 2, "messages": messages * number} for number in (1, 1)]
    baseline, kept = tmp_path / "baseline.jsonl", tmp_path / "kept.jsonl"
    baseline.write_text("".join(json.dumps({"request": body, "session": "a"}) + "\n" for body in bodies))
    with Serving() as serving:
        command = ["check", "--baseline", str(baseline), "--against", serving.url, "--out", str(kept), "--json"]
        assert run(command) in (0, 1)
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [row["request"]["messages"] for row in rows] == [body["messages"] for body in bodies]
    assert rows[1]["response"]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert changes(capsys)["steps"]["after"] == 2
    assert run(["check", "--baseline", str(kept), "--against", str(kept)]) == 0


def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert run(["check", "--baseline", str(CLOCK), "--against", str(empty)]) == 2
    assert "no request in" in capsys.readouterr().err
    assert run(["check", "--baseline", str(CLOCK), "--against", str(CLOCK), "--out", "x"]) == 2
    with FakeServer(failing=frozenset({0})) as server:
        assert run(["check", "--baseline", str(CLOCK), "--against", server.url]) == 1
    assert "answered 503 to request 1" in capsys.readouterr().err
    assert run(["check", "--baseline", str(CLOCK), "--against", "http://127.0.0.1:1"]) == 1
    assert "broke off" in capsys.readouterr().err
