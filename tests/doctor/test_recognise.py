"""Who is who: by headers, by the list of models, by metrics, and by pages that only one kind has."""

from typing import Any

import pytest
from tests.doctor.speaking import (
    SGLANG_CARD,
    SGLANG_INFO,
    SGLANG_METRICS,
    TGI_INFO,
    TGI_METRICS,
    Script,
    engine,
    speaking,
)

from hotloop.doctor import prompts
from hotloop.doctor.deployment import Deployment
from hotloop.doctor.target import Identity, meet, read_running, recognise

ROUTER_METRICS = "hotloop_router_running 2\nhotloop_router_waiting 1\n"


def card(owner: str, **rest: Any) -> dict[str, Any]:
    return {"id": "fake", "object": "model", "owned_by": owner, **rest}


@pytest.mark.parametrize(
    ("script", "identity"),
    [
        (engine({}, card("vllm", max_model_len=4096)), Identity("vllm", 4096)),
        (engine({"/metrics": 'vllm:num_requests_running{engine="0"} 0.0\n'}), Identity("vllm")),
        (engine({}, SGLANG_CARD), Identity("sglang", 32768)),
        (engine({"/metrics": SGLANG_METRICS}), Identity("sglang")),
        (engine({"/get_server_info": SGLANG_INFO}), Identity("sglang")),
        (engine({"/server_info": SGLANG_INFO}), Identity("sglang")),
        (engine({"/info": TGI_INFO}), Identity("tgi", 1536)),
        (engine({"/info": TGI_INFO, "/metrics": TGI_METRICS}), Identity("tgi", 1536)),
        (engine({"/info": {"name": "something else"}}), Identity("openai_compatible")),
        (engine({"/prometheus/metrics": "trtllm_request_success_total 1.0\n"}), Identity("tensorrt_llm")),
        (engine({}, card("llamacpp")), Identity("llama_cpp")),
        (engine({}, card("library")), Identity("ollama")),
        (engine({"/metrics": ROUTER_METRICS}, card("hotloop")), Identity("hotloop_router")),
        (engine({}, card("openai"), **{"x-litellm-version": "1.0"}), Identity("litellm")),
        (engine({}, card("somebody")), Identity("openai_compatible")),
    ],
    ids=[
        *("vllm", "vllm metrics", "sglang", "sglang metrics", "sglang info", "sglang new info", "tgi", "tgi metrics"),
        *("another info", "tensorrt-llm", "llama.cpp", "ollama", "hotloop route", "litellm", "nobody known"),
    ],
)
async def test_each_kind_is_known_by_something(script: Script, identity: Identity):
    async with speaking(script) as url, Deployment(url) as deployment:
        await deployment.ask([prompts.user("hello")], max_tokens=4)
        assert await recognise(deployment) == identity


@pytest.mark.parametrize(
    ("metrics", "num_running"),
    [(SGLANG_METRICS, 3), (TGI_METRICS, 5), (ROUTER_METRICS, 3), ("process_cpu_seconds_total 1\n", None)],
    ids=["sglang", "tgi", "hotloop route", "neither"],
)
async def test_running_requests_are_counted_by_metrics(metrics: str, num_running: int | None):
    async with speaking(engine({"/metrics": metrics})) as url, Deployment(url) as deployment:
        assert await read_running(deployment) == num_running


async def test_a_small_context_leaves_room_for_an_answer():
    async with speaking(engine({"/info": TGI_INFO})) as url, Deployment(url) as deployment:
        target = await meet(deployment)
    assert target.kind == "tgi"
    assert target.prompt_chars * 300 // 1200 <= 512  # 300 tokens are told for 1,200 characters
    assert target.max_answer == 768
