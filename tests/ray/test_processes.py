"""What answers inside a replica: it is ready once it is made, says when it is lost, and leaves nothing behind."""

import sys
from pathlib import Path

import pytest
from tests.ray.tiny import open_tiny

from hotloop.core.errors import EngineClosed
from hotloop.ray.config import VllmConfig
from hotloop.ray.processes import VllmProcess
from hotloop.router.upstream.wire import UpstreamRequest

COMMAND = (sys.executable, str(Path(__file__).with_name("fake_vllm.py")))


async def test_our_own_engine_answers_in_this_process():
    process = open_tiny()
    process.check()
    assert process.capacity_tokens == 16 * 1024
    body = b'{"prompt": "hello", "max_tokens": 3, "ignore_eos": true}'
    answer = await process.send(
        UpstreamRequest("POST", "/v1/completions", [(b"content-type", b"application/json")], body)
    )
    assert answer.status == 200
    assert b'"finish_reason":"length"' in b"".join([piece async for piece in answer])
    await answer.aclose()
    process.close()


async def test_vllm_is_a_child_that_is_asked_over_loopback():
    config = VllmConfig(model="org/name", command=COMMAND, start_timeout_s=30)
    process = VllmProcess(config, capacity_tokens=1000, max_connections=4)
    try:
        process.check()
        answer = await process.send(UpstreamRequest("POST", "/v1/completions", [], b"hello"))
        assert b"".join([piece async for piece in answer]) == b"org/name hello"
        await answer.aclose()
    finally:
        process.close()
    with pytest.raises(EngineClosed, match="vLLM has ended with code -15"):
        process.check()


def test_a_vllm_that_does_not_start_is_told_apart_from_one_that_is_slow():
    with pytest.raises(EngineClosed, match="vLLM has ended with code 3"):
        VllmProcess(VllmConfig(model="m", command=COMMAND, args=("--exit", "3")), capacity_tokens=1, max_connections=1)
    with pytest.raises(EngineClosed, match="cannot be started"):
        VllmProcess(VllmConfig(model="m", command=("no-such-command",)), capacity_tokens=1, max_connections=1)
