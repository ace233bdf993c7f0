"""Would the tests notice? One operator at a time is changed in the modules that own invariants, and their tests run.

Comparisons, arithmetic, `and`, `or` and `not`, each as its opposite or its neighbour; asserts are left alone. A mutant
is killed when a test fails or hangs. Each worker changes a copy of the tree, never the tree itself. Results are kept in
a file, so that a run that was stopped goes on where it was; without the file it begins anew.
"""

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import cache_from_source
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

from benchmarks.command import main
from cyclopts.types import PositiveFloat, PositiveInt

from hotloop.cli.output import console

Verdict = Literal["killed", "hung", "survived"]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / ".mutants.jsonl"
TIMEOUT_S = 900.0
TEST_TIMEOUT_S = 60
MIN_SHARE = 0.95
_CHECKS = ("check", "check_node", "_check_users")
_COPIED = ("src", "tests", "benchmarks", "docs", "pyproject.toml", "README.md")


def _engine(*names: str) -> list[str]:
    return [f"tests/engine/{folder}/test_{name}.py" for folder, name in (each.split("/") for each in names)]


def _kvcache(*names: str) -> list[str]:
    return [f"tests/engine/kvcache/test_{name}.py" for name in names]


_SCHEDULER = _engine(
    "scheduler/scheduler_steps", "scheduler/scheduler_memory", "scheduler/prompt_order", "scheduler/scheduler"
)
_DRAFTING = [f"tests/engine/drafting/test_{name}.py" for name in ("worth", "payoff", "speculation")]
_PLACEMENT = [f"tests/router/placement/test_{name}.py" for name in ("policy", "index", "placement", "handover")]
TESTS: Mapping[str, list[str]] = {
    "engine/kvcache/blocks.py": _kvcache("blocks", "radix"),
    "engine/kvcache/node.py": _kvcache("radix", "recurrent_places", "radix_host", "recurrent"),
    "engine/kvcache/eviction.py": _kvcache("retention", "radix", "radix_host"),
    "engine/kvcache/retention.py": _kvcache("retention", "radix", "radix_host"),
    "engine/kvcache/radix.py": _kvcache("radix", "radix_host", "retention", "recurrent_host", "recurrent"),
    "engine/kvcache/recurrent.py": _kvcache("recurrent_places", "recurrent_host", "recurrent")
    + _engine("scheduler/scheduler"),
    "engine/scheduler/fairness.py": _engine("scheduler/fairness", "scheduler/scheduler"),
    "engine/sessions/admission.py": _engine("sessions/admission", "scheduler/scheduler_memory", "scheduler/scheduler"),
    "engine/kvcache/full_attention.py": [*_SCHEDULER, *_kvcache("recurrent_host")],
    "engine/scheduler/scheduler.py": _SCHEDULER,
    "engine/drafting/payoff.py": _DRAFTING,
    "engine/drafting/speculation.py": _DRAFTING,
    "router/placement/index.py": _PLACEMENT[1::-1],
    "router/placement/placement.py": _PLACEMENT,
    "chat/assembly/splice.py": ["tests/chat/assembly/test_splice.py", "tests/core/test_lru.py"],
    "trace/ledger.py": ["tests/trace/test_ledger.py", "tests/trace/test_ledger_givers.py"],
    "agent/tools/dispatch.py": [
        f"tests/agent/{name}.py"
        for name in ("tools/test_dispatch", "tools/test_crash", "tools/test_results", "test_run")
    ],
}
_SHARED_AGAIN = "whole blocks that are shared already are shared once more, which does nothing"
_AS_LONG_AS_BEFORE = "a step that took as long as was known teaches nothing, whatever its share"
_NO_PLACE_AHEAD = "one that is past its prompt is compared for nothing: no place in it lies ahead"
EQUIVALENT: Mapping[str, str] = {
    "engine/scheduler/scheduler.py: request.num_settled // self.block_size > part.begin // self.block_size -> "
    "request.num_settled // self.block_size >= part.begin // self.block_size": _SHARED_AGAIN,
    "engine/scheduler/scheduler.py: request.num_settled // self.block_size -> request.num_settled * self.block_size": (
        _SHARED_AGAIN
    ),
    "engine/drafting/payoff.py: duration_s < before_s -> duration_s <= before_s": _AS_LONG_AS_BEFORE,
    "engine/scheduler/scheduler.py: room <= 0 -> room < 0": (
        "one that runs may adopt what is cached a step earlier; it computes nothing, for there is no room"
    ),
    "engine/scheduler/scheduler.py: len(request.block_ids) * self.block_size -> "
    "len(request.block_ids) // self.block_size (2)": "the long way comes to the same slice, in twice the time",
    "engine/scheduler/scheduler.py: num_settled > request.num_settled -> num_settled >= request.num_settled": (
        "it is set to what it is"
    ),
    "engine/kvcache/recurrent.py: run.request.num_computed < run.request.num_prompt - 1 -> "
    "run.request.num_computed <= run.request.num_prompt - 1": _NO_PLACE_AHEAD,
    "engine/kvcache/recurrent.py: run.request.num_prompt - 1 -> run.request.num_prompt + 1": _NO_PLACE_AHEAD,
}
"""Mutants that change nothing anybody could see, by name, and why."""

_COMPARED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTED: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed expression. Its name says where and what, and outlives changes elsewhere in the file."""

    path: str
    line: int
    name: str
    source: str
    digest: str


def find_mutants(path: str, source: str) -> Iterator[Mutant]:
    begins = [0, *accumulate(len(line.encode()) for line in source.splitlines(keepends=True))]
    data, names = source.encode(), Counter[str]()
    for node in _expressions(ast.parse(source)):
        begin = begins[node.lineno - 1] + node.col_offset
        end = begins[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        before = ast.unparse(node)
        for after in _changed(node):
            changed = (data[:begin] + f"({after})".encode() + data[end:]).decode()
            name = f"{path}: {before} -> {after}"
            names[name] += 1
            name += f" ({names[name]})" * (names[name] > 1)
            digest = hashlib.sha256(changed.encode()).hexdigest()[:16]
            yield Mutant(path, node.lineno, name, changed, digest)


def _expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """All but those of asserts, of checks, which are asserts, and of types and words."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Assert | ast.JoinedStr) or getattr(child, "name", "") in _CHECKS:
            continue
        if isinstance(child, ast.expr):
            yield child
        yield from _expressions(child)


def _changed(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare(left, ops, comparators):
            for i, op in enumerate(ops):
                others = [*ops[:i], _COMPARED[type(op)](), *ops[i + 1 :]]
                yield ast.unparse(ast.Compare(left, others, comparators))
        case ast.BoolOp(op, values):
            yield ast.unparse(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))
        case ast.BinOp(left, op, right) if type(op) in _COMPUTED:
            yield ast.unparse(ast.BinOp(left, _COMPUTED[type(op)](), right))
        case ast.UnaryOp(ast.Not(), operand):
            yield ast.unparse(operand)


def choose_mutants(count: int, seed: int) -> list[Mutant]:
    """So many of all, as the digests of their names have it: hardly others when a line is added somewhere."""
    sources = {path: (ROOT / "src" / "hotloop" / path).read_text("utf-8") for path in TESTS}
    found = [mutant for path, source in sources.items() for mutant in find_mutants(path, source)]
    return sorted(found, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.name}".encode()).digest())[:count]


class Trials:
    """Copies of the tree, in which mutants are tried."""

    def __init__(self, folder: Path, num_workers: int) -> None:
        self._copies: SimpleQueue[Path] = SimpleQueue()
        for i in range(num_workers):
            for name in _COPIED:
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
                (folder / str(i)).mkdir(exist_ok=True)
                copy(ROOT / name, folder / str(i) / name)
            self._copies.put(folder / str(i))

    def run(self, mutant: Mutant) -> Verdict:
        copy = self._copies.get()
        path = copy / "src" / "hotloop" / mutant.path
        original = path.read_text("utf-8")
        _write(path, mutant.source)
        try:
            return run_tests(copy, TESTS[mutant.path])
        finally:
            _write(path, original)
            self._copies.put(copy)

    def run_unharmed(self) -> Verdict:
        """All tests, nothing changed."""
        copy = self._copies.get()
        try:
            return run_tests(copy, sorted({path for tests in TESTS.values() for path in tests}))
        finally:
            self._copies.put(copy)


def _write(path: Path, source: str) -> None:
    """Without the bytecode, which is told apart by size and second only."""
    path.write_text(source, "utf-8")
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def run_tests(copy: Path, tests: list[str]) -> Verdict:
    # Which example fails is of no interest here, let alone the smallest.
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not long", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = os.environ | {"PYTHONPATH": str(copy / "src")}
    with subprocess.Popen(
        [*command, "--hypothesis-profile=mutants", f"-ofaulthandler_timeout={TEST_TIMEOUT_S}", *tests],
        cwd=copy,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return "killed" if process.wait(TIMEOUT_S) else "survived"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return "hung"


def read_results() -> dict[str, Verdict]:
    if not RESULTS.exists():
        return {}
    return {result["digest"]: result["verdict"] for result in map(json.loads, RESULTS.read_text("utf-8").splitlines())}


def mutants(
    *,
    count: PositiveInt = 200,
    seed: int = 0,
    jobs: PositiveInt = 2,
    minutes: PositiveFloat = 120.0,
    again: bool = False,
) -> int:
    """Change an operator at a time and run the tests that should notice. Fails if fewer than 95% are noticed.

    Parameters
    ----------
    count
        How many changes are tried.
    seed
        Which of all there are.
    jobs
        How many at a time.
    minutes
        After how long no more are begun; the next run goes on from there.
    again
        Try those again that nobody noticed.
    """
    chosen, known = choose_mutants(count, seed), read_results()
    if again:
        known = {digest: verdict for digest, verdict in known.items() if verdict != "survived"}
    todo = [each for each in chosen if each.digest not in known and each.name not in EQUIVALENT]
    until = time.monotonic() + minutes * 60
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        trials = Trials(Path(folder), jobs)

        def attempt(mutant: Mutant) -> None:
            if time.monotonic() > until:
                return
            verdict = known[mutant.digest] = trials.run(mutant)
            with RESULTS.open("a", encoding="utf-8") as file:
                line = {key: value for key, value in asdict(mutant).items() if key != "source"}
                file.write(json.dumps({**line, "verdict": verdict}) + "\n")
            if verdict == "survived":
                console.print(f"survived: line {mutant.line} of {mutant.name}", markup=False)

        unharmed = pool.submit(trials.run_unharmed)
        list(pool.map(attempt, todo))
        if unharmed.result() != "survived":
            console.print("the tests fail without any change: what is told of mutants means nothing")
            return 2
    return _tell(chosen, known)


def _tell(chosen: list[Mutant], known: Mapping[str, Verdict]) -> int:
    tried = [mutant for mutant in chosen if mutant.digest in known and mutant.name not in EQUIVALENT]
    verdicts = Counter(known[mutant.digest] for mutant in tried)
    num_equivalent = sum(mutant.name in EQUIVALENT for mutant in chosen)
    share = 1 - verdicts["survived"] / max(1, len(tried))
    for mutant in tried:
        if known[mutant.digest] == "survived":
            console.print(f"nobody notices, at line {mutant.line} of {mutant.name}", markup=False)
    counts = f"{verdicts['killed']} killed, {verdicts['hung']} hung, {verdicts['survived']} survived"
    left = len(chosen) - len(tried) - num_equivalent
    console.print(f"{len(tried)} tried: {counts} ({share:.1%} noticed); {num_equivalent} equivalent, {left} left")
    return 0 if share >= MIN_SHARE and not left else 1


if __name__ == "__main__":
    main(mutants, "tests")
