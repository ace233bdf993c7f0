"""`hotloop lint`, and what its page says."""

import json
import re
import time
from pathlib import Path

import pytest
from benchmarks.cache.breakers import shuffle_tools
from cyclopts import App
from tests.lint.stories import bodies

from hotloop.cli.advice.lint import lint
from hotloop.cli.advice.linting import lint_spans
from hotloop.cli.main import run as command
from hotloop.core.errors import ConfigError
from hotloop.lint.rules import RULES
from hotloop.trace import names
from hotloop.trace.content import Content
from hotloop.trace.span import Span
from hotloop.trace.store import StoreTracer

ROOT = Path(__file__).parents[2]


def run(*argv):
    app = App(result_action="return_value")
    app.command(lint)
    return app(["lint", *map(str, argv)], exit_on_error=False, print_error=False)


@pytest.fixture
def clean(tmp_path):
    path = tmp_path / "clean.jsonl"
    path.write_text(
        "".join(json.dumps({"request": b, "response": {"choices": [{"message": a}]}}) + "\n" for b, a in bodies())
    )
    return path


@pytest.fixture
def broken(tmp_path):
    path = tmp_path / "broken.jsonl"
    path.write_text("".join(json.dumps(shuffle_tools(body, i)) + "\n" for i, (body, _) in enumerate(bodies())))
    return path


def test_the_exit_status_is_for_ci(clean, broken, capsys):
    assert run(clean) == 0
    assert run(broken) == 1
    assert run(broken, "--fail-on", "error") == 0
    assert run(broken, "--fail-on", "never") == 0
    assert run(broken, "--ignore", "HL003") == 0
    assert "HL003 warning unstable-tool-order" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", "[]", '{"prompt": "Hi"}', "\xff"])
def test_what_cannot_be_read_exits_with_2(tmp_path, capsys, text):
    """1 is for findings alone."""
    path = tmp_path / "odd.jsonl"
    path.write_text(text, encoding="latin-1")
    assert command(["lint", str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert "odd.jsonl" in said.err


@pytest.mark.parametrize("form", ["json", "sarif"])
def test_programs_are_given_json(broken, capsys, form):
    run(broken, "--format", form)
    assert json.loads(capsys.readouterr().out)


def test_what_is_mended_passes(broken, tmp_path, capsys):
    out = tmp_path / "fixed.jsonl"
    assert run(broken, "--fix", "--out", out) == 0
    assert Path(out).stat().st_mode & 0o777 == 0o600, "it holds the prompts"
    assert run(out) == 0
    assert len(out.read_text().splitlines()) == 4


@pytest.mark.parametrize(
    "argv", [(), ("a.jsonl", "--proxy", "http://x"), ("a.jsonl", "--fix"), ("--run", "last", "--fix", "--out", "b")]
)
def test_what_was_asked_wrongly_is_said(argv):
    with pytest.raises(ConfigError):
        run(*argv)


def test_a_rule_that_is_none_is_named(clean):
    with pytest.raises(ConfigError, match="HL999"):
        run(clean, "--select", "HL999")


def spans():
    now_ns = time.time_ns()  # a store keeps nothing that is old
    return [
        Span(
            trace_id="ab" * 16,
            span_id=f"{i:016x}",
            name=names.REQUEST,
            service="server",
            start_ns=now_ns + i,
            end_ns=now_ns + i + 1,
            attributes={
                names.CONTENT_REQUEST: json.dumps(shuffle_tools(body, i)),
                names.ENDPOINT: "/v1/chat/completions",
            },
        )
        for i, (body, _) in enumerate(bodies(), 1)
    ]


def test_a_recorded_run(tmp_path, capsys):
    tracer = StoreTracer(tmp_path / "trace.db", content=Content(is_kept=True))
    for span in spans():
        tracer.record(span)
    tracer.close()
    assert run("--run", "last", "--trace", tmp_path / "trace.db") == 1
    assert "HL003" in capsys.readouterr().out


def test_lines_for_the_page():
    (line,) = lint_spans(spans())
    assert (line.rule, line.severity) == ("HL003", "warning")
    assert line.num_tokens > 100
    assert lint_spans([]) == []


def test_every_rule_is_documented_with_a_before_and_an_after():
    page = (ROOT / "docs" / "lint.md").read_text()
    sections = dict(re.findall(r"^### (HL\d{3} [\w-]+)\n(.*?)(?=^##|\Z)", page, re.M | re.S))
    assert [*sections] == [f"{rule.id} {rule.name}" for rule in RULES]
    assert all("    before   " in text and "    after    " in text for text in sections.values())


def test_rules_can_be_listed(capsys):
    assert run("--list") == 0
    assert len(capsys.readouterr().out.splitlines()) == len(RULES)
