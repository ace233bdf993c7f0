"""A predictor on disk: one JSON file, written whole or not at all, and believed only after it was checked.

What is in it: names of tools, arguments and fields of results, shapes of ids (`a_a_9`), counts, and the few values that
several runs had in common (see `habits`). What was said, and what tools answered, is not.
"""

import os
import tempfile
from pathlib import Path

import msgspec

from hotloop.agent.predict.predictor import VERSION, Predictor
from hotloop.core.errors import ConfigError

_MAX_BYTES = 64 << 20


def save_predictor(predictor: Predictor, path: Path) -> None:
    """Raises ConfigError where the file cannot be written; what was there is then still there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # readable by its owner only
        try:
            with os.fdopen(file, "wb") as out:
                out.write(msgspec.json.encode(predictor))
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error


def load_predictor(path: Path) -> Predictor:
    """Raises ConfigError where there is no such file, or one that is damaged."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        predictor = msgspec.json.decode(data, type=Predictor)
        if predictor.version != VERSION:
            raise ValueError(f"its version is {predictor.version}, and this program reads {VERSION}")
    except ValueError as error:
        raise ConfigError(f"{path} is not what a predictor has written: {error}") from error
    return predictor
