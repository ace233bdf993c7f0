"""What `[ray]` may say, and what it is told if it says something else."""

from pathlib import Path

import pytest

from hotloop.core.errors import ConfigError
from hotloop.ray.config import parse_ray_config, read_ray_config


def test_nothing_said_is_one_replica_of_the_default_model():
    config = parse_ray_config({})
    assert (config.engine, config.min_replicas, config.max_replicas) == ("hotloop", 1, 1)


def test_the_settings_of_a_replica_are_those_of_a_server():
    config = parse_ray_config(
        {"max_replicas": 4, "hotloop": {"model": "m.gguf", "kv_memory": "1GiB", "disable": ["strict_tools", "drafts"]}}
    )
    assert config.max_replicas == 4
    assert config.hotloop.model.model == "m.gguf"
    assert config.hotloop.engine.kv_memory == "1GiB"
    assert (config.hotloop.server.strict_tools, config.hotloop.engine.drafts) == (False, False)
    assert config.hotloop.engine.retention


def test_vllm_is_started_as_the_file_says():
    config = parse_ray_config(
        {"engine": "vllm", "gpus": 1, "vllm": {"model": "org/name", "args": ["--max-model-len", "8192"]}}
    )
    assert config.vllm.command == ("vllm", "serve")
    assert config.vllm.args == ("--max-model-len", "8192")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"replicas": 2}, r"\[ray\]: .*unknown field replicas"),
        ({"max_replicas": "two"}, "max_replicas"),
        ({"min_replicas": 0}, "int >= 1 - at min_replicas"),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas must be at least min_replicas, 3"),
        ({"policy": "clever"}, "policy"),
        ({"drain_timeout_s": 0}, "float > 0.0 - at drain_timeout_s"),
        ({"engine": "vllm"}, "vLLM needs a model"),
        ({"max_body": "much"}, "not a size"),
        ({"hotloop": {"port": 1}}, r"\[ray.hotloop\]: there is no setting 'port'"),
        ({"hotloop": {"drafts": False}}, r"\[ray.hotloop\]: there is no setting 'drafts'"),
        ({"hotloop": {"disable": ["draft"]}}, r"\[ray\]: Invalid enum value 'draft'"),
        ({"hotloop": {"max_running": 0}}, "max_running must be at least 1"),
        ({"vllm": "org/name"}, "object, got str - at vllm"),
    ],
)
def test_what_is_wrong_is_named(table: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        parse_ray_config(table)


@pytest.mark.parametrize(
    ("text", "message"),
    [("", r"has no table \[ray\]"), ("[ray", "is not TOML"), ("[ray]\nx = 1", "ray.toml: .*unknown field x")],
)
def test_the_file_is_named_too(tmp_path: Path, text: str, message: str):
    path = tmp_path / "ray.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_ray_config(path)
    with pytest.raises(ConfigError, match="cannot read"):
        read_ray_config(tmp_path / "none.toml")


def test_other_tables_are_not_ours(tmp_path: Path):
    path = tmp_path / "ray.toml"
    path.write_text('[ray]\nport = 1234\n[[replicas]]\nurl = "http://127.0.0.1:1"\n')
    assert read_ray_config(path).port == 1234
