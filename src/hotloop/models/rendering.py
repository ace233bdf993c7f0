"""The process that runs chat templates, in jinja2's sandbox the way Hugging Face runs them.

A template is code from a file somebody downloaded, and no sandbox within Python bounds its time: to compare two nested
lists can take hours. So it runs here, where the operating system ends what takes too long, with the whole process, and
refuses memory beyond a limit. A task is a pickled template and its variables, or None to have it only compiled; the
answer is one byte and a text. Imports little: it is started when the first template is loaded.
"""

import contextlib
import json
import pickle
import resource
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hotloop.models.renderer import FAILED, READY, RENDERED

MAX_CHARS = 128 << 20


class _RawArguments(dict[str, Any]):
    """The arguments of a tool call: a mapping for templates that look inside, the exact text for those that print it.

    What the model wrote comes back character for character, so the prompt's tokens stay the ones already computed.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str, parsed: Mapping[str, Any]) -> None:
        super().__init__(parsed)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, behind: str) -> str:
        return self._text + behind

    def __radd__(self, before: str) -> str:
        return before + self._text


def _arguments(text: str) -> str | _RawArguments:
    try:
        parsed = json.loads(text)
    except ValueError:
        parsed = None
    return _RawArguments(text, parsed) if isinstance(parsed, dict) else text


class _GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it is only passed through."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, as Hugging Face has it: jinja2's own escapes what HTML would mind."""
    if isinstance(value, _RawArguments) and not (indent or separators or sort_keys):
        return value._text
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


@lru_cache(maxsize=16)
def _compile(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment.from_string(source)


def _render(source: str, variables: dict[str, Any] | None) -> str:
    template = _compile(source)
    if variables is None:
        return ""
    for message in variables["messages"]:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = _arguments(call["function"]["arguments"])
    text = "".join(template.generate(variables))
    if len(text) > MAX_CHARS:
        raise TemplateError(f"it makes more than {MAX_CHARS} characters")
    return text


def _answer(task: bytes) -> bytes:
    try:
        return RENDERED + _render(*pickle.loads(task)).encode("utf-8", "surrogatepass")
    except TemplateSyntaxError as error:
        reason = f"wrong at line {error.lineno}: {error.message}"
    except MemoryError:
        reason = "it takes too much memory"
    except Exception as error:  # a template can raise anything that Python can
        reason = " ".join(str(error).split()) or type(error).__name__
    return FAILED + reason[:500].encode("utf-8", "replace")


def main(max_cpu_s: float, max_bytes: int) -> None:
    """Answer tasks that come over file descriptor 0 until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what a terminal sends is for whoever started this
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    connection = Connection(0)
    with contextlib.suppress(EOFError, OSError):
        connection.send_bytes(READY)
        while task := connection.recv_bytes():
            signal.setitimer(signal.ITIMER_PROF, max_cpu_s)  # nobody handles this signal: it ends the process
            answer = _answer(task)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send_bytes(answer)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
