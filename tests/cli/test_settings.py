"""Flags beat the environment, which beats the file, which beats the defaults."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cyclopts import CycloptsError

from hotloop.cli.command_line import CommandLine
from hotloop.cli.settings import CONFIG_FILE, ConfigFile, Disable, EngineFlags, RouterFlags, ServerFlags, Sources
from hotloop.core.config import EngineConfig, RouterConfig, ServerConfig, without
from hotloop.core.errors import ConfigError

Settings = tuple[EngineConfig, ServerConfig]
Parse = Callable[..., Settings]


@pytest.fixture
def parse(tmp_path: Path) -> Parse:
    def parse(*argv: str, environ: Mapping[str, str] | None = None, file: str | None = None) -> Settings:
        if file is not None:
            (tmp_path / CONFIG_FILE).write_text(file)
        app = CommandLine(config=Sources(lambda: environ or {}, lambda: tmp_path), result_action="return_value")

        @app.default
        def show(
            *,
            engine: EngineFlags = EngineConfig(),
            server: ServerFlags = ServerConfig(),
            disable: Disable = (),
            config: ConfigFile = None,
        ) -> Settings:
            return without(engine, disable), without(server, disable)

        result: Settings = app(list(argv), exit_on_error=False, print_error=False)
        return result

    return parse


def test_defaults(parse: Parse):
    assert parse() == (EngineConfig(), ServerConfig())


def test_file_beats_default(parse: Parse):
    engine, server = parse(
        file='max_running = 3\ndisable = ["prefix_cache"]\ncors_origins = ["a", "b"]\ndrain_timeout_s = 5'
    )
    assert (engine.max_running, engine.prefix_cache) == (3, False)
    assert (server.cors_origins, server.drain_timeout_s) == (("a", "b"), 5.0)


def test_environment_beats_default(parse: Parse):
    environ = {"HOTLOOP_MAX_RUNNING": "4", "HOTLOOP_DISABLE": "prefix_cache", "HOTLOOP_CORS_ORIGINS": "a b"}
    engine, server = parse(environ=environ)
    assert (engine.max_running, engine.prefix_cache, server.cors_origins) == (4, False, ("a", "b"))


def test_flag_beats_default(parse: Parse):
    engine, server = parse(
        "--max-running", "5", "--disable", "prefix_cache", "--cors-origins", "a", "--cors-origins", "b"
    )
    assert (engine.max_running, engine.prefix_cache, server.cors_origins) == (5, False, ("a", "b"))


def test_environment_beats_file(parse: Parse):
    environ = {"HOTLOOP_MAX_RUNNING": "4", "HOTLOOP_DISABLE": "drafts", "HOTLOOP_CORS_ORIGINS": "a"}
    engine, server = parse(
        environ=environ, file='max_running = 3\ndisable = ["prefix_cache"]\ncors_origins = ["b", "c"]'
    )
    assert (engine.max_running, engine.prefix_cache, server.cors_origins) == (4, True, ("a",))


def test_flag_beats_environment(parse: Parse):
    environ = {"HOTLOOP_MAX_RUNNING": "4", "HOTLOOP_DISABLE": "drafts", "HOTLOOP_CORS_ORIGINS": "a"}
    engine, server = parse("--max-running", "5", "--disable", "prefix_cache", "--cors-origins", "d", environ=environ)
    assert (engine.max_running, engine.prefix_cache, server.cors_origins) == (5, False, ("d",))


def test_flag_beats_file(parse: Parse):
    engine, _ = parse("--max-running", "5", "--disable", "drafts", file='max_running = 3\ndisable = ["prefix_cache"]')
    assert (engine.max_running, engine.prefix_cache) == (5, True)


def test_features_are_disabled_by_name(parse: Parse):
    engine, server = parse("--disable", "retention,late_tools", "--disable", "drafts")
    assert (engine.retention, engine.drafts, engine.admission) == (False, False, True)
    assert (server.late_tools, server.exact_turns) == (False, True)
    assert parse("--disable", "", file='disable = ["drafts"]')[0].drafts, "an empty list disables nothing"


@pytest.mark.parametrize(
    ("argv", "environ", "file", "reason"),
    [
        (["--disable", "draft"], {}, None, "there is no feature 'draft'; there are prefix_cache, "),
        ([], {"HOTLOOP_DISABLE": "late_tools,x"}, None, "HOTLOOP|disable.* there is no feature 'x'"),
        ([], {}, 'disable = ["x"]', "there is no feature 'x'"),
        ([], {}, "drafts = false", "there is no setting 'drafts'"),
        (["--no-drafts"], {}, None, "Unknown option"),
    ],
)
def test_an_unknown_feature_is_an_error(
    parse: Parse, argv: list[str], environ: Mapping[str, str], file: str | None, reason: str
):
    with pytest.raises((ConfigError, CycloptsError), match=reason):
        parse(*argv, environ=environ, file=file)


def test_sources_mix(parse: Parse):
    engine, server = parse("--max-waiting", "7", environ={"HOTLOOP_HOST": "::1"}, file="port = 1")
    assert (engine.max_waiting, server.host, server.port) == (7, "::1", 1)


def test_an_empty_variable_is_not_set(parse: Parse):
    assert parse(environ={"HOTLOOP_MAX_WAITING": ""})[0].max_waiting == 512


def test_a_mistyped_variable_is_pointed_out(parse: Parse, capsys: pytest.CaptureFixture[str]):
    parse(environ={"HOTLOOP_KVMEMORY": "4GiB", "HOTLOOP_HOME": "/somewhere", "HOTLOOP_PORT": "1"})
    assert (
        capsys.readouterr().err
        == "hotloop: unknown environment variable HOTLOOP_KVMEMORY; did you mean HOTLOOP_KV_MEMORY? (ignored)\n"
    )


def test_another_file_can_be_named(parse: Parse, tmp_path: Path):
    other = tmp_path / "other.toml"
    other.write_text("port = 2")
    assert parse("--config", str(other), file="port = 1")[1].port == 2


def test_settings_of_other_commands_may_stand_in_the_file(parse: Parse):
    assert parse(file='model = "x"\nport = 1')[1].port == 1


def test_serve_and_route_in_one_folder_have_ports_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    app = CommandLine(config=Sources(dict, lambda: tmp_path), result_action="return_value")

    @app.command
    def serve(*, server: ServerFlags = ServerConfig(), config: ConfigFile = None) -> int:
        return server.port

    @app.command
    def route(*, router: RouterFlags = RouterConfig(), config: ConfigFile = None) -> int:
        return router.port

    def ports(file: str, *argv: str) -> tuple[int, int]:
        (tmp_path / CONFIG_FILE).write_text(file)
        serve, route = (app([name, *argv], exit_on_error=False, print_error=False) for name in ("serve", "route"))
        return serve, route

    assert ports("port = 9001\nmax_waiting = 7") == (9001, 8780)
    assert "port is that of serve; for route, write it below [route]" in capsys.readouterr().err
    assert ports("port = 9001\n[route]\nport = 9002") == (9001, 9002)
    assert ports("[serve]\nport = 9001\n[route]\nport = 9002") == (9001, 9002)
    assert ports("port = 9001\n[serve]\nport = 9003", "--config", str(tmp_path / CONFIG_FILE)) == (9003, 9001)
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("[route]\nmax_running = 3", r"hotloop\.toml: \[route\]: there is no setting 'max_running'"),
        ("route = 3", r"hotloop\.toml: write \[route\]"),
        ("[classes]\nmax_running = 3", r"hotloop\.toml: \[classes\]: there is no setting 'max_running'"),
        ("[classes]\nbackground_share = 1.5", "background_share must be above 0 and at most 1, not 1.5"),
        ("workflow_wait_s = 0", "workflow_wait_s must be above 0 and at most 3600, not 0"),
        ("max_runing = 3", r"hotloop\.toml: there is no setting 'max_runing'"),
        ("[engine]\nmax_running = 3", r"hotloop\.toml: there is no setting 'engine'"),
        ("port = [1]", r"hotloop\.toml: port cannot be \[1\]"),
        ("port = 1979-05-27", r"hotloop\.toml: port cannot be"),
        ("port = ", r"hotloop\.toml is not TOML"),
        ("max_running = 0", "max_running must be at least 1, not 0"),
    ],
)
def test_a_wrong_file_is_one_clear_line(parse: Parse, file: str, reason: str):
    with pytest.raises(ConfigError, match=reason):
        parse(file=file)


def test_classes_have_a_table(parse: Parse):
    engine, _ = parse(file="promotion_s = 9\n[classes]\nworkflow_wait_s = 0.1\nbackground_share = 0.2")
    assert (engine.promotion_s, engine.workflow_wait_s, engine.background_share) == (9, 0.1, 0.2)


def test_a_named_file_must_exist(parse: Parse, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file"):
        parse("--config", str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("environ", "file", "reason"),
    [
        ({"HOTLOOP_PORT": "x"}, None, r"port.* from the environment: unable to convert"),
        ({}, 'port = "x"', r"port.* from .*hotloop\.toml: unable to convert"),
        ({}, 'kv_precision = "f8"', r"kv_precision.* from .*hotloop\.toml"),
    ],
)
def test_a_value_that_does_not_fit_names_its_source(
    parse: Parse, environ: Mapping[str, str], file: str | None, reason: str
):
    with pytest.raises(CycloptsError, match=reason):
        parse(environ=environ, file=file)
