"""`hotloop models`, `hotloop pull`, `hotloop rm` and `hotloop version`: models and versions."""

import platform
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.types import NonNegativeFloat, PositiveInt
from rich.console import Group
from rich.filesize import decimal
from rich.table import Table

from hotloop.cli.command_line import CommandLine
from hotloop.cli.loading import pull_model
from hotloop.cli.output import console, make_table, show
from hotloop.cli.settings import JsonOutput
from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.version import __version__

if TYPE_CHECKING:
    from hotloop.models.catalogue import Entry
    from hotloop.models.model import Model
    from hotloop.size.picks import Choice

models = CommandLine(
    name="models", help="List the models that can be loaded by name; show one; find one for this machine."
)

ModelName = Annotated[
    str,
    Parameter(
        help="A name `hotloop models` lists, a hub id such as Qwen/Qwen3-4B, a GGUF file, or a Hugging Face folder."
    ),
]
_GIB = 1 << 30


@models.default
def ls(*, as_json: JsonOutput = False) -> None:
    """List the models that can be loaded by name."""
    from hotloop.models.catalogue import list_models

    entries = list_models()
    titles = ("NAME", "FAMILY", "CONTEXT", "SIZE", "WHERE")
    table = make_table(*titles, words=("NAME", "FAMILY", "WHERE"), folds=True)
    for entry in entries:
        where = str(entry.path) if entry.is_pulled else f"not here yet: hotloop pull {entry.name}"
        table.add_row(entry.name, entry.family, f"{entry.max_context:,}", decimal(entry.size_bytes), where)
    show([_describe(entry) for entry in entries], table, as_json)


@models.command(name="show")
def show_model(model: ModelName = DEFAULT_MODEL, /, *, as_json: JsonOutput = False) -> None:
    """Show a model's family, precision, size, context, tool-call format and reasoning format."""
    from hotloop.chat.formats import choose_format
    from hotloop.chat.reasoning import choose_reasoning
    from hotloop.models.layout import tensor_places
    from hotloop.models.model import load_model

    loaded = load_model(model)
    reasoning = choose_reasoning(loaded.template, loaded.tokenizer)
    values: dict[str, Any] = {
        "name": loaded.name,
        "path": str(loaded.path),
        "kind": "huggingface" if loaded.path.is_dir() else "gguf",
        "family": loaded.spec.family,
        "num_parameters": loaded.spec.num_weights or sum(prod(place.shape) for place in tensor_places(loaded.spec)),
        "precision": _precision(loaded),
        "size_bytes": loaded.size_bytes,
        "max_context": loaded.spec.max_context,
        "has_chat_template": loaded.template is not None,
        "tool_format": choose_format(loaded.template, loaded.tokenizer).name,
        "thinking_format": reasoning.name if reasoning else None,
        "thinking_opened_by": reasoning and ("template" if reasoning.is_opened_by_template else "model"),
        "notes": list(loaded.notes),
    }
    show(values, "\n".join(f"{name:12}{text}" for name, text in _words(values).items()), as_json)


@models.command
def recommend(
    *,
    gpu: str = "this",
    sessions: PositiveInt = 4,
    context: PositiveInt = 8192,
    min_speed: NonNegativeFloat = 10.0,
    as_json: JsonOutput = False,
) -> None:
    """List recommended models that fit this machine, and mark the strongest that meets --min-speed.

    Parameters
    ----------
    gpu
        A GPU that `hotloop size` knows, such as h100, instead of this machine, which takes some seconds to measure.
    sessions
        Concurrent agents.
    context
        Prompt tokens per turn.
    min_speed
        Minimum tokens/s per agent.
    """
    from hotloop.size.hardware import find_gpu
    from hotloop.size.load import Load
    from hotloop.size.machine import measure_machine
    from hotloop.size.picks import best, choose

    if gpu == "this":
        with console.status("measuring this machine ..."):
            hardware = measure_machine()
    else:
        hardware = find_gpu(gpu)
    choices = choose(hardware, Load(sessions=sessions, context=context))
    winner = best(choices, min_speed)
    memory = f"{hardware.name}, {hardware.memory_bytes / _GIB:.1f} GiB: {sessions} sessions of {context:,} tokens\n"
    if winner:
        verdict = f"> is the strongest with {min_speed:g} tokens/s per agent: {winner.command}"
    elif choices:
        verdict = f"no model reaches {min_speed:g} tokens/s per agent; try fewer --sessions or a lower --min-speed"
    else:
        verdict = f"no recommended model fits in memory; try {DEFAULT_MODEL}"
    shown = Group(memory, _choices_table(choices, winner), f"\n{verdict}\nestimates: see docs/models.md")
    show([_as_json(each, each is winner) for each in choices], shown, as_json)


def pull(model: ModelName = DEFAULT_MODEL, /, *, as_json: JsonOutput = False) -> None:
    """Download a model, or register a local one under its name.

    From a hub: org/name, org/name@revision, or org/name:Q4_K_M for one of many GGUF files.
    """
    entry = pull_model(model)
    show(_describe(entry), f"{entry.name} is at {entry.path}", as_json)


def rm(
    model: Annotated[str, Parameter(help="A name `hotloop models` lists.")], /, *, as_json: JsonOutput = False
) -> None:
    """Remove a model and its downloaded files. Your own files are not deleted."""
    from hotloop.models.model import remove

    entry, freed_bytes = remove(model)
    kept = f"; {entry.path} stays" if entry.is_pulled else ""
    line = f"{entry.name} is removed, {decimal(freed_bytes)} are free again{kept}"
    show({"name": entry.name, "freed_bytes": freed_bytes}, line, as_json)


def version(*, as_json: JsonOutput = False) -> None:
    """Print the versions of hotloop, Python and, where it is installed, PyTorch."""
    from importlib.metadata import distributions

    found = {each.name: each.version for each in distributions() if each.name == "torch"}
    versions = {"hotloop": __version__, "python": platform.python_version(), **found}
    show(versions, "\n".join(f"{name:9}{number}" for name, number in versions.items()), as_json)


def _describe(entry: "Entry") -> dict[str, Any]:
    names = ("name", "kind", "family", "max_context", "size_bytes", "is_pulled", "commit")
    return {name: getattr(entry, name) for name in names} | {"path": str(entry.path)}


def _precision(model: "Model") -> dict[str, float]:
    """What share of the weights is stored as what; but for those that a GGUF file may hold in another order, which
    would be read to be put right.
    """
    from hotloop.models.layout import tensor_places
    from hotloop.models.modeling import PublishedTensors

    counts: dict[str, int] = {}
    if isinstance(model.weights, PublishedTensors):
        for tensor in model.weights.located.values():
            counts[tensor.kind] = counts.get(tensor.kind, 0) + prod(tensor.shape)
    for place in () if counts else tensor_places(model.spec):
        if len(place.shape) < 2 or place.name.endswith((".q", ".k")):
            continue
        kind = model.weights.stored(place.name).kind
        counts[kind] = counts.get(kind, 0) + prod(place.shape)
    total = sum(counts.values())
    return {kind: round(num / total, 3) for kind, num in sorted(counts.items(), key=lambda item: -item[1])}


def _words(values: dict[str, Any]) -> dict[str, str]:
    thinking = values["thinking_format"]
    has_template = "a chat template" if values["has_chat_template"] else "no chat template"
    shares = ", ".join(f"{kind} {share:.0%}" for kind, share in values["precision"].items())
    return {
        "name": values["name"],
        "where": values["path"],
        "family": f"{values['family']}, {values['num_parameters'] / 1e9:.2f} billion parameters",
        "precision": shares,
        "size": decimal(values["size_bytes"]),
        "context": f"{values['max_context']:,} tokens",
        "tool calls": f"{values['tool_format']} ({has_template})",
        "thinking": f"{thinking} (opened by the {values['thinking_opened_by']})" if thinking else "none recognised",
    } | ({"note": "; ".join(values["notes"])} if values["notes"] else {})


def _choices_table(choices: "list[Choice]", winner: "Choice | None") -> Table:
    titles = ("MODEL", "WEIGHTS", "GIB", "TOK/S", "GOOD FOR")
    table = make_table(*titles, words=("MODEL", "WEIGHTS", "GOOD FOR"))
    for each in choices:
        assert each.estimate.latency
        mark = "> " if each is winner else "  "
        rate = f"{each.estimate.latency.tokens_s_user:,.1f}"
        gib = f"{each.needed_bytes / _GIB:.1f}"
        table.add_row(mark + each.pick.model, each.weights, gib, rate, each.pick.good_for)
    return table


def _as_json(choice: "Choice", is_best: bool) -> dict[str, Any]:
    assert choice.estimate.latency
    return {
        "model": choice.pick.model,
        "weights": choice.weights,
        "needed_bytes": choice.needed_bytes,
        "tokens_s_user": choice.estimate.latency.tokens_s_user,
        "good_for": choice.pick.good_for,
        "command": choice.command,
        "is_best": is_best,
    }
