"""What reads files and streams of others: valid ones to begin with, and what may come of a nearly valid one.

A target makes input number so and so from its samples and reads it. It raises what its reader documents, or nothing;
all else is a finding.
"""

import gzip
import json
import random
from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path
from typing import ClassVar

from tests.agent.wire import streams
from tests.chat.calling_templates import _TURNS
from tests.fuzz.mutate import cut_up, mutate, mutate_json
from tests.models.tiny import tiny_spec, tiny_weights, write_folder, write_gguf

from hotloop.agent.model import Ask
from hotloop.agent.tape import AnswerLine, Tape, TapeWriter, parse_event, read_tape
from hotloop.bench.workload import read_jobs
from hotloop.core.errors import ConfigError, HotloopError, ModelError, RemoteError, RequestError
from hotloop.core.message import Message, Tool, ToolCall
from hotloop.core.stream import CallClosed, CallDelta, CallOpened, TextDelta
from hotloop.engine.offload.disk.folder import KEY_BYTES, Folder
from hotloop.lint.requests import read_requests, read_spans
from hotloop.models.model import read_model
from hotloop.models.template import ChatTemplate
from hotloop.router.simulation.trace import read_trace
from hotloop.trace import names
from hotloop.trace.ledger import build_ledger
from hotloop.trace.perfetto import render_perfetto
from hotloop.trace.runs import TraceStore
from hotloop.trace.span import Span, parse_lines, render_line
from hotloop.trace.store import add_spans
from hotloop.wire.chat.reader import ChatReader
from hotloop.wire.event import Ended
from hotloop.wire.messages.reader import MessagesReader
from hotloop.wire.responses.reader import ResponsesReader
from hotloop.wire.sse import EventReader, ServerEvent

TEXT = "The quick brown fox <|im_end|> jumps — 12345 żółw \U0001f40c\n\n"
SPEC = tiny_spec("llama", num_layers=1, hidden_size=8, num_heads=2, num_kv_heads=1, head_dim=4, intermediate_size=8)


class Target(ABC):
    errors: ClassVar[tuple[type[Exception], ...]]  # that are documented

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    @abstractmethod
    def read(self, rng: random.Random) -> None:
        """Make an input of these random numbers, and read it."""


class Gguf(Target):
    errors = (ModelError, RequestError)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        rope = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0, "numbers": [1, 2, 3]}
        self._whole = write_gguf(folder / "whole.gguf", SPEC, tiny_weights(SPEC), rope).read_bytes()
        self._path = folder / "changed.gguf"

    def read(self, rng: random.Random) -> None:
        self._path.write_bytes(mutate(self._whole, rng))
        _use(self._path, rng)


class HfFolder(Target):
    """config.json, tokenizer.json and the rest of a folder, one of them changed."""

    errors = (ModelError, RequestError)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._path = write_folder(folder / "model", SPEC, tiny_weights(SPEC))
        index = {"weight_map": dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), "model.safetensors")}
        self._files = {path.name: path.read_bytes() for path in self._path.iterdir()}
        self._extra = {"model.safetensors.index.json": json.dumps(index).encode()}

    def read(self, rng: random.Random) -> None:
        name = self._choose(rng)
        path = self._path / name
        path.write_bytes(self._change((self._files | self._extra)[name], rng))
        try:
            _use(self._path, rng)
        finally:
            if name in self._extra:
                path.unlink()
            else:
                path.write_bytes(self._files[name])

    def _choose(self, rng: random.Random) -> str:
        return rng.choice(("config.json", "config.json", "tokenizer_config.json", *self._extra))

    def _change(self, data: bytes, rng: random.Random) -> bytes:
        return mutate_json(data, rng)


class TokenizerJson(HfFolder):
    def _choose(self, rng: random.Random) -> str:
        return "tokenizer.json"


class Safetensors(HfFolder):
    """The header is JSON behind its length."""

    def _choose(self, rng: random.Random) -> str:
        return "model.safetensors"

    def _change(self, data: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.4:
            return mutate(data, rng)
        end = 8 + int.from_bytes(data[:8], "little")
        header = mutate_json(data[8:end], rng)
        return len(header).to_bytes(8, "little") + header + data[end:]


def _use(path: Path, rng: random.Random) -> None:
    """All that serving a model does before its first step."""
    model = read_model("fuzzed", path)
    for layer in ("embed", "layers.0.q", "layers.0.down"):
        model.weights.read(layer)
    ids = model.tokenizer.encode(TEXT * rng.choice((1, 40)))
    model.tokenizer.decode(ids, keep_special=True)
    for token_id in range(-1, min(model.tokenizer.vocab_size, 400)):
        model.tokenizer.token_text(token_id)
    if model.template:
        model.template.render([Message("user", "hi")])


class Template(Target):
    errors = (ModelError, RequestError)
    TEMPLATES = (
        _TURNS.encode(),
        b"{% for m in messages %}{{ m.role ~ m.content }}{% if loop.last %}{{ eos_token }}{% endif %}{% endfor %}",
        b"{% set ns = namespace(x=0) %}{% for i in range(9) %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x|tojson }}",
        b"{{ messages|map(attribute='content')|join(' ')|upper }}{{ (messages|length * 'ab')[::-1] }}{{ 'a' * 99 }}",
        b"{% macro f(x) %}{{ f(x - 1) if x else '' }}{% endmacro %}{{ f(3) }}{{ raise_exception('no') if tools }}",
    )
    ATOMS = ("messages", "tools", "bos_token", "7", "10**9", "-1", "'ab'", "''", "none", "[1, [2]]", "{'a': 1}", "loop")
    FORMS = (
        "({} * {})", "({} ~ {})", "({} + {})", "({} == {})", "({} in {})", "({} % {})", "{}[{}]", "{}[:{}]", "{}({})",
        "({} ** {})", "range({}, {})", "{}|replace({}, 'abc')", "{}|join({})", "dict(a={}, b={})", "[{}, {}]",
        "{}|batch({})", "{}|indent({})", "{}.format({})", "({} if {} else 1)", "{}|sort|sum(start={})",
        "{}.__class__[{}]",
        "{}|groupby({})", "{}|map('upper')|list|slice({})", "{}|tojson(indent={})", "{}|attr({})", "{}|truncate({})",
        "cycler({}, {})", "namespace(a={}, b={}).a", "{}.items()|list|random[{}]", "{}.split({})", "'%*d' % ({}, {})",
    )  # fmt: skip
    TOOL = Tool("f", "Does this.", {"type": "object", "properties": {"a": {"type": "integer"}}})
    CALL = Message("assistant", "", tool_calls=(ToolCall("1", "f", '{"a": 1}'),))

    def read(self, rng: random.Random) -> None:
        source = mutate(rng.choice(self.TEMPLATES), rng, self.TEMPLATES).decode("utf-8", "replace")
        if rng.random() < 0.6:
            value = self._expression(rng, rng.randint(1, 5))
            source = rng.choice(
                (f"{{{{ {value} }}}}", f"{{% for x in {value} %}}{{{{ loop.index ~ x }}}}{{% endfor %}}")
            )
        template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
        said = (Message("user", "hi"), self.CALL, Message("tool", "3", tool_call_id="1"))
        template.render(said[: rng.randint(0, 3)], tools=(self.TOOL,) * rng.randint(0, 1))

    def _expression(self, rng: random.Random, depth: int) -> str:
        if not depth:
            return rng.choice(self.ATOMS)
        return rng.choice(self.FORMS).format(*(self._expression(rng, rng.randrange(depth)) for _ in range(2)))


class Sse(Target):
    """A stream of each API, cut anywhere; what is heard must not depend on where."""

    errors = (RemoteError,)
    STREAMS = (
        (ChatReader, (streams.OPENAI_CALLS, streams.OPENAI_TEXT)),
        (MessagesReader, (streams.ANTHROPIC_CALLS, streams.ANTHROPIC_TEXT)),
        (ResponsesReader, (streams.RESPONSES_CALLS, streams.RESPONSES_TEXT)),
    )

    def read(self, rng: random.Random) -> None:
        kind, samples = rng.choice(self.STREAMS)
        sample = rng.choice(samples)
        data = mutate(sample, rng, samples) if rng.random() < 0.5 else _mutate_events(sample, rng)
        events = _hear([data])
        assert events == _hear(cut_up(data, rng)), "what is heard depends on where the stream was cut"
        reader, heard = kind(), []
        try:
            for event in events:
                heard += reader.push(event)
            heard += reader.finish()
        finally:
            num_ended = sum(isinstance(event, Ended) for event in heard)
            assert num_ended <= 1, "an answer ended twice"
        assert num_ended == 1, "an answer neither ended nor failed"
        whole = rng.choice(events).data
        [*kind().whole(mutate_json(whole, rng) if whole.startswith(b"{") else whole)]


def _hear(pieces: list[bytes]) -> list[ServerEvent]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.push(piece)] + [*reader.finish()]


def _mutate_events(data: bytes, rng: random.Random) -> bytes:
    """One of the events has another value, or is said again elsewhere."""
    events = data.split(b"\n\n")
    i = rng.randrange(len(events))
    head, _, body = events[i].partition(b"data: ")
    if body.startswith(b"{") and rng.random() < 0.8:
        events[i] = head + b"data: " + mutate_json(body, rng)
    else:
        events.insert(rng.randrange(len(events)), events[i])
    return b"\n\n".join(events)


def _spans() -> list[Span]:
    def span(number: int, name: str, parent: str | None, **attributes: object) -> Span:
        begin = 1_700_000_000_000_000_000 + number * 1_000_000
        return Span(
            trace_id="a" * 32,
            span_id=f"{number:016x}",
            parent_id=parent,
            name=name,
            service="agent",
            start_ns=begin,
            end_ns=begin + 9_000_000,
            session="s",
            attributes=attributes,
        )

    request = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    counts = {names.NUM_PROMPT: 9, names.NUM_CACHED: 3, names.NUM_OUTPUT: 2, names.MODEL: "m"}
    return [
        span(1, names.RUN, None, **{names.AGENT: "a", names.END: "answered", names.MONEY: 0.1}),
        span(2, names.TURN, f"{1:016x}"),
        span(3, names.CHAT, f"{2:016x}", **counts, **{names.CONTENT_REQUEST: request}),
        span(4, names.REQUEST, f"{3:016x}", **counts),
    ]


class Spans(Target):
    """A file of spans, read, put into a store, and told of."""

    errors = (ConfigError,)

    def read(self, rng: random.Random) -> None:
        lines = [render_line(span) for span in _spans()]
        i = rng.randrange(len(lines))
        lines[i] = mutate_json(lines[i], rng).replace(b"\n", b"") + b"\n"
        spans = [*parse_lines(lines)]
        path = self.folder / "spans.db"
        path.unlink(missing_ok=True)
        add_spans(path, spans)
        _tell(path)


class Store(Target):
    """A store that is damaged somewhere."""

    errors = (ConfigError,)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        path = folder / "whole.db"
        add_spans(path, _spans())
        self._whole = path.read_bytes()

    def read(self, rng: random.Random) -> None:
        path = self.folder / "store.db"
        for each in self.folder.glob("store.db*"):
            each.unlink()
        data = mutate(self._whole, rng)
        if rng.random() < 0.5:  # where the rows are
            at = rng.choice([i for i in range(len(data)) if data[i]] or [0])
            data = data[:at] + mutate(data[at : at + 64], rng) + data[at + 64 :]
        path.write_bytes(data)
        _tell(path)
        add_spans(path, _spans())


def _tell(path: Path) -> None:
    with TraceStore(path) as store:
        for run in store.runs():
            spans = store.spans(run.trace_id)
            build_ledger(spans)
            render_perfetto(spans)
            [*read_spans(spans)]


class Tapes(Target):
    errors = (HotloopError,)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        path = folder / "whole.jsonl"
        said = [TextDelta("Hm."), CallOpened(0, "1", "f"), CallDelta(0, "{}"), CallClosed(0), Ended("calls")]
        writer = TapeWriter(path)
        writer.write_answer(self._ask(), [(i / 7, event) for i, event in enumerate(said)], None)
        self._lines = path.read_bytes().splitlines()
        self._path = folder / "changed.jsonl"

    def read(self, rng: random.Random) -> None:
        lines = [*self._lines]
        i = rng.randrange(len(lines))
        lines[i] = mutate_json(lines[i], rng)
        data = b"\n".join(lines)
        self._path.write_bytes(data if rng.random() < 0.7 else mutate(data, rng))
        for line in read_tape(self._path):
            for event in line.events if isinstance(line, AnswerLine) else ():
                parse_event(event)
        Tape(self._path).answer(self._ask())

    def _ask(self) -> Ask:
        return streams.ASK


class Lines(Target):
    """Files of requests, transcripts and traces to be simulated, plain or compressed."""

    errors = (ConfigError,)
    CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}  # noqa: RUF012
    TALK = [  # noqa: RUF012
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
        {"role": "assistant", "content": "Done."},
    ]
    SAMPLES = (
        (read_requests, {"model": "m", "messages": TALK, "tools": [{"type": "function", "function": {"name": "f"}}]}),
        (read_requests, {"system": "Be kind.", "messages": TALK, "tools": []}),
        (read_requests, {"request": {"model": "m", "input": "hi", "instructions": "x"}, "at": 1.5, "session": "s"}),
        (read_requests, {"body": {"model": "m", "max_tokens": 9, "system": [{"type": "text", "text": "x"}],
                                  "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}}),
        (read_trace, {"block_size": 16, "requests": [{"in": 40, "out": 3, "hash_ids_rle": [[0, 2]], "stop": "x"}]}),
        (read_trace, {"timestamp": 1, "input_length": 900, "output_length": 3, "hash_ids": [1, 2, 5]}),
        (read_jobs, {"system": "Be kind.", "tools": [], "messages": TALK}),
    )  # fmt: skip

    def read(self, rng: random.Random) -> None:
        reader, row = rng.choice(self.SAMPLES)
        data = json.dumps(row).encode() + b"\n" + mutate_json(json.dumps(row).encode(), rng) + b"\n"
        path = self.folder / "lines.jsonl"
        if rng.random() < 0.2:
            path = self.folder / "lines.jsonl.gz"
            data = mutate(gzip.compress(data, mtime=0), rng)
        path.write_bytes(data)
        if reader is read_jobs:
            read_jobs(path, max_jobs=2, max_turns=2, max_output=9, max_chars=10_000)
            return
        found = reader(path)
        for each in found if reader is read_requests else ():
            assert each.parts is not None
            assert each.continued is not None


class KvSegments(Target):
    """A segment of KV is what was written, or is not had."""

    errors = (ValueError, OSError)

    def read(self, rng: random.Random) -> None:
        folder, key, data = Folder(self.folder), bytes(KEY_BYTES), b"0123456789" * 9
        folder.write(key, memoryview(data), 1.0)
        path = Path(folder._path(key))
        path.write_bytes(mutate(path.read_bytes(), rng))
        assert folder.read(key, len(data)) == data
        folder.list()


TARGETS: dict[str, type[Target]] = {
    "gguf": Gguf,
    "folder": HfFolder,
    "safetensors": Safetensors,
    "tokenizer": TokenizerJson,
    "template": Template,
    "sse": Sse,
    "spans": Spans,
    "store": Store,
    "tapes": Tapes,
    "lines": Lines,
    "segments": KvSegments,
}


@cache
def make_target(name: str, folder: Path) -> Target:
    return TARGETS[name](folder / name)
