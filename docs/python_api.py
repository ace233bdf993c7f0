"""docs/python.md: the public names of hotloop, from their signatures and docstrings; `docs/reference.py` writes it.

Sources are parsed: what a field means stands in the string behind it, and signatures are as they were written.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import hotloop

_SOURCE = Path(hotloop.__file__).parents[1]
_WIDTH = 100
_ALSO = {
    "Compaction": "hotloop.agent.compaction",
    "Prompt": "hotloop.agent.conversation",
    "ResultCache": "hotloop.agent.tools.results",
    "RunOptions": "hotloop.agent.run_stream",
    "RunStream": "hotloop.agent.run_stream",
    "RunUsage": "hotloop.agent.limits",
    "SpeculativeTools": "hotloop.agent.speculation",
    "ToolOptions": "hotloop.agent.tools.tool",
}
"""What the public names take and give, imported from where it lives."""

_INTRO = """# Python API
What `from hotloop import …` offers, and [what it takes and gives](#from-their-modules). How agents are written:
[agents](agents.md). Errors: [troubleshoot](troubleshoot.md#errors-in-python-and-on-the-command-line). Names that are
not on this page may change with any version ([policy](upgrade.md)).
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | Function


def python_page() -> str:
    homes = {name: getattr(hotloop, name).__module__ for name in hotloop.__all__ if not name.startswith("_")}
    lines = [_INTRO]
    for name, home in homes.items():
        lines += [f"## {name}", *_described(name, home)]
    lines += ["## From their modules", ""]
    for name, home in _ALSO.items():
        lines += [f"### {name}", f"`from {home} import {name}`", "", *_described(name, home)]
    return "\n".join(lines).rstrip() + "\n"


def _described(name: str, home: str) -> Iterator[str]:
    """Of overloads the last, which says most."""
    body = ast.parse(_SOURCE.joinpath(*home.split(".")).with_suffix(".py").read_text("utf-8")).body
    found = [node for node in body if isinstance(node, Definition) and node.name == name]
    if not found:
        yield from _alias(name, body)
        return
    overloads, node = found[:-1], found[-1]
    if overloads and isinstance(node, Function) and isinstance(overloads[-1], Function):
        node.args, node.returns = overloads[-1].args, overloads[-1].returns
    yield from _entry(node)


def _alias(name: str, body: list[ast.stmt]) -> Iterator[str]:
    is_it = [isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name for node in body]
    index = is_it.index(True)
    yield from (*_code(_quoted(body[index])), _string(body[index + 1]), "")


def _entry(node: Definition) -> Iterator[str]:
    if isinstance(node, Function):
        yield from _code(_signature(node.name, node, node.returns))
        yield from _text(node)
        return
    methods = [each for each in node.body if isinstance(each, Function)]
    init = next((each for each in methods if each.name == "__init__"), None)
    if init:
        yield from _code(_signature(node.name, init, None))
    yield from _text(node)
    if init and ast.get_docstring(init):
        yield from _text(init)
    yield from _fields(node)
    for method in methods:
        if not method.name.startswith("_") and ast.get_docstring(method):
            yield from (f"**{node.name}.{method.name}**", "", *_method(method))


def _method(node: Function) -> Iterator[str]:
    decorators = [ast.unparse(each) for each in node.decorator_list]
    if "property" in decorators:
        yield from _code(f"{node.name}: {_type(node.returns)}")
        yield from _text(node)
    else:
        yield from ["`@classmethod`", ""] if "classmethod" in decorators else []
        yield from _entry(node)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """A line for each field, with the string that stands behind it."""
    rows = []
    for field, after in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        if isinstance(field, ast.AnnAssign | ast.Assign) and not (text := _quoted(field)).startswith("_"):
            told = " ".join(_string(after).split())
            rows.append(f"- `{text}`" + (f": {told}" if told else ""))
    yield from [*rows, ""] if rows else []


def _string(node: ast.stmt) -> str:
    is_string = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return str(node.value.value) if is_string else ""  # type: ignore[attr-defined]


def _signature(name: str, node: Function, returns: ast.expr | None) -> str:
    result = f" -> {_type(returns)}" if returns else ""
    begin = f"async {name}" if isinstance(node, ast.AsyncFunctionDef) else name
    given = [each for each in _arguments(node.args) if each not in ("self", "cls")]
    line = f"{begin}({', '.join(given)}){result}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{begin}(", *(f"    {each}," for each in given), f"){result}"])


def _arguments(given: ast.arguments) -> Iterator[str]:
    plain = [*given.posonlyargs, *given.args]
    missing = [None] * (len(plain) - len(given.defaults))
    yield from map(_argument, plain, [*missing, *given.defaults])
    if given.vararg:
        yield f"*{_argument(given.vararg, None)}"
    elif given.kwonlyargs:
        yield "*"
    yield from map(_argument, given.kwonlyargs, given.kw_defaults)
    if given.kwarg:
        yield f"**{_argument(given.kwarg, None)}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    kind = f": {_type(argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{kind}" + (f" = {_quoted(default)}" if default else "")


def _type(annotation: ast.expr | None) -> str:
    """Those that stand in quotes in the source too, without them."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return _quoted(annotation) if annotation else "Any"


def _quoted(node: ast.AST) -> str:
    return ast.unparse(node).replace("'", '"')


def _code(text: str) -> Iterator[str]:
    yield from ("```python", text, "```")


def _text(node: Definition) -> Iterator[str]:
    yield from (ast.get_docstring(node) or "", "")
