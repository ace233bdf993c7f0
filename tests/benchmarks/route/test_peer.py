"""The proxy we compare with: how it is set up, and what is said where it is not there."""

import json
from pathlib import Path

import pytest
from benchmarks.route.peer import LiteLlmProcess, render_config

from hotloop.core.errors import RemoteError


def test_it_has_the_stub_and_nothing_that_takes_time():
    config = json.loads(render_config("http://127.0.0.1:1"))
    (model,) = config["model_list"]
    assert model["litellm_params"]["api_base"] == "http://127.0.0.1:1/v1"
    assert config["litellm_settings"]["callbacks"] == []


def test_a_program_that_is_not_there_is_one_clear_line(tmp_path: Path):
    with pytest.raises(RemoteError, match="cannot run"), LiteLlmProcess(tmp_path / "litellm", "http://127.0.0.1:1"):
        pass


def test_one_that_does_not_start_is_quoted(tmp_path: Path):
    program = tmp_path / "litellm"
    program.write_text("#!/bin/sh\necho 'it is broken'\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(RemoteError, match="did not start: it is broken"), LiteLlmProcess(program, "http://[::1]:1"):
        pass
