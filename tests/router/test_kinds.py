"""The table of kinds: how one is recognised, and what its metrics say."""

import pytest

from hotloop.router.kinds import KINDS, kind_by_metrics, kind_by_url, read_load

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
        ("http://api.openai.com.example.org", None),
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
