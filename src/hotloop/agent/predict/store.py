"""A predictor on disk: one JSON file, written whole or not at all, and believed only after it was checked.

What is in it: names of tools, arguments and fields of results, shapes of ids (`a_a_9`), counts, and the few values that
several runs had in common (see `constants`). What was said, and what tools answered, is not.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec

from hotloop.agent.predict.calibration import NUM_BUCKETS, Calibration
from hotloop.agent.predict.constants import Constants, Seen
from hotloop.agent.predict.habits import Argument, Habits
from hotloop.agent.predict.predictor import Predictor, Question
from hotloop.agent.predict.sources import Kind, Recipe, Source
from hotloop.agent.predict.tally import Tallies, Tally
from hotloop.core.errors import ConfigError

VERSION = 1
_MAX_BYTES = 64 << 20

_Count = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Tally = tuple[_Count, _Count]
_Source = tuple[Kind, str, str]


class _Recipe(msgspec.Struct, forbid_unknown_fields=True):
    sources: list[tuple[str, _Source]]
    tallies: dict[str, _Tally]


class _Argument(msgspec.Struct, forbid_unknown_fields=True):
    sources: list[tuple[_Source, _Number]]
    constants: dict[str, tuple[_Number, _Number]]


class _Habits(msgspec.Struct, forbid_unknown_fields=True):
    recipes: list[_Recipe]
    arguments: dict[str, _Argument]


class _State(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    num_runs: _Number
    calibrations: dict[Question, list[_Tally]]
    tools: dict[str, _Habits]


def save_predictor(predictor: Predictor, path: Path) -> None:
    """Raises ConfigError where the file cannot be written; what was there is then still there."""
    data = render_predictor(predictor)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # readable by its owner only
        try:
            with os.fdopen(file, "wb") as out:
                out.write(data)
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
        return parse_predictor(data)
    except ValueError as error:
        raise ConfigError(f"{path} is not what a predictor has written: {error}") from error


def render_predictor(predictor: Predictor) -> bytes:
    calibrations = {name: [_count(b) for b in each.buckets] for name, each in predictor.calibrations.items()}
    tools = {name: _render_habits(habits) for name, habits in predictor.tools.items()}
    return msgspec.json.encode(_State(VERSION, predictor.num_runs, calibrations, tools))


def parse_predictor(data: bytes) -> Predictor:
    """Raises ValueError."""
    state = msgspec.json.decode(data, type=_State)
    if state.version != VERSION:
        raise ValueError(f"its version is {state.version}, and this program reads {VERSION}")
    if any(len(buckets) != NUM_BUCKETS for buckets in state.calibrations.values()) or len(state.calibrations) != 2:
        raise ValueError("its calibration is incomplete")
    calibrations = {name: Calibration([Tally(*b) for b in buckets]) for name, buckets in state.calibrations.items()}
    tools = {name: _parse_habits(name, habits) for name, habits in state.tools.items()}
    return Predictor(tools, calibrations, state.num_runs)


def _render_habits(habits: Habits) -> _Habits:
    recipes = [
        _Recipe(
            [(name, _triple(source)) for name, source in recipe.sources],
            {context: _count(tally) for context, tally in tallies.by_context.items()},
        )
        for recipe, tallies in habits.recipes.items()
    ]
    return _Habits(recipes, {name: _render_argument(argument) for name, argument in habits.arguments.items()})


def _render_argument(argument: Argument) -> _Argument:
    return _Argument(
        [(_triple(source), count) for source, count in argument.sources.items()],
        {mark: (seen.num_runs, seen.last_run) for mark, seen in argument.constants.by_mark.items()},
    )


def _parse_habits(tool: str, habits: _Habits) -> Habits:
    recipes = {
        Recipe(tool, tuple((name, _parse_source(source)) for name, source in recipe.sources)): Tallies(
            {context: Tally(*count) for context, count in recipe.tallies.items()}
        )
        for recipe in habits.recipes
    }
    return Habits(tool, recipes, {name: _parse_argument(argument) for name, argument in habits.arguments.items()})


def _parse_argument(argument: _Argument) -> Argument:
    seen = {mark: Seen(*counts) for mark, counts in argument.constants.items()}
    return Argument({_parse_source(source): count for source, count in argument.sources}, Constants(seen))


def _parse_source(triple: _Source) -> Source:
    source = Source(*triple)
    if source.kind == "constant":
        json.loads(source.what)  # what is followed later has to be JSON
    return source


def _triple(source: Source) -> _Source:
    return source.kind, source.where, source.what


def _count(tally: Tally) -> _Tally:
    return round(tally.hits, 4), round(tally.tries, 4)
