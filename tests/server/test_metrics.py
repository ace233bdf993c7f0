"""What is measured, and that all of it is documented."""

import re
from pathlib import Path

import pytest
from tests.server.calls import TOOLS
from tests.server.serving import Serving, check_error, only, until

from hotloop.server.engine_metrics import Utilization

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"


def scrape(serving: Serving) -> dict[str, float]:
    response = serving.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in response.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_every_metric_is_documented_and_every_documented_metric_exists(serving: Serving) -> None:
    exported = re.findall(r"^# HELP (\w+)", serving.http.get("/metrics").text, re.MULTILINE)
    documented = re.findall(r"^\| `(hotloop_\w+)`", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(documented) == sorted(exported)


def test_utilization_is_the_share_of_the_last_seconds_that_steps_took() -> None:
    clock = [100.0]
    utilization = Utilization(lambda: clock[0])
    assert utilization.share() == 0
    for clock[0] in (101.2, 101.7, 105.5):
        utilization.add(0.5)
    assert utilization.share() == pytest.approx(0.1), "the second that is not over does not count yet"
    clock[0] = 106.0
    assert utilization.share() == pytest.approx(0.15)
    clock[0] = 112.0
    assert utilization.share() == pytest.approx(0.05)
    utilization.add(30)
    clock[0] = 113.0
    assert utilization.share() == 1, "of a step that took longer than that"


def test_a_request_leaves_its_traces() -> None:
    with Serving() as serving:
        for stream in (False, True):
            serving.chat(max_tokens=5, stream=stream, shortcuts=False, **only("a"))
        serving.complete(max_tokens=1, **only("a"))
        check_error(serving.chat(n=0), 400)
        until(lambda: serving.engine.stats().num_running == 0)
        values = scrape(serving)
    assert values['hotloop_requests_total{endpoint="chat",finish_reason="length"}'] == 2
    assert values['hotloop_requests_total{endpoint="completions",finish_reason="length"}'] == 1
    assert values['hotloop_http_errors_total{status="400"}'] == 1
    assert values["hotloop_output_tokens_total"] == 11
    assert values["hotloop_inter_token_seconds_count"] == 8
    assert values["hotloop_cached_prompt_tokens_total"] > 0
    for name in ("time_to_first_token", "request", "queue"):
        assert values[f"hotloop_{name}_seconds_count"] == 3
    assert values["hotloop_step_seconds_count"] == values["hotloop_steps_total"] > 0
    assert values["hotloop_step_requests_count"] == values["hotloop_step_tokens_count"] > 0
    assert values["hotloop_requests_running"] == 0
    assert values['hotloop_requests_waiting{priority="background"}'] == 0
    assert values["hotloop_kv_blocks"] >= values["hotloop_kv_blocks_cached"] > 0


def test_tokens_that_were_not_sampled_and_grammars_that_were_kept() -> None:
    with Serving() as serving:
        for _ in range(2):
            answer = serving.chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, max_tokens=300)
            assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
        until(lambda: serving.engine.stats().num_running == 0)
        values = scrape(serving)
    sampled, forced = values["hotloop_sampled_tokens_total"], values["hotloop_forced_tokens_total"]
    assert sampled + forced == values["hotloop_output_tokens_total"]
    assert forced > sampled > 0
    assert values["hotloop_accepted_draft_tokens_total"] <= values["hotloop_drafted_tokens_total"]
    assert values["hotloop_grammar_cache_misses_total"] == 1
    assert values["hotloop_grammar_cache_hits_total"] > 0


def test_a_scrape_does_not_wait_for_the_engine(serving: Serving) -> None:
    with serving.gate:
        assert scrape(serving)["hotloop_kv_blocks"] > 0
