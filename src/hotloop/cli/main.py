"""The command line: one file a command, and the one place where errors become a line and an exit code.

    0  done     1  it failed     2  it was asked wrongly     130  interrupted

What a command needs to run is imported inside it: `hotloop --help` loads no engine.
"""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from cyclopts import App, CycloptsError, Parameter

from hotloop import __version__
from hotloop.cli.bench import bench
from hotloop.cli.chat import chat
from hotloop.cli.demo import demo
from hotloop.cli.doctor import doctor
from hotloop.cli.fleet import fleet
from hotloop.cli.lint import lint
from hotloop.cli.models import models
from hotloop.cli.predict import predict
from hotloop.cli.pull import pull
from hotloop.cli.route import route
from hotloop.cli.run import run_agent
from hotloop.cli.serve import serve
from hotloop.cli.settings import Sources
from hotloop.cli.simulate import simulate
from hotloop.cli.size import size
from hotloop.cli.trace import trace
from hotloop.cli.version import version
from hotloop.core.config import TraceConfig
from hotloop.core.errors import ConfigError, HotloopError

app = App(
    name="hotloop",
    help="The inference stack for agents: every turn pays only for what is new.",
    help_format="plaintext",
    version=__version__,
    version_flags="--version",
    default_parameter=Parameter(negative_iterable=()),
    result_action="return_value",
)
app.command(serve, config=Sources())
app.command(chat, config=Sources())
app.command(route, config=Sources())
app.command(run_agent, name="run", config=Sources(only=TraceConfig))
for command in (simulate, size, lint, doctor, pull, models, demo, version):
    app.command(command)
app.command(bench)
app.command(predict)
app.command(fleet)
app.command(trace)


def run(argv: Sequence[str]) -> int:
    """Run one command line; the exit code. What the caller or the world did wrong is one line on stderr."""
    try:
        code = app(list(argv), print_error=False, exit_on_error=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (CycloptsError, ConfigError) as error:
        return _fail(error, 2)
    except HotloopError as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone, as in `| head`. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _fail(error: Exception, code: int) -> int:
    line = " ".join(str(error).split())
    print(f"hotloop: {line}", file=sys.stderr)
    return code


def main() -> NoReturn:
    sys.exit(run(sys.argv[1:]))
