"""The table of kinds: how one is recognised, and what its metrics say."""

import json
from typing import Any

import pytest
from tests.router.conftest import MESSAGES, Page, ScriptedReplica

from hotloop.router.config import ReplicaConfig
from hotloop.router.kinds import KINDS, kind_by_metrics, kind_by_url, read_load, target_of

VLLM = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_running_total{engine="1",model_name="m"} 99.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
"""


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.metrics_prefix])
def test_a_kind_is_known_by_its_metrics(name):
    kind = KINDS[name]
    page = f"# HELP python_info x\npython_info 1\n{kind.metrics_prefix}requests 5\n"
    assert kind_by_metrics(page) is kind


def test_a_page_nobody_knows_is_anybodys():
    assert kind_by_metrics("process_cpu_seconds_total 5\n") is None
    assert kind_by_metrics("") is None


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com", "openai"),
        ("https://api.anthropic.com", "anthropic"),
        ("http://127.0.0.1:11434", "ollama"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini"),
        ("https://mine.openai.azure.com", "azure_openai"),
        ("https://us-central1-aiplatform.googleapis.com/v1/projects/p", "vertex"),
        ("https://bedrock-runtime.eu-west-1.amazonaws.com", "bedrock"),
        ("http://api.openai.com.example.org", None),
        ("http://openai.azure.com.example.org", None),
    ],
)
def test_hosted_apis_are_known_by_their_address(url, name):
    kind = kind_by_url(url)
    assert (kind.name if kind else None) == name


def test_load_is_what_runs_and_what_waits_over_all_series():
    assert read_load(KINDS["vllm"], VLLM) == 9
    assert read_load(KINDS["vllm"], "vllm:num_requests_running{} nonsense\n") is None
    assert read_load(KINDS["sglang"], VLLM) is None


def test_every_kind_is_complete():
    for name, kind in KINDS.items():
        assert kind.name == name
        assert kind.apis
        assert bool(kind.metrics_prefix) == bool(kind.metrics_path)


TRTLLM = """# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{model_name="m"} 3.0
trtllm_num_requests_waiting{model_name="m"} 2.0
trtllm_kv_cache_hit_rate{model_name="m"} 0.5
"""


def test_the_load_of_tensorrt_llm_is_known():
    assert kind_by_metrics(TRTLLM) is KINDS["tensorrt_llm"]
    assert read_load(KINDS["tensorrt_llm"], TRTLLM) == 5


@pytest.mark.parametrize(
    ("kind", "path", "target"),
    [
        ("vllm", "/v1/chat/completions", "/v1/chat/completions"),
        ("gemini", "/v1/embeddings", "/embeddings"),
        (
            "azure_openai",
            "/v1/chat/completions",
            "/openai/deployments/my%2Fmodel/chat/completions?api-version=2024-10-21",
        ),
        ("vertex", "/v1/chat/completions", "/chat/completions"),
        ("bedrock", "/v1/chat/completions", "/openai/v1/chat/completions"),
        ("bedrock_anthropic", "/v1/messages", "/anthropic/v1/messages"),
        ("vertex_anthropic", "/v1/messages", "/publishers/anthropic/models/my%2Fmodel:rawPredict"),
        ("vertex_anthropic", "/v1/messages/count_tokens", "/publishers/anthropic/models/count-tokens:rawPredict"),
    ],
)
def test_each_has_the_path_of_a_chat_in_its_own_place(kind, path, target):
    assert target_of(KINDS[kind], path, "my/model") == target


HOSTED = {
    "gemini": ("/v1beta/openai/chat/completions", "authorization", "Bearer secret"),
    "azure_openai": ("/openai/deployments/own-name/chat/completions", "api-key", "secret"),
    "vertex": ("/v1beta/openai/chat/completions", "authorization", "Bearer secret"),
    "bedrock": ("/openai/v1/chat/completions", "authorization", "Bearer secret"),
}


@pytest.mark.parametrize("kind", HOSTED)
@pytest.mark.parametrize("api", ["chat", "messages"])
async def test_a_hosted_api_is_asked_at_its_own_path_with_its_own_key(mirror, route, kind, api):
    """As the documentation of each has it: where it was asked, with which header, and how it answered."""
    path, header, value = HOSTED[kind]
    base = mirror.url + ("/v1beta/openai" if kind in ("gemini", "vertex") else "")
    message = {"role": "assistant", "content": "Hello!"}
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    mirror.reply = 200, {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}
    models = {"name": "own-name"}
    router = await route((ReplicaConfig(url=base, name="r", kind=kind, models=models, api_key="secret"),))
    body = {"model": "name", "messages": MESSAGES, "max_tokens": 5}
    target = "/v1/messages" if api == "messages" else "/v1/chat/completions"
    answer = await router.client.post(target, json=body)
    assert answer.status_code == 200, answer.text
    assert "Hello!" in answer.text
    [sent] = mirror.seen
    assert sent["path"] == path
    assert sent["headers"][header] == value
    assert json.loads(sent["raw"])["model"] == "own-name"
    assert mirror.paths == [path], "a hosted API is not probed"


PROJECT = "/v1/projects/p/locations/us-east5"
CLAUDE: dict[str, Any] = {
    "vertex_anthropic": (
        PROJECT,
        f"{PROJECT}/publishers/anthropic/models/claude@1",
        (":rawPredict", ":streamRawPredict"),
    ),
    "bedrock_anthropic": ("", "/anthropic/v1/messages", ("", "")),
}
_HEAD = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_sequence": None}
_USAGE = {"input_tokens": 9, "output_tokens": 2, "cache_read_input_tokens": 4}
_TOLD = [{"type": "text", "text": "Hello!"}]
WHOLE = json.dumps({**_HEAD, "content": _TOLD, "stop_reason": "end_turn", "usage": _USAGE}).encode()
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {**_HEAD, "content": [], "stop_reason": None, "usage": _USAGE}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello!"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    {"type": "message_stop"},
]
STREAM = b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in EVENTS)


@pytest.mark.parametrize("kind", CLAUDE)
@pytest.mark.parametrize("api", ["chat", "messages"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_claude_of_a_cloud_is_asked_in_the_shape_of_anthropic(
    scripted: ScriptedReplica, route: Any, kind: str, api: str, is_stream: bool
) -> None:
    """As the documentation of each has it: the path, what of the body is elsewhere, and how it answers."""
    base, path, verbs = CLAUDE[kind]
    path += verbs[is_stream]
    scripted.pages[path] = Page(STREAM, content_type=b"text/event-stream") if is_stream else Page(WHOLE)
    models = {"name": "claude@1"}
    router = await route((ReplicaConfig(url=scripted.url + base, name="r", kind=kind, models=models, api_key="k"),))
    body = {"model": "name", "messages": MESSAGES, "max_tokens": 5, "stream": is_stream}
    target = "/v1/messages" if api == "messages" else "/v1/chat/completions"
    answer = await router.client.post(target, json=body)
    assert answer.status_code == 200, answer.text
    assert "Hello!" in answer.text
    [(asked, sent)] = scripted.seen
    assert asked == path
    is_named = kind == "bedrock_anthropic"
    assert sent.get("model") == ("claude@1" if is_named else None)
    assert sent.get("anthropic_version") == (None if is_named else "vertex-2023-10-16")
    assert (sent["messages"][0]["role"], sent["max_tokens"]) == ("user", 5)


async def test_tokens_are_counted_at_vertex_where_it_counts_them(scripted: ScriptedReplica, route: Any) -> None:
    path = f"{PROJECT}/publishers/anthropic/models/count-tokens:rawPredict"
    scripted.pages[path] = Page(b'{"input_tokens":7}')
    models = {"name": "claude@1"}
    replica = ReplicaConfig(url=scripted.url + PROJECT, name="r", kind="vertex_anthropic", models=models)
    router = await route((replica,))
    answer = await router.client.post("/v1/messages/count_tokens", json={"model": "name", "messages": MESSAGES})
    assert answer.json() == {"input_tokens": 7}
    [(asked, sent)] = scripted.seen
    assert (asked, sent["model"]) == (path, "claude@1")
