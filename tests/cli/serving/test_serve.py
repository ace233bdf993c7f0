"""What `hotloop serve` does when its device is lost."""

import os
import subprocess
import sys

import pytest

from hotloop.cli.serving.serve import MIN_LIFE_S, begin_again
from hotloop.core.errors import DeviceLost

LOSE = """
import os
from hotloop.cli.serving.serve import begin_again
from hotloop.core.errors import DeviceLost
if os.environ.get("LIFE"):
    print("the second life", __import__("sys").argv[1:])
else:
    os.environ["LIFE"] = "2"
    begin_again(DeviceLost("the GPU failed: gone"), 1e6)
"""


def test_a_new_process_takes_the_place_of_one_whose_device_is_lost() -> None:
    environ = {name: value for name, value in os.environ.items() if name != "LIFE"}
    command = [sys.executable, "-c", LOSE, "--port", "7"]
    result = subprocess.run(command, capture_output=True, text=True, env=environ, check=True, timeout=60)
    assert result.stdout == "the second life ['--port', '7']\n"
    assert result.stderr == "the GPU failed: gone; starting again\n"


def test_a_device_that_is_lost_at_once_is_told_to_whoever_started_the_server() -> None:
    with pytest.raises(DeviceLost, match="gone"):
        begin_again(DeviceLost("gone"), MIN_LIFE_S / 2)
