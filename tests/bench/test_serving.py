"""Child servers: a real `hotloop serve` started and stopped."""

import os
from pathlib import Path

import httpx
import pytest

from hotloop.bench.serving import ChildServer
from hotloop.core.errors import RemoteError


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.long
def test_a_server_that_cannot_start_says_why(tmp_path: Path):
    server = ChildServer(("--model", str(tmp_path / "none.gguf")))
    with pytest.raises(RemoteError, match="the server did not start: hotloop: there is no model"), server:
        pass
    assert not is_alive(server.pid)


@pytest.mark.model
def test_a_server_is_ready_inside_the_context_and_gone_after_it(
    default_model_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOTLOOP_API_KEY", "a setting of the user, which must not reach the server")
    with ChildServer() as server:
        assert httpx.get(f"{server.url}/ready", verify=False).status_code == 200
        assert httpx.get(f"{server.url}/v1/models", verify=False).status_code == 200
        assert is_alive(server.pid)
    assert not is_alive(server.pid)
