"""A new user's clock: from the install to the first finding about their own vLLM, by the commands of the manual."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.vllm_server import VllmServer

from hotloop.core.extras import EXTRA_OF

PAGE = Path(__file__).parents[1] / "docs" / "beside-vllm.md"
_WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({[*EXTRA_OF]}));"


def test_the_second_command_says_what_to_change(tmp_path: Path) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    install, doctor, *_ = [line for block in blocks for line in block.splitlines()]
    assert install == "pip install hotloop"
    name, *argv = shlex.split(doctor)
    assert name == "hotloop"
    with VllmServer() as server:
        argv = [server.url if word.startswith("http") else word for word in argv]
        command = [sys.executable, "-c", f"{_WITHOUT} from hotloop.cli.main import main; main()"]
        env = {**os.environ, "HOTLOOP_HOME": str(tmp_path)}
        done = subprocess.run(
            [*command, *argv, "--idle", "0", "--json"], capture_output=True, text=True, env=env, check=False
        )
    said = json.loads(done.stdout)
    assert (done.returncode, said["kind"]) == (1, "vllm")
    advice = {each["check"]: each["advice"] for each in said["findings"] if each["verdict"] == "failure"}
    assert advice["strict tools"].startswith("Constrain tool calls to their schema by a grammar")
