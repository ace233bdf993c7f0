"""The clients' own tests of the server, with a router between."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ("test_openai_client", "test_responses_client", "test_anthropic_client", "test_agents", "test_anthropic_agents")


def test_clients_notice_no_router() -> None:
    paths = [f"tests/server/{name}.py" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--through-router", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
