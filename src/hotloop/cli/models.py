"""`hotloop models`, `hotloop pull` and `hotloop version`: what is here to run."""

import platform
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.filesize import decimal

from hotloop.cli.loading import pull_model
from hotloop.cli.output import make_table, show
from hotloop.cli.settings import Json
from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.version import __version__

if TYPE_CHECKING:
    from hotloop.models.catalogue import Entry

ModelName = Annotated[str, Parameter(help="A name `hotloop models` lists, a GGUF file, or a Hugging Face folder.")]


def models(*, as_json: Json = False) -> None:
    """List the models that can be loaded by name."""
    from hotloop.models.catalogue import list_models

    entries = list_models()
    titles = ("NAME", "FAMILY", "CONTEXT", "SIZE", "WHERE")
    table = make_table(*titles, words=("NAME", "FAMILY", "WHERE"), folds=True)
    for entry in entries:
        where = str(entry.path) if entry.is_pulled else f"not here yet: hotloop pull {entry.name}"
        table.add_row(entry.name, entry.family, f"{entry.max_context:,}", decimal(entry.size_bytes), where)
    show([_describe(entry) for entry in entries], table, as_json)


def pull(model: ModelName = DEFAULT_MODEL, /, *, as_json: Json = False) -> None:
    """Download a model, or make one on this machine known by its name."""
    entry = pull_model(model)
    show(_describe(entry), f"{entry.name} is at {entry.path}", as_json)


def version(*, as_json: Json = False) -> None:
    """Print the version of hotloop and of what it runs on."""
    from importlib.metadata import version as installed

    versions = {"hotloop": __version__, "python": platform.python_version(), "openvino": installed("openvino")}
    show(versions, "\n".join(f"{name:9}{number}" for name, number in versions.items()), as_json)


def _describe(entry: "Entry") -> dict[str, Any]:
    names = ("name", "kind", "family", "max_context", "size_bytes", "is_pulled")
    return {name: getattr(entry, name) for name in names} | {"path": str(entry.path)}
