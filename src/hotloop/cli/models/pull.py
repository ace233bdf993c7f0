"""`hotloop pull`."""

import json
from typing import Annotated

from cyclopts import Parameter

from hotloop.cli.settings import Json
from hotloop.core.config import DEFAULT_MODEL


def pull(
    model: Annotated[str, Parameter(help="A name `hotloop models` lists, a GGUF file, or a Hugging Face folder.")] = (
        DEFAULT_MODEL
    ),
    /,
    *,
    as_json: Json = False,
) -> None:
    """Download a model, or make one on this machine known by its name."""
    from hotloop.cli.loading import pull_model
    from hotloop.cli.models.list import describe

    entry = pull_model(model)
    if as_json:
        print(json.dumps(describe(entry)))
    else:
        print(f"{entry.name} is at {entry.path}")
