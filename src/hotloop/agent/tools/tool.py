"""Functions as tools: a typed function becomes a schema for the model, and a call of the model a call of the function.

    @tool(read_only=True)
    async def weather(city: str, db: Context[Database], days: Literal[1, 3, 7] = 1) -> Forecast:
        \"\"\"The weather of the next days.

        Args:
            city: its English name
        \"\"\"

The model never sees a `Context`: that is a thing of the run, `agent.run("...", context=[Database("shop.db")])`, found
by its type. A run adds one of its own, the `Run` a tool runs in. A tool fails in words: whatever goes wrong inside
raises `ToolError`, whose text is for the model to read. Nothing here knows when a tool is run, or beside what.
"""

import asyncio
import contextvars
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args, get_origin, get_type_hints, overload

import docstring_parser
import pydantic
import pydantic_core
from pydantic.json_schema import GenerateJsonSchema

from hotloop.agent.tools.result import read_async_items, read_items
from hotloop.core.errors import ConfigError, HotloopError
from hotloop.core.message import Tool, ToolCall
from hotloop.core.request import Priority
from hotloop.wire.arguments import read_arguments

FINAL_ANSWER = "final_answer"
CacheScope = Literal["run", "session", "tenant"]

T = TypeVar("T")


class FromContext:
    """Marks a parameter that comes from the run, not from the model."""


Context = Annotated[T, FromContext()]
"""A parameter of this type comes from the run's context, and the model never sees it: `db: Context[Database]`."""


class RunContext:
    """The things of a run, by type. The first of a type, or of a type derived from it, is taken."""

    def __init__(self, things: Iterable[Any] = ()) -> None:
        self.things = tuple(things)

    def find(self, wanted: type[T]) -> T:
        for thing in self.things:
            if isinstance(thing, wanted):
                return thing
        raise ConfigError(f"a {wanted.__name__} is wanted, and the run's context has none: run(..., context=[...])")

    def check(self, tools: "Iterable[AgentTool]") -> None:
        """Raise ConfigError if something is missing that one of the tools wants."""
        for tool in tools:
            self.require(f"the tool {tool.spec.name!r}", tool.wants)

    def require(self, who: str, wants: "Iterable[type]") -> None:
        for wanted in wants:
            if not any(isinstance(thing, wanted) for thing in self.things):
                need = f"{who} wants a {wanted.__name__}"
                raise ConfigError(f"{need}, and the run's context has none: run(..., context=[...])")


class ToolError(Exception):
    """A tool could not do it; `str(error)` tells the model why. Tools may raise it themselves."""


class ToolCrashed(ToolError):
    """A tool failed in a way it did not mean to: another try may go better."""


class ToolExited(HotloopError):
    """A tool raised what would end the program, KeyboardInterrupt or SystemExit: its run ends instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    read_only: bool = False
    """Calling it changes nothing, so that it may run before the model has asked for it."""
    open_world: bool = False
    """What it is given goes to others, as with a web search: so only a call the model has made before may run ahead."""
    trusted: bool = False
    """What it answers was written by nobody else, such as ids of your own database: so a value that only its result has
    may be an argument of a call that runs before the model has asked for it."""
    idempotent: bool = False
    """Calling it twice is as good as once, so that it may be tried again."""
    timeout_s: float | None = 60.0
    max_concurrency: int | None = None
    """How many calls of it run at once, in a run."""
    cost: float = 0.0
    """Money a call costs."""
    needs_approval: bool = False
    cache_s: float = 0.0
    """For how long its result answers the same call, if it only reads (docs/agents.md); 0: only for calls made while it
    runs."""
    cache_scope: CacheScope = "run"
    """Whose calls: those of the run, of the session, or of all runs that share the agent's `ResultCache`."""
    group: str = ""
    """What it reads or writes: a write drops what was kept of its group; of one without a group everything."""
    priority: Priority | None = None
    """The class of what a model is asked for it, where it is an agent that does not say its own."""
    task: str = ""
    """What kind of task that is."""
    resumable: bool = False
    """A call that was broken off goes on where it was, as one of a sub-agent does, which has a journal of its own."""

    @property
    def can_repeat(self) -> bool:
        """Whether another try does no harm."""
        return self.read_only or self.idempotent

    @property
    def may_be_uncertain(self) -> bool:
        """Whether nobody can tell what a call of it that was broken off has done."""
        return not (self.can_repeat or self.resumable)

    def __post_init__(self) -> None:
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ConfigError(f"timeout_s must be above zero, not {self.timeout_s}")
        if not 0 <= self.cache_s < math.inf or (self.cache_s and not self.read_only):
            raise ConfigError(f"cache_s must be at least 0, finite, and 0 unless read_only, not {self.cache_s}")
        if self.cache_scope not in get_args(CacheScope):
            raise ConfigError(
                f"there is no cache_scope {self.cache_scope!r}; there are {', '.join(get_args(CacheScope))}"
            )
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"max_concurrency must be at least 1, not {self.max_concurrency}")


class AgentTool(Protocol):
    @property
    def spec(self) -> Tool:
        """What the model is told about it."""
        ...

    @property
    def options(self) -> ToolOptions: ...

    @property
    def wants(self) -> Sequence[type]:
        """What it takes from the run's context. A run that has not all of it does not begin."""
        ...

    def check(self, arguments: str) -> None:
        """Raise ToolError if a call's arguments are wrong, without running it."""
        ...

    async def run(self, arguments: str, run_context: RunContext) -> Any:
        """The result, whatever it is. `arguments` is JSON as the model wrote it. Raises ToolError."""
        ...


class FunctionTool:
    """A function as a tool; still callable as the function it is."""

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, options: ToolOptions | None = None
    ) -> None:
        self.function = function
        self.options = options or ToolOptions()
        self._arguments, self._wanted = _read_signature(function)
        self.wants = tuple(self._wanted.values())
        described = docstring_parser.parse(inspect.getdoc(function) or "")
        parameters = _schema_of(self._arguments, {p.arg_name: p.description or "" for p in described.params})
        words = "\n\n".join(filter(None, (described.short_description, described.long_description)))
        self.spec = Tool(name or function.__name__, words, parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def check(self, arguments: str) -> None:
        self.parse(arguments)

    async def run(self, arguments: str, run_context: RunContext) -> Any:
        values = self.parse(arguments) | {name: run_context.find(kind) for name, kind in self._wanted.items()}
        try:
            return await self._call(values)
        except ToolError:
            raise
        except Exception as error:
            raise ToolCrashed(f"{type(error).__name__}: {error}") from error

    async def _call(self, values: Mapping[str, Any]) -> Any:
        """What comes item by item is read where the function runs: in its thread, and within its time."""
        if inspect.isasyncgenfunction(self.function):
            return await read_async_items(self.function(**values))
        if inspect.iscoroutinefunction(self.function):
            return read_items(await self.function(**values))
        return await call_function(lambda: read_items(self.function(**values)))

    def parse(self, arguments: str) -> dict[str, Any]:
        """The values of a call, with what was left out as its default. Raises ToolError."""
        parsed = validate(self._arguments.model_validate_json, "arguments are", arguments)
        fields = self._arguments.model_fields.items()
        return {info.alias or field: getattr(parsed, field) for field, info in fields}


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *,
    name: str | None = None,
    read_only: bool = False,
    open_world: bool = False,
    trusted: bool = False,
    idempotent: bool = False,
    timeout_s: float | None = 60.0,
    max_concurrency: int | None = None,
    cost: float = 0.0,
    needs_approval: bool = False,
    cache_s: float = 0.0,
    cache_scope: CacheScope = "run",
    group: str = "",
    priority: Priority | None = None,
    task: str = "",
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, **options: Any
) -> FunctionTool | Callable[[Callable[..., Any]], FunctionTool]:
    """Make a function a tool: `@tool`, or `@tool(read_only=True)`; see `ToolOptions` for what can be said about it."""
    if function is not None:
        return FunctionTool(function)
    return lambda function: FunctionTool(function, name=name, options=ToolOptions(**options))


class FinalAnswer:
    """The model calls it when it is done: its arguments are the answer. This works wherever tools do."""

    options = ToolOptions(idempotent=True)
    wants = ()

    def __init__(self, output: Any) -> None:
        self._type: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(output)
        self._is_wrapped = plain_schema(self._type).get("type") != "object"
        if self._is_wrapped:  # a call's arguments are always an object
            config = pydantic.ConfigDict(extra="forbid")
            self._type = pydantic.TypeAdapter(pydantic.create_model("Answer", __config__=config, value=(output, ...)))
        self.spec = Tool(FINAL_ANSWER, "Call this when you are done, with the answer.", plain_schema(self._type))
        self.validate: Callable[[Any], Awaitable[Any]] | None = None
        """Gives the answer as it is accepted. Raises ToolError, whose words the model reads."""
        self.accepted: dict[str, Any] = {}
        """By the arguments of their calls: of an answer that broke off there may be another."""

    def check(self, arguments: str) -> None:
        validate(self._type.validate_json, "answer is", arguments)

    async def run(self, arguments: str, run_context: RunContext) -> str:
        answer = validate(self._type.validate_json, "answer is", arguments)
        value = answer.value if self._is_wrapped else answer
        self.accepted[arguments] = await self.validate(value) if self.validate else value
        return "accepted"

    def has_accepted(self, call: ToolCall) -> bool:
        return call.name == FINAL_ANSWER and call.arguments in self.accepted

    def read_partial(self, arguments: str) -> Any:
        """What there is of an answer so far, as JSON values; None if that is nothing yet."""
        try:
            value = pydantic_core.from_json(arguments, allow_partial="trailing-strings")
        except ValueError:
            return None
        return value.get("value") if self._is_wrapped and isinstance(value, dict) else value


def read_object(arguments: str) -> dict[str, Any]:
    """Arguments whose schema somebody else keeps to. Raises ToolError if they are not even an object."""
    given = read_arguments(arguments)
    if given is None:
        raise ToolError("the arguments are wrong: they are not a JSON object")
    return given


async def call_function(function: Callable[..., Any], *args: Any, **values: Any) -> Any:
    """A function that does not await runs in a thread, so that it blocks nobody."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **values)
    result = await _in_thread(lambda: function(*args, **values))
    return await result if isinstance(result, Awaitable) else result


async def _in_thread(call: Callable[[], Any]) -> Any:
    """In a daemon thread of its own: a thread cannot be stopped, and an executor's would hold up the program's end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def tell(value: Any, error: BaseException | None) -> None:
        if not future.done():
            future.set_result((value, error))  # as a value: a future cannot carry StopIteration

    def work() -> None:
        value, raised = None, None
        try:
            value = context.run(call)
        except BaseException as error:
            raised = error
        try:
            loop.call_soon_threadsafe(tell, value, raised)
        except RuntimeError:
            return  # the loop has been closed: nobody waits any more

    threading.Thread(target=work, name="hotloop-tool", daemon=True).start()
    value, error = await future
    if error is not None:
        raise error
    return value


def _read_signature(function: Callable[..., Any]) -> tuple[type[pydantic.BaseModel], dict[str, type]]:
    """The model's part of the parameters, as one type, and the run's part, by name."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    wanted: dict[str, type] = {}
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name in ("self", "cls"):  # a bound method has none of them
        name = function.__name__
        raise ConfigError(f"{name} is a method, and @tool cannot know of which object: use tool(thing.{name}) instead")
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"{function.__name__}: the parameter {parameter.name!r} cannot be written by a model")
        hint = hints.get(parameter.name, Any)
        if kind := context_kind(function.__name__, parameter.name, hint):
            wanted[parameter.name] = kind
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        # A field may have a name pydantic keeps for itself, such as `schema` or `_id`: so it is known by a number.
        fields[f"p{len(fields)}"] = (hint, pydantic.Field(default, alias=parameter.name))
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    try:
        return pydantic.create_model(function.__name__, __config__=config, **fields), wanted
    except pydantic.PydanticUserError as error:
        raise ConfigError(f"{function.__name__}: {str(error).splitlines()[0]}") from error


def context_kind(function: str, parameter: str, hint: Any) -> type | None:
    """What a parameter wants from the run's context; None if it is an argument like any other."""
    if not any(isinstance(extra, FromContext) for extra in get_args(hint)[1:]):
        return None
    kind = get_origin(get_args(hint)[0]) or get_args(hint)[0]
    if not isinstance(kind, type) or kind in (Any, UnionType):
        raise ConfigError(f"{function}: the context of {parameter!r} must be a class")
    return kind


class _PlainSchema(GenerateJsonSchema):
    """Without the titles, which only repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def plain_schema(described: "type[pydantic.BaseModel] | pydantic.TypeAdapter[Any]") -> dict[str, Any]:
    """A type's JSON schema, by the names on the wire."""
    make = described.json_schema if isinstance(described, pydantic.TypeAdapter) else described.model_json_schema
    schema = make(by_alias=True, schema_generator=_PlainSchema)
    for definition in (schema, *schema.get("$defs", {}).values()):
        definition.pop("title", None)
    return schema


def validate(parse: Callable[[str], T], what: str, arguments: str) -> T:
    try:
        return parse(arguments or "{}")
    except pydantic.ValidationError as error:
        raise ToolError(f"the {what} wrong: {_summarise(error)}") from None


def _summarise(error: pydantic.ValidationError) -> str:
    """One line, without a link: where and what, for each of the first few."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [": ".join(filter(None, (".".join(map(str, each["loc"])), each["msg"]))) for each in found[:5]]
    return "; ".join(lines) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")


def _schema_of(arguments: type[pydantic.BaseModel], descriptions: Mapping[str, str]) -> dict[str, Any]:
    schema = plain_schema(arguments)
    schema.setdefault("properties", {})
    for name, parameter in schema["properties"].items():
        if descriptions.get(name):
            parameter.setdefault("description", descriptions[name])
    return schema
