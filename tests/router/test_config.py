"""The file of replicas: strict, and clear about what is wrong."""

from pathlib import Path

import pytest

from hotloop.core.config import RouterConfig
from hotloop.core.errors import ConfigError
from hotloop.router.config import read_routing


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "replicas.toml"
    path.write_text(text)
    return path


def test_flags_and_file_together(tmp_path):
    path = write(
        tmp_path,
        """
        policy = "session"
        [[replicas]]
        url = "http://10.0.0.7:8000/v1/"
        kind = "vllm"
        models = { large = "org/name" }
        api_key_env = "VLLM_KEY"
        weight = 2.0
        [[replicas]]
        url = "https://api.example.com/base"
        name = "hosted"
        """,
    )
    router = RouterConfig(replica=("http://127.0.0.1:8701",), max_connections=7)
    replica_set = read_routing(router, path, {"VLLM_KEY": "secret"})
    first, second, third = replica_set.replicas
    assert [each.name for each in replica_set.replicas] == ["127.0.0.1:8701", "10.0.0.7:8000", "hosted"]
    assert (first.url, first.kind, first.max_connections) == ("http://127.0.0.1:8701", "auto", 7)
    assert (second.url, second.api_key, second.weight) == ("http://10.0.0.7:8000", "secret", 2.0)
    assert second.models == {"large": "org/name"}
    assert third.url == "https://api.example.com/base"
    assert "secret" not in repr(replica_set)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no replica"),
        ("[[replicas]]\nname = 'a'", "url"),
        ("[[replicas]]\nurl = 'http://a'\nport = 5", "port"),
        ("[[replicas]]\nurl = 'http://a'\nweight = 'much'", "weight"),
        ("[[replicas]]\nurl = 'http://a'\nweight = 0", "above zero"),
        ("[[replicas]]\nurl = 'http://a'\nkind = 'abacus'", "there is no kind 'abacus'"),
        ("[[replicas]]\nurl = 'http://a'\napis = ['fax']", "http://a: apis knows no 'fax'; there are chat, "),
        (
            "[[replicas]]\nurl = 'http://a'\npool = 'heavy'",
            "pool knows no 'heavy'; there are prefix-heavy",
        ),
        ("[[replicas]]\nurl = 'http://a'\npool = 3", "pool knows no 3"),
        ("[[replicas]]\nurl = 'ftp://a'", "not an address"),
        ("[[replicas]]\nurl = 'http://a:99999'", "not an address"),
        ("[[replicas]]\nurl = 'http://me:word@a'", "must not contain credentials"),
        ("[[replicas]]\nurl = 'http://a'\napi_key_env = 'UNSET'", "UNSET is not set"),
        ("[[replicas]]\nurl = 'http://a'\n[[replicas]]\nurl = 'http://a'", "two replicas"),
        ("[replicas]\nurl = 'http://a'", "[[replicas]]"),
        ("[[replicas", "not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, said):
    with pytest.raises(ConfigError) as caught:
        read_routing(RouterConfig(), write(tmp_path, text), {})
    assert said in str(caught.value)
    assert "word" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        read_routing(RouterConfig(), tmp_path / "none.toml", {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("weight = nan", "finite"),
        ("weight = inf", "finite"),
        ('name = "a\\nb"', "control character"),
        ('name = "a\\u0007"', "control character"),
        ("health_path = 'health'", "health_path must be like /health"),
        ('health_path = "/a b"', "health_path must be like /health"),
        ("kv_events = 'tcp://'", "kv_events of"),
        ("kv_events = 'tcp://127.0.0.1:1'\nkv_replay = 'udp://x'", "kv_replay of"),
        ("[[routes]]\nname = 'auto'", "a route needs [[tiers]]"),
        ("[[tiers]]\nname = 'small'", "model"),
    ],
)
def test_a_file_is_checked_before_anything_is_opened(tmp_path, text, said):
    with pytest.raises(ConfigError) as caught:
        read_routing(RouterConfig(), write(tmp_path, f"[[replicas]]\nurl = 'http://a'\n{text}"), {})
    assert said in str(caught.value)


def test_a_key_that_no_header_can_hold_is_refused(tmp_path):
    path = write(tmp_path, "[[replicas]]\nurl = 'http://a'\napi_key_env = 'KEY'")
    with pytest.raises(ConfigError, match="the key in KEY holds a control character"):
        read_routing(RouterConfig(), path, {"KEY": "a\nb"})


def test_a_policy_or_a_level_that_there_is_not():
    with pytest.raises(ConfigError, match="there is no policy 'nearest'; there are prefix, session"):
        RouterConfig(policy="nearest")
    with pytest.raises(ConfigError, match="there is no log_level 'loud'; there are debug, info"):
        RouterConfig(log_level="loud")
