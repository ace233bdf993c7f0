"""Writes dashboard.json, the Grafana dashboard: a row of panels for each question. A test holds the file to this."""

import json
from pathlib import Path
from typing import Any

_RATE = "[$__rate_interval]"


def _quantile(metric: str, quantile: float, by: str = "") -> str:
    return f"histogram_quantile({quantile}, sum by (le{by}) (rate({metric}_bucket{_RATE})))"


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{_RATE}))"


_PANELS: tuple[tuple[str, str, dict[str, str]], ...] = (
    (
        *("Time to first token", "s"),
        {
            "p50": _quantile("hotloop_time_to_first_token_seconds", 0.5),
            "p95": _quantile("hotloop_time_to_first_token_seconds", 0.95),
        },
    ),
    ("Time between tokens", "s", {"p95": _quantile("hotloop_inter_token_seconds", 0.95)}),
    ("Output tokens per second", "short", {"{{instance}}": _rate("hotloop_output_tokens_total", "instance")}),
    (
        *("Cached share of prompts", "percentunit"),
        {
            "{{instance}}": f"{_rate('hotloop_cached_prompt_tokens_total', 'instance')} / "
            f"{_rate('hotloop_prompt_tokens_total', 'instance')}"
        },
    ),
    (
        *("Tokens recomputed per second, by cause", "short"),
        {"{{cause}}": _rate("hotloop_prompt_tokens_recomputed_total", "cause")},
    ),
    ("Requests waiting, by class", "short", {"{{priority}}": "sum by (priority) (hotloop_requests_waiting)"}),
    ("Requests running", "short", {"{{instance}}": "hotloop_requests_running"}),
    (
        *("KV blocks", "percentunit"),
        {
            "used {{instance}}": "hotloop_kv_blocks_used / hotloop_kv_blocks",
            "kept {{instance}}": "hotloop_kv_blocks_cached / hotloop_kv_blocks",
        },
    ),
    ("Errors per second", "short", {"{{status}}": _rate("hotloop_http_errors_total", "status")}),
    ("Replicas up", "short", {"{{replica}}": "hotloop_router_replica_up"}),
    (
        *("Router: first byte", "s"),
        {
            "p50": _quantile("hotloop_router_first_byte_seconds", 0.5),
            "p95": _quantile("hotloop_router_first_byte_seconds", 0.95),
        },
    ),
    ("Router: why a replica was chosen", "short", {"{{reason}}": _rate("hotloop_router_placements_total", "reason")}),
)


def _panel(index: int, title: str, unit: str, queries: dict[str, str]) -> dict[str, Any]:
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "prometheus"},
        "gridPos": {"h": 8, "w": 8, "x": 8 * (index % 3), "y": 8 * (index // 3)},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(65 + i), "legendFormat": legend, "expr": expression}
            for i, (legend, expression) in enumerate(queries.items())
        ],
    }


def render() -> str:
    dashboard = {
        "uid": "hotloop",
        "title": "hotloop",
        "tags": ["hotloop"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": [_panel(index, *panel) for index, panel in enumerate(_PANELS)],
    }
    return json.dumps(dashboard, indent=2) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("dashboard.json").write_text(render(), encoding="utf-8")
