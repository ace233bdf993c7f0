"""LiteLLM's proxy, for comparison, from an installation of the user's own (`pip install "litellm[proxy]"`).

Set up as its own documentation does for benchmarks, and to do as little as it can: one worker (as our router has one
process), no database, no cache, no callbacks, no retries, no keys to check, no telemetry, logs of errors only, prices
from its own file and not the network. It has one deployment, our stub, as an OpenAI-compatible server. It streams as it
always does: each event is parsed and written anew, which our router has no need to do where a replica speaks the API.
"""

import json
import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import httpx

from benchmarks.route.answers import MODEL
from hotloop.bench.serving import Child, end_process
from hotloop.core.errors import RemoteError

_MAX_START_S = 120.0
_ENVIRONMENT = {
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
}


class LiteLlmProcess(Child):
    """The proxy in front of one replica. `program` is the `litellm` of some virtual environment."""

    def __init__(self, program: Path, url: str) -> None:
        self.url = ""
        self._program = program
        self._replica = url
        self._folder = tempfile.TemporaryDirectory(prefix="hotloop-bench-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def start(self) -> None:
        file = Path(self._folder.name) / "config.yaml"
        file.write_text(render_config(self._replica), encoding="utf-8")
        port = _free_port()
        address = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
        with (Path(self._folder.name) / "log").open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    [self._program, "--config", file, *address],
                    env={**kept, **_ENVIRONMENT},
                    cwd=self._folder.name,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise RemoteError(f"cannot run {self._program}: {error.strerror}") from None
        self.url = f"http://127.0.0.1:{port}"
        self._wait_until_ready(self._process)

    def close(self) -> None:
        if self._process:
            end_process(self._process)
        self._folder.cleanup()

    def _wait_until_ready(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + _MAX_START_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health/liveliness", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.5)
        lines = (Path(self._folder.name) / "log").read_text(errors="replace").strip().splitlines() or ["no word"]
        raise RemoteError(f"LiteLLM did not start: {lines[-1]}")


def render_config(url: str) -> str:
    """As JSON, which is YAML."""
    deployment = {"model": f"openai/{MODEL}", "api_base": f"{url}/v1", "api_key": "none"}
    return json.dumps(
        {
            "model_list": [{"model_name": MODEL, "litellm_params": deployment}],
            "litellm_settings": {"callbacks": [], "num_retries": 0, "request_timeout": 60, "set_verbose": False},
            "router_settings": {"routing_strategy": "simple-shuffle"},
            "general_settings": {
                "disable_spend_logs": True,
                "disable_error_logs": True,
                "dangerously_permit_weak_or_unset_master_key": True,
            },
        }
    )


def _free_port() -> int:
    """It cannot take a port of its own choice and tell which."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port
