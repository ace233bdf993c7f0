"""What a reload applies, what it reports, and that it is all or nothing."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.http.test_tls import write_certificate

from hotloop.cli.serving.reload import Reload, Settings
from hotloop.core.config import CLASS_SETTINGS, RELOADABLE, EngineConfig, RouterConfig, ServerConfig, TraceConfig
from hotloop.core.errors import ConfigError
from hotloop.http.keys import read_keys


@pytest.fixture(autouse=True)
def log_level() -> Iterator[logging.Logger]:
    log = logging.getLogger("hotloop")
    before = log.level
    yield log
    log.setLevel(before)


def reload(old: Settings[RouterConfig], new: Settings[RouterConfig]) -> tuple[str, Reload[RouterConfig]]:
    reloaded = Reload(old, lambda: new)
    return reloaded(), reloaded


def router(**settings: object) -> Settings[RouterConfig]:
    return Settings(RouterConfig(**settings), TraceConfig())  # type: ignore[arg-type]


def test_what_is_applied_is_told_apart_from_what_waits(log_level: logging.Logger) -> None:
    told, again = reload(router(port=1), router(port=2, policy="session", log_level="error", max_retries=7))
    assert told == "changed: log_level=error, max_retries=7, policy=session; needs a restart: port"
    assert log_level.level == logging.ERROR
    assert again() == "changed: nothing; needs a restart: port", "it is not in force yet"


def test_the_settings_in_force_are_what_is_applied() -> None:
    given: list[RouterConfig] = []
    new = router(port=2, replica=("http://a", "http://b"), queue_timeout_s=5.0)
    Reload(router(port=1), lambda: new)(lambda new: given.append(new.listener) or ["replicas added: a, b"])
    assert given == [RouterConfig(port=1, replica=("http://a", "http://b"), queue_timeout_s=5.0)]


def test_no_key_is_told_and_whether_there_are_any_is_settled_at_the_start() -> None:
    told, reloaded = reload(router(api_key="old"), router(api_key="new"))
    assert (told, reloaded.keys.current) == ("changed: API keys", read_keys("new", None))
    told, reloaded = reload(router(api_key="old"), router())
    assert (told, reloaded.keys.current) == ("changed: nothing; needs a restart: api_key", read_keys("old", None))
    told, reloaded = reload(router(), router(api_key="new"))
    assert (told, reloaded.keys.current) == ("changed: nothing; needs a restart: api_key", read_keys(None, None))


def test_another_certificate_is_told_once(tmp_path: Path) -> None:
    listener = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    write_certificate(tmp_path, "before")
    reloaded = Reload(router(**listener), lambda: router(**listener))
    assert reloaded() == "changed: nothing"
    write_certificate(tmp_path, "after")
    assert [reloaded(), reloaded()] == ["changed: certificate", "changed: nothing"]


def test_what_is_refused_changes_nothing(tmp_path: Path, log_level: logging.Logger) -> None:
    old, level = router(api_key="old"), log_level.level
    missing = router(api_key="new", api_key_file=str(tmp_path / "none"), log_level="error")
    pattern = Settings(RouterConfig(api_key="new", log_level="error"), TraceConfig(trace_redact=("(",)))
    for new in (missing, pattern):
        reloaded = Reload(old, lambda new=new: new)  # type: ignore[misc]
        with pytest.raises(ConfigError):
            reloaded()
        assert (reloaded.keys.current, log_level.level) == (read_keys("old", None), level)


def test_an_error_of_the_fleet_changes_nothing(log_level: logging.Logger) -> None:
    def refuse(settings: Settings[RouterConfig]) -> list[str]:
        raise ConfigError("there is no replica")

    reloaded, level = Reload(router(api_key="old"), lambda: router(api_key="new", log_level="error")), log_level.level
    with pytest.raises(ConfigError, match="no replica"):
        reloaded(refuse)
    assert (reloaded.keys.current, log_level.level) == (read_keys("old", None), level)


def test_of_the_engine_only_what_classes_may_wait_is_applied() -> None:
    was, now = EngineConfig(max_running=1), EngineConfig(max_running=2, workflow_wait_s=0.25, background_share=0.3)
    old, new = (Settings(ServerConfig(), TraceConfig(), (config,)) for config in (was, now))
    given: list[EngineConfig] = []
    reloaded = Reload(old, lambda: new)
    told = reloaded(lambda settings: given.extend(settings.others) or [])
    assert told == "changed: background_share=0.3, workflow_wait_s=0.25; needs a restart: max_running"
    assert given == [EngineConfig(max_running=1, workflow_wait_s=0.25, background_share=0.3)]
    assert reloaded() == "changed: nothing; needs a restart: max_running"
    assert {*CLASS_SETTINGS} == RELOADABLE & {*EngineConfig.__slots__, *TraceConfig.__slots__}
