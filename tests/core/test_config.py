"""Sizes as people write them, and settings that contradict themselves."""

import pytest

from hotloop.core.config import EngineConfig, RouterConfig, ServerConfig, parse_bytes
from hotloop.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [("512MiB", 512 << 20), ("2G", 2 << 30), ("1.5 KiB", 1536), ("10kb", 10_000), ("7", 7), (" 3 gb ", 3 * 10**9)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "12 apples", "1.2.3MiB", "-1GiB", "0", "nan", "1e999"])
def test_what_is_not_a_size_says_so(text: str) -> None:
    with pytest.raises(ConfigError, match="size"):
        parse_bytes(text)


@pytest.mark.parametrize("name", ["gpus", "max_running", "max_waiting", "max_step_tokens", "max_context"])
def test_a_limit_below_one_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, not 0"):
        EngineConfig(**{name: 0})  # type: ignore[arg-type]


def test_the_memory_is_checked_when_it_is_set() -> None:
    assert parse_bytes(EngineConfig(kv_memory="1GiB").kv_memory) == 1 << 30
    with pytest.raises(ConfigError, match="lots"):
        EngineConfig(kv_memory="lots")


def test_host_memory_is_not_for_several_gpus() -> None:
    assert EngineConfig(gpus=2).host_kv == "auto"
    with pytest.raises(ConfigError, match="only supported with a single GPU"):
        EngineConfig(gpus=2, host_kv="1GiB")


@pytest.mark.parametrize("share", [0, -0.5, 1.01, float("nan")])
def test_a_share_of_the_gpu_is_above_nothing_and_at_most_all(share: float) -> None:
    assert EngineConfig(gpu_memory=1).gpu_memory == 1
    with pytest.raises(ConfigError, match="gpu_memory must be above 0 and at most 1"):
        EngineConfig(gpu_memory=share)


@pytest.mark.parametrize("value", [-1, float("nan")])
@pytest.mark.parametrize("name", ["max_retries", "retry_share", "queue_timeout_s", "hedge_after_s", "drain_timeout_s"])
def test_a_number_of_a_listener_is_not_below_zero(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 0, not {value}"):
        RouterConfig(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"explain_memory_tokens must be at least 0, not {value}"):
        ServerConfig(explain_memory_tokens=value)  # type: ignore[arg-type]
