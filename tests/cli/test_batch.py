"""`hotloop batch`: every line answered once, however often it was killed."""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import pytest

from hotloop.cli.main import run

NUM_LINES = 300


class Server:
    """Answers every request; those whose body says so are refused so often first."""

    def __init__(self) -> None:
        self.asked = Counter[str]()
        self.headers: list[dict[str, str]] = []
        self._lock = Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status = outer.count(body, dict(self.headers))
                data = json.dumps({"you": body.get("user")}).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.send_header("retry-after", "0.01")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def count(self, body: dict[str, Any], headers: dict[str, str]) -> int:
        with self._lock:
            self.asked[body["user"]] += 1
            self.headers.append({name.lower(): value for name, value in headers.items()})
            if body.get("bad"):
                return 400
            return 503 if self.asked[body["user"]] <= body.get("refused", 0) else 200


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        thread.join()
        server.http.server_close()


def write(path: Path, num_lines: int = NUM_LINES, **fields: Any) -> Path:
    lines = (
        {"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions", "body": {"user": f"r{i}", **fields}}
        for i in range(num_lines)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.long
def test_a_batch_that_is_killed_three_times_answers_every_line_once(tmp_path: Path) -> None:
    file, out = write(tmp_path / "in.jsonl"), tmp_path / "in.answers.jsonl"
    with serving() as server:
        command = [sys.executable, "-m", "hotloop", "batch", str(file), "--url", server.url, "--concurrency", "2"]
        for share in (0.1, 0.4, 0.7):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            deadline = time.monotonic() + 60
            while not out.exists() or out.read_bytes().count(b"\n") < share * NUM_LINES:
                assert time.monotonic() < deadline
                assert process.poll() is None or out.read_bytes().count(b"\n") == NUM_LINES
            process.kill()
            process.wait()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
        assert Counter(each["custom_id"] for each in answers(out)) == Counter(f"r{i}" for i in range(NUM_LINES))
        assert all(each["response"]["body"]["you"] == each["custom_id"] for each in answers(out))
        assert sum(server.asked.values()) <= NUM_LINES + 3 * 2, "only what was under way at a kill is asked again"
    assert server.headers[0]["x-hotloop-priority"] == "background"
    assert server.headers[0]["x-hotloop-task"] == "batch"


def test_refusals_are_answers_and_overload_is_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        file = write(tmp_path / "in.jsonl", 3, refused=2)
        assert run(["batch", str(file), "--url", f"{server.url}/v1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["answered"] == 3
        assert set(server.asked.values()) == {3}
        file = write(tmp_path / "bad.jsonl", 3, bad=True)
        out = tmp_path / "elsewhere.jsonl"
        run(["batch", str(file), "--url", server.url, "--output", str(out)])
        assert "3 requests refused" in capsys.readouterr().err
        assert {each["response"]["status_code"] for each in answers(out)} == {400}


def test_answers_of_another_file_are_not_gone_on_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        run(["batch", str(write(tmp_path / "long.jsonl", 4)), "--url", server.url, "--output", str(tmp_path / "out")])
        code = run(
            ["batch", str(write(tmp_path / "a.jsonl", 2)), "--url", server.url, "--output", str(tmp_path / "out")]
        )
    assert code == 2
    assert "more than" in capsys.readouterr().err
