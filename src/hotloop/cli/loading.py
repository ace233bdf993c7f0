"""Getting a model and an engine ready while somebody waits: what takes time says so, on stderr."""

from typing import TYPE_CHECKING

from rich.console import Console

from hotloop.core.config import EngineConfig, ModelConfig

if TYPE_CHECKING:
    from hotloop.engine.engine import Engine
    from hotloop.models.registry import Entry

console = Console(stderr=True, highlight=False, soft_wrap=True)


def pull_model(name: str) -> "Entry":
    """Pull with a progress bar, or a line where there is no terminal; neither shows if there is nothing to download."""
    from rich.filesize import decimal
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from hotloop.models.registry import pull

    columns = (TextColumn(f"pulling {name}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("pull", visible=False)

        def advance(done_bytes: int, total_bytes: int) -> None:
            if not console.is_terminal and not bar.tasks[task].visible:
                console.print(f"pulling {name}, {decimal(total_bytes)} ...")
            bar.update(task, completed=done_bytes, total=total_bytes, visible=True)

        return pull(name, advance)


def load_engine(model: ModelConfig, engine: EngineConfig) -> "Engine":
    """The engine, not yet started. A model that can be fetched by its name is, if it is not here."""
    from hotloop.models.registry import list_models

    if any(entry.name == model.model and not entry.is_pulled for entry in list_models()):
        pull_model(model.model)
    with console.status(f"loading {model.model} ..."):
        from hotloop.engine.engine import Engine

        return Engine.load(
            model.model,
            engine,
            weights=model.weights,
            precision=model.precision,
            device=model.device,
            load_format=model.load_format,
        )
