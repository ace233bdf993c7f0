"""Does the matcher say what a schema says? Real schemas and the official test suite, with instances known to be valid
or not: `python -m benchmarks.schemas maskbench FILE.jsonl.gz`, or `suite FOLDER` for the suite's JSON files.

A schema is refused by name, or else every valid instance is accepted and every invalid one is not. The grammar fixes
the order of properties and the spelling of numbers, so an instance counts as accepted if *some* order of its properties
is; how many are as they came, and in the tokens the model itself would write, is counted beside.
"""

import argparse
import gzip
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]

from benchmarks.vocabularies import byte_tokenizer
from hotloop.core.config import DEFAULT_MODEL
from hotloop.core.errors import RequestError
from hotloop.core.grammar import Grammar, json_schema
from hotloop.engine.grammar.matcher import Grammars, Matcher
from hotloop.models.model import load_model
from hotloop.models.tokenizer import Tokenizer

DRAFTS = {
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
MAX_TEXT = 1 << 30  # longer than any grammar: what it does not mention comes last
_BYTES = Tokenizer(byte_tokenizer())
MAX_ORDERS = 5000  # places looked at while searching for an order of properties


@dataclass(frozen=True, slots=True)
class Case:
    """A schema and what is known of it: instances, and whether each is valid."""

    name: str
    schema: Any
    instances: list[tuple[str, Any, bool]]
    has_formats: bool = True
    """Whether an instance that breaks a format counts as invalid; the suite has them as annotations, but for some."""


@dataclass(slots=True)
class Tally:
    """What came of all cases."""

    num_schemas: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    compile_s: list[float] = field(default_factory=list)
    mask_s: list[float] = field(default_factory=list)


def maskbench_cases(path: Path) -> Iterator[Case]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            instances = [(test.get("description", ""), test["data"], test["valid"]) for test in row["tests"]]
            yield Case(row["id"], row["schema"], instances)


def suite_cases(folder: Path) -> Iterator[Case]:
    """A schema that does not say its draft is of the one the folder is named after; else of draft 7."""
    draft = next((uri for name, uri in DRAFTS.items() if name in str(folder.resolve())), DRAFTS["draft7"])
    for path in sorted(folder.rglob("*.json")):
        for group in json.loads(path.read_text("utf-8")):
            name = f"{path.relative_to(folder).with_suffix('')}: {group['description']}"
            schema = group["schema"] if isinstance(group["schema"], bool) else {"$schema": draft} | group["schema"]
            instances = [(t["description"], t["data"], t["valid"]) for t in group["tests"]]
            yield Case(name, schema, instances, has_formats=path.parent.name == "format")


class Judge:
    """Compares a matcher's verdicts with what is known, letter by letter and in the model's own tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._words = Grammars(tokenizer, tokenizer.vocab_size)
        self._bytes = Grammars(_BYTES, 258)
        self._words.matcher(
            Grammar("regex", "x")
        )  # the vocabulary is prepared once, and not on the first schema's time
        self.tally = Tally()

    def judge(self, case: Case) -> None:
        self.tally.num_schemas += 1
        began_at = time.perf_counter()
        try:
            grammar = json_schema(case.schema)
            matcher = self._words.matcher(grammar)
        except RequestError as error:
            self.tally.refused[str(error)] += 1
            return
        self.tally.compile_s.append(time.perf_counter() - began_at)
        del matcher
        for description, instance, is_valid in case.instances:
            self._judge_instance(case, grammar, description, instance, is_valid)

    def _judge_instance(self, case: Case, grammar: Grammar, description: str, instance: Any, is_valid: bool) -> None:
        text = write_json(instance)
        is_plain = accepts_text(self._bytes.matcher(grammar), text)
        ordered = text if is_plain else OrderSearch(self._bytes.matcher(grammar), grammar.text).find(instance)
        if is_valid and ordered is None and not case.has_formats and self._follows_without_formats(case, text):
            self.tally.verdicts["valid since formats are annotations, refused"] += 1
            return
        kind = "valid" if is_valid else "invalid"
        if not is_valid and ordered is not None and is_valid_but_for_formats(case.schema, instance):
            self.tally.verdicts["invalid by a format or content alone, accepted"] += 1
            return
        self.tally.verdicts[f"{kind}, {'accepted' if ordered is not None else 'refused'}"] += 1
        if is_valid and ordered is not None:
            self.tally.verdicts["valid, accepted in the order it came in"] += is_plain
            self.tally.verdicts["valid, accepted as the model's own tokens"] += self._walk(grammar, ordered)
        if is_valid != (ordered is not None):
            self.tally.wrong.append(f"{kind}: {case.name}: {description}: {text[:200]}")

    def _follows_without_formats(self, case: Case, text: str) -> bool:
        """Whether nothing but a format, which hotloop keeps to, is why a text is refused."""
        return accepts_text(self._bytes.matcher(json_schema(without_formats(case.schema))), text)

    def _walk(self, grammar: Grammar, text: str) -> bool:
        """Whether the text's own tokens are allowed, one after another; each mask on the way is timed."""
        matcher = self._words.matcher(grammar)
        for token_id in self._tokenizer.encode(text):
            if not matcher.forced():
                began_at = time.perf_counter()
                matcher.mask()
                self.tally.mask_s.append(time.perf_counter() - began_at)
            if not matcher.advance(token_id):
                return False
        return matcher.is_complete


def without_formats(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_formats(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: without_formats(part) for key, part in schema.items() if key != "format"}


def is_valid_but_for_formats(schema: Any, instance: Any) -> bool:
    """Formats, and what a string encodes, are annotations unless a validator is told otherwise; this one is not."""
    return bool(jsonschema.validators.validator_for(schema)(schema).is_valid(instance))


def take(matcher: Matcher, text: str) -> int | None:
    """How many tokens a text took; None, and nothing is taken, if it was refused."""
    num_taken = 0
    for token_id in _BYTES.encode(text):
        if not matcher.advance(token_id):
            matcher.rollback(num_taken)
            return None
        num_taken += 1
    return num_taken


def accepts_text(matcher: Matcher, text: str) -> bool:
    return take(matcher, text) is not None and matcher.is_complete


class OrderSearch:
    """Writes an instance with its properties in an order that the matcher takes, if there is one. Those that the
    grammar's text mentions first are tried first, since most grammars want them in that order."""

    def __init__(self, matcher: Matcher, text: str = "") -> None:
        self._matcher = matcher
        self._text = text
        self._num_looked = 0

    def find(self, instance: Any) -> str | None:
        written: list[str] = []
        return "".join(written) if self._write([("value", instance)], written) else None

    def _write(self, todo: list[tuple[str, Any]], written: list[str]) -> bool:
        """Depth first: `todo` is what is still to be written, the next thing last."""
        if not todo:
            return self._matcher.is_complete
        *rest, (kind, thing) = todo
        if kind == "members":
            return self._write_member(rest, thing, written)
        if kind == "value" and isinstance(thing, dict):
            members = dict(thing)
            return self._write([*rest, ("text", "}"), ("members", (members, True)), ("text", "{")], written)
        if kind == "value" and isinstance(thing, list) and any(isinstance(item, dict | list) for item in thing):
            parts: list[tuple[str, Any]] = [("text", "]")]
            for item in reversed(thing):
                parts += [("value", item), ("text", ", ")]
            return self._write([*rest, *parts[:-1], ("text", "[")], written)
        text = thing if kind == "text" else write_json(thing)
        num_taken = take(self._matcher, text)
        if num_taken is None:
            return False
        written.append(text)
        if self._write(rest, written):
            return True
        written.pop()
        self._matcher.rollback(num_taken)
        return False

    def _write_member(
        self, rest: list[tuple[str, Any]], state: tuple[dict[str, Any], bool], written: list[str]
    ) -> bool:
        members, is_first = state
        if not members:
            return self._write(rest, written)
        for name in sorted(members, key=lambda name: self._text.find(json.dumps(name) + ":") % MAX_TEXT):
            value = members[name]
            self._num_looked += 1
            if self._num_looked > MAX_ORDERS:
                return False
            others = {key: other for key, other in members.items() if key != name}
            head = ("" if is_first else ", ") + write_json(name) + ": "
            if self._write([*rest, ("members", (others, False)), ("value", value), ("text", head)], written):
                return True
        return False


def write_json(value: Any) -> str:
    """As a model writes it: a number without an exponent, a whole one without a point."""
    match value:
        case bool() | None | str():
            return json.dumps(value, ensure_ascii=False)
        case float():
            return str(int(value)) if value == int(value) else format(Decimal(repr(value)), "f")
        case int():
            return str(value)
        case list():
            return f"[{', '.join(map(write_json, value))}]"
        case dict():
            return "{" + ", ".join(f"{write_json(key)}: {write_json(item)}" for key, item in value.items()) + "}"
    raise TypeError(type(value))


def report(tally: Tally) -> None:
    num_refused = tally.refused.total()
    print(f"{tally.num_schemas} schemas: {tally.num_schemas - num_refused} compiled, {num_refused} refused")
    for reason, count in tally.refused.most_common():
        print(f"  {count:5} {reason}")
    for verdict, count in sorted(tally.verdicts.items()):
        print(f"{count:7} {verdict}")
    print(f"compile {percentiles(tally.compile_s)}; mask {percentiles(tally.mask_s)} (of {len(tally.mask_s)})")
    print(f"{len(tally.wrong)} wrong verdicts")
    for line in tally.wrong:
        print(f"  {line}")


def percentiles(durations_s: Iterable[float]) -> str:
    ordered = sorted(durations_s) or [0.0]
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3 for share in (0.50, 0.99))
    return f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, most {ordered[-1] * 1e3:.2f} ms"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("maskbench", "suite"))
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    sys.setrecursionlimit(20_000)
    judge = Judge(load_model(DEFAULT_MODEL).tokenizer)
    for case in maskbench_cases(arguments.path) if arguments.kind == "maskbench" else suite_cases(arguments.path):
        judge.judge(case)
    report(judge.tally)
    return 1 if judge.tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
