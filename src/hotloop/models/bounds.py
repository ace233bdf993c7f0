"""The sandbox a chat template runs in: jinja2's own, with a budget.

Every round of a loop and every call spends a step; whatever text or list the template makes spends its length, and what
could be made huge in one go is refused before it is made. So a template ends, and its memory is bounded. Not bounded is
the time one comparison, search or sort of the large values it may hold takes. Knows nothing of chats.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from heapq import nlargest
from math import prod
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_STEPS = 1_000_000
MAX_CHARS = 128 << 20
MAX_BITS = 4096

_CALL_STEPS = 10  # a call takes about as long as so many rounds
_ITEM_CHARS = 8  # what one place in a list counts for
_FIELD_CHARS = 2000  # the most that a width and a precision of three digits give
_TOO_LONG = f"the template makes more than {MAX_CHARS} characters"
_JINJA_ARGUMENTS = frozenset({"_loop_vars", "_block_vars"})  # added to every call by the compiler
_REFUSED = {"batch", "encode", "expandtabs", "pprint", "round", "slice", "sum", "to_bytes", "translate", "urlize"}
_REFUSED |= {"wordwrap", "xmlattr"}
# Filters, and methods of strings, that make at most the product of the two longest things they are given.
_GROWING = {"center", "indent", "join", "ljust", "replace", "rjust", "zfill"}
_GROWING |= {"capitalize", "e", "escape", "forceescape", "lower", "string", "striptags", "title", "trim", "upper"}
_GROWING |= {"urlencode", "wordcount"}
_PLAIN_FIELDS = {
    "%": re.compile(r"%(?:\([^()]*\))?[-+ #0]*\d{0,3}(?:\.\d{0,3})?[diouxXeEfFgGcrsa%]"),
    "{": re.compile(r"\{\{|\}\}|\{[\w.]*(?:![rsa])?(?::(?:[^{}\d]|\d{1,3}(?!\d))*)?\}"),
}


@dataclass(slots=True)
class _Budget:
    num_steps: int = MAX_STEPS
    num_chars: int = MAX_CHARS


_budget: ContextVar[_Budget] = ContextVar("budget")


def start_budget() -> None:
    """Begin a rendering: what is spent from here on is spent by this one."""
    _budget.set(_Budget())


def spend_chars(count: int) -> None:
    """Account for text about to be made, or just made."""
    budget = _budget.get()
    budget.num_chars -= count
    if budget.num_chars < 0:
        raise SecurityError(_TOO_LONG)


def _spend_steps(count: int = 1) -> None:
    budget = _budget.get()
    budget.num_steps -= count
    if budget.num_steps < 0:
        raise SecurityError(f"the template takes more than {MAX_STEPS} rounds and calls")


def join_bounded(parts: Iterable[str]) -> str:
    """Join text as it comes, for as long as the budget lasts."""
    kept = []
    for part in parts:
        spend_chars(len(part))
        kept.append(part)
    return "".join(kept)


def printed_size(value: Any, seen: dict[int, tuple[int, Any]] | None = None) -> int:
    """About how long a value is as text. A list within a list twice is measured once, and counted twice."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3 + 2
    if isinstance(value, Namespace):
        raise SecurityError("the template prints a namespace")
    if not isinstance(value, Collection) or isinstance(value, range):
        return _ITEM_CHARS
    seen = {} if seen is None else seen
    if id(value) not in seen:
        pairs = value.items() if isinstance(value, dict) else ()
        inside = [part for pair in pairs for part in pair] or value
        size = sum(printed_size(part, seen) + 2 for part in inside) + 2
        seen[id(value)] = size, value  # kept, lest its id be given to another
    return seen[id(value)][0]


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox in which all that repeats or grows is paid for."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(join_bounded)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, finalize=_printed)
        self.filters = {name: _metered(name, each) for name, each in self.filters.items()}
        self.filters |= {"_counted": _counted, "_concatenated": _concatenated}
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Metering().visit(super()._parse(source, name, filename))
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match operator, left, right:
            case "%", str(), _:
                _check_room(_formatted_size(left, "%", right))
            case "*", int(), int():
                _check_bits(left.bit_length() + right.bit_length())
            case "**", int(), int():
                _check_bits(left.bit_length() * abs(right))
            case ("*", int(), _) | ("*", _, int()):
                _check_room(_extent(left) * _extent(right))
        return _made(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        _spend_steps(_CALL_STEPS)
        if isinstance(function, LoopContext):  # a recursive loop goes round in what it is called with
            args = tuple(map(_counted, args))
            kwargs |= {name: _counted(kwargs[name]) for name in kwargs.keys() - _JINJA_ARGUMENTS}
        method = getattr(function, "__wrapped__", function)  # jinja2 wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str | int):
            args = _foresee(method.__name__, "{", (owner, *args), kwargs)[1:]
        return _made(super().call(context, function, *args, **kwargs))


class _Metering(NodeTransformer):
    """Puts the meters where jinja2 offers no hook: into loops and around `~`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (jinja2 looks for this name)
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "_concatenated")


def _filtered(node: nodes.Node, name: str) -> nodes.Node:
    return nodes.Filter(node, name, [], [], None, None).set_lineno(node.lineno)


def _counted(items: Any) -> Iterator[Any]:
    for item in items:
        _spend_steps()
        yield item


def _concatenated(parts: list[Any]) -> str:
    return join_bounded(str(_printed(part)) for part in parts)


def _made(value: Any) -> Any:
    if isinstance(value, str):
        spend_chars(len(value))
    elif isinstance(value, list | tuple | dict):
        spend_chars(len(value) * _ITEM_CHARS)
    return value


def _printed(value: Any) -> Any:
    if not isinstance(value, str):
        spend_chars(printed_size(value))
    return value


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        _spend_steps()
        return _made(function(*_foresee(name, "%", args, kwargs), **kwargs))

    return metered


def _foresee(name: str, mark: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Refuse a filter or a method that could make too much; gives its arguments, a list where they were an iterator."""
    if name in _REFUSED:
        raise SecurityError(f"the template uses {name}, which is not offered")
    args = tuple(list(arg) if name in _GROWING and isinstance(arg, Iterator) else arg for arg in args)
    values = [*args, *(value for key, value in kwargs.items() if key not in _JINJA_ARGUMENTS)]
    if name in ("format", "format_map"):
        _check_room(_formatted_size(values[0], mark, values[1:]))
    elif name in _GROWING:
        _check_room(prod(nlargest(2, map(_extent, values))))
    return args


def _extent(value: Any) -> int:
    """How often a number repeats, or how long what is repeated is; at least 1."""
    if isinstance(value, int):
        return max(1, value)
    return max(1, printed_size(value)) if isinstance(value, Collection) else 1


def _formatted_size(text: Any, mark: str, values: Any) -> int:
    """Formatted text is at most its fields, each as long as the longest value or its width."""
    rest, num_fields = _PLAIN_FIELDS[mark].subn("", text) if isinstance(text, str) else (mark, 0)
    if mark in rest:
        raise SecurityError("the template formats with a field that is not plain")
    return len(text) + num_fields * (_FIELD_CHARS + printed_size(values))


def _check_room(size: int) -> None:
    if size > _budget.get().num_chars:
        raise SecurityError(_TOO_LONG)


def _check_bits(count: int) -> None:
    if count > MAX_BITS:
        raise SecurityError(f"the template makes a number of more than {MAX_BITS} bits")
