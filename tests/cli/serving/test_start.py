"""What a server imports before it can answer: nothing that is for commands, pages and questions that come later."""

import subprocess
import sys

LATER = ("gguf", "hotloop.lint", "hotloop.ui", "httpx", "jsonschema", "rich", "yaml")
"""Each takes a tenth of a second, or brings what does."""
_CODE = """
import sys
import hotloop.cli.app
from hotloop.cli.serving.serve import serve, _import_server
import hotloop.engine.load
import hotloop.backends.cpu.opening
_import_server()
print(*sys.modules)
"""


def test_what_a_server_does_not_need_at_its_start_is_not_imported() -> None:
    done = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True, timeout=60)
    imported = done.stdout.split()
    assert "hotloop.server.app" in imported
    assert [name for name in imported if name in LATER] == []
