"""Getting a model and an engine ready while somebody waits: what takes time says so, on stderr.

Only what shows something imports what shows it: most servers start where there is no terminal.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hotloop.core.config import DEFAULT_MODEL, EngineConfig, ModelConfig

if TYPE_CHECKING:
    from hotloop.engine.engine import Engine
    from hotloop.models.catalogue import Entry


def pull_model(name: str) -> "Entry":
    """Pull with a progress bar, or a line where there is no terminal; neither shows if there is nothing to download."""
    from rich.filesize import decimal
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from hotloop.cli.output import console
    from hotloop.models.model import pull

    columns = (TextColumn(f"pulling {name}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("pull", visible=False)

        def advance(done_bytes: int, total_bytes: int) -> None:
            if not console.is_terminal and not bar.tasks[task].visible:
                console.print(f"pulling {name}, {decimal(total_bytes)} ...")
            bar.update(task, completed=done_bytes, total=total_bytes, visible=True)

        return pull(name, advance)


def pull_missing(name: str) -> None:
    """Pull a model that can be fetched by its name, if it is not here."""
    from hotloop.models.catalogue import needs_pull

    if needs_pull(name):
        pull_model(name)


def load_engine(model: ModelConfig, engine: EngineConfig, meanwhile: Callable[[], object] = lambda: None) -> "Engine":
    """`meanwhile` is called while weights are made ready, which takes no more than the other cores."""
    from hotloop.models.renderer import shared_renderer

    for name in (model.model, engine.draft_model):
        if name and model.load_format != "dummy":
            pull_missing(name)
    given = asdict(model)
    with _status(f"loading {model.model} ..."):
        shared_renderer().prepare()
        from hotloop.engine.engine import Engine

        return Engine.load(given.pop("model"), engine, meanwhile=meanwhile, **given)


@contextmanager
def lend_server(url: str | None, model: str | None, flags: Sequence[str] = ()) -> Iterator[str]:
    """The address of the server given, or of one with these flags that lives as long as the context."""
    if url is not None:
        yield url
        return
    from hotloop.bench.serving import ChildServer, exit_on_sigterm

    exit_on_sigterm()
    name = model or DEFAULT_MODEL
    pull_missing(name)
    with ExitStack() as stack:
        with _status(f"loading {name} ..."):
            server = stack.enter_context(ChildServer(("--model", name, *flags)))
        yield server.url


def _status(line: str) -> AbstractContextManager[Any]:
    """A line that lasts as long as the context, on a terminal."""
    if not sys.stderr.isatty():
        return nullcontext()
    from hotloop.cli.output import console

    return console.status(line)
