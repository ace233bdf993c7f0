"""`hotloop serve-agent` as a process: what it says, answers and leaves when it is told to stop."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx

FILE = """
from hotloop import Agent, ScriptedCall, ScriptedModel, tool

@tool(needs_approval=True)
def send(to: str) -> str:
    return f"sent to {to}"

agent = Agent(ScriptedModel([ScriptedCall("send", to="Ann"), "It is sent."]), [send])
"""
BODY = {"messages": [{"role": "user", "content": "Write to Ann."}]}


def test_it_is_served_until_it_is_told_to_stop(tmp_path: Path):
    (tmp_path / "clerk.py").write_text(FILE)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HOTLOOP_")}
    environ |= {"HOTLOOP_TRACE": str(tmp_path / "trace.db"), "HOTLOOP_API_KEY": "secret"}
    command = [sys.executable, "-m", "hotloop", "serve-agent", "clerk.py", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environ
    ) as process:
        assert process.stdout
        assert process.stderr
        found = re.search(r"^clerk is at (http://\S+)$", process.stdout.readline())
        assert found, process.stderr.read()
        with httpx.Client(
            base_url=found[1], headers={"authorization": "Bearer secret"}, timeout=60, verify=False
        ) as http:
            assert [model["id"] for model in http.get("/v1/models").json()["data"]] == ["clerk"]
            waits = http.post("/v1/chat/completions", json=BODY)
            assert waits.status_code == 409
            run = waits.headers["x-hotloop-run"]
            assert httpx.post(f"{found[1]}/v1/chat/completions", verify=False, json=BODY).status_code == 401
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0
    listed = [sys.executable, "-m", "hotloop", "runs", "list"]
    shown = subprocess.run(listed, capture_output=True, text=True, env=environ, check=True, timeout=60)
    assert re.search(rf"^{run} .* waiting +clerk$", shown.stdout, re.MULTILINE), shown.stdout
