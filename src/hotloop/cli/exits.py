"""The one place where errors become a line and an exit code.

0  done     1  it failed     2  usage error     130  interrupted
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from hotloop.core.errors import ConfigError, HotloopError
from hotloop.core.extras import missing_extra


def run_command(ask: Callable[[Sequence[str]], Any], argv: Sequence[str]) -> int:
    """Run one command line; the exit code. What the caller or the world did wrong is one line on stderr."""
    try:
        code = ask(argv)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except ConfigError as error:
        return _fail(error, 2)
    except HotloopError as error:
        return _fail(error, 1)
    except ModuleNotFoundError as error:
        missing = missing_extra(error, " ".join(["hotloop", *argv[:1]]))
        if missing is None:
            raise
        return _fail(missing, 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone, as in `| head`. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _fail(error: Exception, code: int) -> int:
    complain(" ".join(str(error).split()))
    return code


def complain(*lines: str) -> None:
    for line in lines:
        print(f"hotloop: {line}", file=sys.stderr)
