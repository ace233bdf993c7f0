"""`hotloop trace`: what is printed, and what a program gets."""

import json
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Self

import httpx
import pytest
from tests.cli.trace.spans import NEW, OLD, START_NS, Trace, clerk, fill, plain
from tests.ui.made_up import hostile_run, long_run, make_runs

from hotloop.cli.main import run
from hotloop.trace import names
from hotloop.trace.span import Span

DAY_NS = 24 * 3600 * 10**9


class Collector:
    """Takes whatever is posted, or refuses it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.status = 200
        collector = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                collector.asked.append(self.path)
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def db(tmp_path: Path) -> str:
    later = clerk(NEW, is_warm=False, start_ns=START_NS + DAY_NS)
    return str(fill(tmp_path / "trace.db", clerk(), later, plain(start_ns=START_NS - DAY_NS)))


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("HOTLOOP_TRACE", raising=False)


def ask(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert run(["trace", *argv]) == 0
    out = capsys.readouterr().out
    assert max((len(line) for line in out.splitlines()), default=0) <= 80 or "--json" in argv
    return out


def test_runs_are_listed_the_newest_first(db: str, capsys: pytest.CaptureFixture[str]):
    lines = ask(capsys, "ls", "--trace", db).splitlines()
    assert lines[0].split() == ["RUN", "WHEN", "AGENT,", "SESSION", "TURNS", "WALL", "TOKENS", "CACHED", "MONEY"]
    assert [line.split()[0] for line in lines[1:4]] == [NEW[:8], OLD[:8], "c3c3c3c3"]
    assert lines[2].split()[3:] == ["errors:", "clerk,", "s-1", "2", "1.00", "s", "330", "0%", "0.0021"]
    assert lines[4] == "3 runs"


def test_runs_are_filtered(db: str, capsys: pytest.CaptureFixture[str]):
    def listed(*argv: str) -> list[str]:
        return [each["trace_id"][:2] for each in json.loads(ask(capsys, "ls", "--trace", db, "--json", *argv))]

    assert listed("--limit", "1") == ["b2"]
    assert listed("--session", "s-1") == ["b2", "a1", "c3"]
    assert listed("--session", "other") == []
    assert listed("--since", "2026-09-21T12:00+00:00") == ["b2", "a1"]
    assert listed("--since", "9999d") == ["b2", "a1", "c3"]


def test_what_a_program_gets_of_a_list(db: str, capsys: pytest.CaptureFixture[str]):
    first = json.loads(ask(capsys, "ls", "--trace", db, "--json"))[0]
    assert first.keys() >= {"trace_id", "session", "agent", "num_turns", "num_prompt", "num_cached", "money", "wall_s"}
    assert (first["agent"], first["wall_s"]) == ("clerk", 1.2)


def test_a_run_is_named_by_how_it_begins_or_as_the_last(db: str, capsys: pytest.CaptureFixture[str]):
    for name, found in (("a1", OLD), (OLD, OLD), ("last", NEW)):
        assert json.loads(ask(capsys, "show", name, "--trace", db, "--json"))["trace_id"] == found


def test_a_run_is_shown(db: str, capsys: pytest.CaptureFixture[str]):
    out = ask(capsys, "show", "b2", "--trace", db)
    words = " ".join(out.split())
    assert "clerk, session s-1, done" in out
    assert "2 turns in 1.20 s, 280 prompt tokens (6% cached), 50 output, 0.0021 cost" in words
    assert "speculative 1, wasted 1" in words
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert rows["2"] == ["2", "180", "16", "60", "104", "30", "0", "0", "240", "ms", "600", "ms"]
    assert rows["all"] == ["all", "1.20", "s"]
    assert "turn 2  diverged: 104 tokens, in system 0 from token 16" in out
    assert "decode 180 ms → search 260 ms → runtime 40 ms" in words


def test_what_stable_prompts_saved_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trace = Trace("d4" * 16)
    trace.add(names.ROUTE, "router", 0, 60, stabilised=["tools: put into one order"], num_saved=1200, money_saved=0.5)
    db = str(fill(tmp_path / "trace.db", trace.spans))
    assert "stable prompts saved 1,200 prompt tokens, 0.5000 money" in ask(capsys, "show", "d4", "--trace", db)


def test_words_of_a_prompt_are_neither_markup_nor_commands_to_the_terminal(db: str, capsys: pytest.CaptureFixture[str]):
    out = " ".join(ask(capsys, "show", "b2", "--trace", db).split())
    assert "“[red]12:04”, which was “12:03?[2J”" in out
    assert "\x1b" not in out


def test_some_turns_of_a_run(db: str, capsys: pytest.CaptureFixture[str]):
    out = ask(capsys, "show", "a1", "--trace", db, "--turns", "2")
    assert "turn 2" in out
    assert "turn 1" not in out
    assert "search" not in out
    assert ["all", "400", "ms"] in [line.split() for line in out.splitlines()]
    assert "prefill 40 ms → decode 360 ms" in out
    assert "turn 1" in ask(capsys, "show", "a1", "--trace", db, "--turns", "1-2")


def test_a_turns_number_is_that_of_the_agent_who_was_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trace = Trace("d4" * 16)
    outer = trace.add(names.RUN, "agent", 0, 100, agent="outer")
    turn = trace.add(names.TURN, "agent", 0, 100, outer, turn=7)
    tool = trace.add(names.TOOL, "agent", 0, 100, turn, tool="delegate")
    inner = trace.add(names.RUN, "agent", 0, 100, tool, agent="inner")
    for number in (1, 2):
        trace.add(names.TURN, "agent", 50 * number - 50, 50 * number, inner, turn=number)
    db = str(fill(tmp_path / "trace.db", trace.spans))
    out = ask(capsys, "show", "--trace", db, "--turns", "7")
    assert out.count("run inner") == 1
    assert "turn 7" not in ask(capsys, "show", "--trace", db, "--turns", "1")


def test_what_a_plain_client_asked_is_a_run_too(db: str, capsys: pytest.CaptureFixture[str]):
    out = ask(capsys, "show", "c3", "--trace", db)
    assert "2 turns in 900 ms, 20 prompt tokens (0% cached), 6 output" in out
    assert "the client" in out


def test_two_runs_are_compared(db: str, capsys: pytest.CaptureFixture[str]):
    out = ask(capsys, "diff", "a1", "b2", "--trace", db)
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert rows["1"] == ["1", "100", "0", "0", "20", "600", "ms"]
    assert rows["2"] == ["2", "180", "16", "-96", "104", "+96", "30", "600", "ms", "+200", "ms"]
    assert "turn 2  block: 8 → 0 tokens" in out
    assert "turn 2  diverged: 0 → 104 tokens" in out


def test_what_a_program_gets_of_a_comparison(db: str, capsys: pytest.CaptureFixture[str]):
    found = json.loads(ask(capsys, "diff", "a1", "c3", "--trace", db, "--json"))
    assert found["runs"] == [OLD, "c3" * 16]
    assert [turn["prompt"] for turn in found["turns"]] == [[100, 10], [180, 10]]
    assert found["turns"][1]["causes"] == [{"block": 8}, {}]
    assert found["totals"]["turns"] == [2, 2]
    assert found["totals"]["money"] == [0.0021, 0.0]
    assert sum(old for old, _ in found["parts"].values()) == pytest.approx(1.0)


def test_turns_that_only_one_run_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    short, *_, long = make_runs(5)
    db = str(fill(tmp_path / "trace.db", short, long))
    ids = short[0].trace_id, long[0].trace_id
    assert "new 2" in ask(capsys, "diff", *ids, "--trace", db)
    assert "gone 2" in ask(capsys, "diff", *reversed(ids), "--trace", db)


@pytest.mark.parametrize(
    "spans", [pytest.param(long_run(), id="long", marks=pytest.mark.long), pytest.param(hostile_run(), id="hostile")]
)
def test_anything_fits_a_terminal(spans: list[Span], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    db = str(fill(tmp_path / "trace.db", spans))
    for command in (["ls"], ["show"], ["diff", "last", "last"]):
        out = ask(capsys, *command, "--trace", db)
        assert all(character.isprintable() for character in out.replace("\n", "")), command


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["ls", "--since", "yesterday"], "--since must be"),
        (["ls", "--since", "9999-12-31"], "too large"),
        (["ls", "--limit", "99999999999999999999"], "too large"),
        (["ls", "--session", "\udcff"], "surrogates"),
        (["show", "\udcff"], "surrogates"),
        (["show", "f"], "there is no run 'f'"),
        (["show", "a1", "--turns", "x"], "--turns must be"),
        (["show", "a1", "--turns", "7-9"], "the run has 2 turns, and no 7-9"),
        (["diff", "a1"], "--new"),
        (["export", "a1", "--format", "csv"], "--format"),
        (["export", "a1", "--output", "/none/here.json"], "cannot write /none/here.json"),
        (["export", "a1", "--format", "otlp", "--output", "x"], "otlp goes to a collector"),
        (["import", "none.jsonl"], "none.jsonl"),
        (["show", "--prices", "none.toml"], "cannot read none.toml"),
        (["export", "a1", "--format", "otlp", "--endpoint", "here"], "--endpoint must begin"),
    ],
)
def test_what_was_asked_wrongly_is_one_line(argv: list[str], reason: str, db: str, capsys: pytest.CaptureFixture[str]):
    assert run(["trace", *argv, "--trace", db]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hotloop: ")
    assert captured.err.count("\n") == 1
    assert reason in captured.err


def test_where_nothing_was_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["trace", "ls", "--trace", str(tmp_path / "none.db")]) == 2
    assert "there is no trace store" in capsys.readouterr().err
    assert run(["trace", "ls", "--trace", "off"]) == 2
    assert "tracing is off" in capsys.readouterr().err


def test_the_store_is_the_one_the_settings_name(
    db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("hotloop.toml").write_text(f'trace = "{db}"\nport = 1\n')
    assert "3 runs" in ask(capsys, "ls")
    monkeypatch.setenv("HOTLOOP_TRACE", str(tmp_path / "none.db"))
    assert run(["trace", "ls"]) == 2
    monkeypatch.setenv("HOTLOOP_TRACE", "auto")
    monkeypatch.setenv("HOTLOOP_HOME", str(tmp_path))
    assert "3 runs" in ask(capsys, "ls")


def test_jsonl_goes_out_and_comes_back(db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lines, other = tmp_path / "run.jsonl", str(tmp_path / "other.db")
    ask(capsys, "export", "a1", "--trace", db, "--output", str(lines))
    assert lines.stat().st_mode & 0o777 == 0o600
    assert "1 run: 19 spans are new" in ask(capsys, "import", str(lines), "--trace", other)
    assert "0 spans are new, 19 were here" in ask(capsys, "import", str(lines), "--trace", other)
    shown = [ask(capsys, "show", "a1", "--trace", each, "--json") for each in (db, other)]
    assert shown[0] == shown[1]


def test_a_file_for_perfetto(db: str, capsys: pytest.CaptureFixture[str]):
    assert run(["trace", "export", "a1", "--format", "perfetto", "--trace", db]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"run clerk", "tool search", "decode"} <= {event["name"] for event in document["traceEvents"]}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", ["{", "{}", "[1]", '{"trace_id": "x"}', "\xff"])
def test_a_damaged_file_is_one_line(text: str, db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    damaged = tmp_path / "run.jsonl"
    damaged.write_bytes(b"\n" + text.encode("latin-1"))
    assert run(["trace", "import", str(damaged), "--trace", db]) == 2
    error = capsys.readouterr().err
    assert "line 2 is not a span" in error
    assert error.count("\n") == 1
    assert "3 runs" in ask(capsys, "ls", "--trace", db)


def test_a_run_goes_to_a_collector(db: str, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with Collector() as collector:
        assert ask(capsys, "export", "a1", "--format", "otlp", "--endpoint", collector.url, "--trace", db) == ""
        assert collector.asked == ["/v1/traces"]
        collector.status = 400
        assert run(["trace", "export", "a1", "--format", "otlp", "--endpoint", collector.url, "--trace", db]) == 1
    assert capsys.readouterr().err == f"hotloop: {collector.url} did not take the spans\n"


def test_prices_are_those_of_a_file(db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    prices = tmp_path / "prices.toml"
    prices.write_text("[tiny]\nprompt = 1e6\ncached = 0\noutput = 0\n")
    assert json.loads(ask(capsys, "show", "c3", "--trace", db, "--prices", str(prices), "--json"))["money"] == 20


def test_prices_are_those_of_the_settings_file(
    db: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert json.loads(ask(capsys, "show", "c3", "--trace", db, "--json"))["money"] == 0
    Path("hotloop.toml").write_text('port = 1\n[prices."ti*"]\nprompt = 1e6\n')
    assert json.loads(ask(capsys, "show", "c3", "--trace", db, "--json"))["money"] == 20
    assert "20.0000 cost" in ask(capsys, "show", "c3", "--trace", db)
    assert json.loads(ask(capsys, "ls", "--trace", db, "--json"))[2]["money"] == 20
    for wrong in ("[prices]\ntiny = 3\n", "prices = 3\n"):
        Path("hotloop.toml").write_text(wrong)
        assert run(["trace", "ls", "--trace", db]) == 2
        error = capsys.readouterr().err
        assert "hotloop.toml: " in error
        assert error.count("\n") == 1


def test_a_run_that_goes_on_is_shown_as_far_as_it_has_come(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    trace = Trace("e5" * 16)
    begun = trace.add(names.RUN, "agent", 0, 0, agent="clerk")
    trace.add(names.TURN, "agent", 0, 70, begun, turn=1)
    db = str(fill(tmp_path / "trace.db", trace.spans))
    assert "running: clerk" in ask(capsys, "ls", "--trace", db)
    assert json.loads(ask(capsys, "ls", "--trace", db, "--json"))[0]["is_running"] is True
    out = ask(capsys, "show", "--trace", db)
    assert "running, as far as it has come" in " ".join(out.split())
    assert "1 turn in 70 ms" in out
    assert json.loads(ask(capsys, "show", "--trace", db, "--json"))["is_running"] is True


def test_the_page_of_a_server(db: str, capsys: pytest.CaptureFixture[str]):
    assert ask(capsys, "open", "--url", "http://x:1/", "--trace", db) == "http://x:1/ui#/runs\n"
    assert run(["trace", "open", "a1", "--url", "http://x:1", "--trace", db]) == 0
    assert capsys.readouterr().out == f"http://x:1/ui#/runs/{OLD}\n"


def test_the_page_is_served_until_interrupted(db: str):
    command = [sys.executable, "-m", "hotloop", "trace", "open", "a1", "--trace", db]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            address = process.stdout.readline().strip()
            base, _, place = address.partition("#")
            assert place == f"/runs/{OLD}"
            with httpx.Client(trust_env=False, verify=False) as client:
                assert client.get(base).headers["content-type"].startswith("text/html")
                assert len(client.get(f"{base}/api/runs").json()["runs"]) == 3
                assert client.get(f"{base}/api/overview").json()["has_lint"]
                assert client.get(f"{base}/api/runs/{OLD}/lint").status_code == 200
                assert client.get(base, headers={"host": "elsewhere.example"}).status_code == 403
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
