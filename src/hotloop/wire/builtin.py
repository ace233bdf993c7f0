"""The built-in tools that clients run themselves: what each is to a model, and how its calls look as items.

    {"type": "bash_20250124", "name": "bash"}  ->  bash(command, restart)    ->  tool_use, as any other tool's
    {"type": "apply_patch"}                    ->  apply_patch(type, path, diff)  ->  apply_patch_call

A request names such a tool and no more; what it takes is published by its maker, and said to the model here. All other
types that are no function are hosted: only their maker runs them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hotloop.wire.arguments import read_arguments, write_arguments
from hotloop.wire.field import Field, Json, present, read_text
from hotloop.wire.part import Image, Opaque, Part, Text

_MAX_PIXELS = 1 << 16
_TEXT: Json = {"type": "string"}
_TEXTS: Json = {"type": "array", "items": _TEXT}
_NUMBER: Json = {"type": "integer"}


@dataclass(frozen=True, slots=True)
class Builtin:
    """A tool as a function."""

    name: str
    description: str
    schema: Json


def _about(kind: Json, description: str) -> Json:
    return {**kind, "description": description}


def _one_of(values: Iterable[str], description: str) -> Json:
    return {**_TEXT, "enum": [*values], "description": description}


def _takes(required: Iterable[str], **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


def _point(description: str) -> Json:
    return {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2, "description": description}


_BASH = Builtin(
    "bash",
    "Runs a command in a bash session, which goes on from call to call, and returns what it prints.",
    _takes(
        ["command"],
        command=_about(_TEXT, "The command to run."),
        restart=_about({"type": "boolean"}, "True to begin a new session instead of running the command."),
    ),
)


def _files(**more: Json) -> dict[str, Json]:
    """What the text editor and the memory have in common."""
    return {
        "path": _about(_TEXT, "The absolute path of the file or directory."),
        "view_range": _point("For view: the first and the last line to show; -1 as the last is the end of the file."),
        "file_text": _about(_TEXT, "For create: the content of the file."),
        "old_str": _about(_TEXT, "For str_replace: the text to replace, which the file has exactly once."),
        "new_str": _about(_TEXT, "For str_replace: the text to put in its place."),
        "insert_line": _about(_NUMBER, "For insert: the line behind which to insert; 0 is the beginning of the file."),
        **more,
    }


_INSERTED = _about(_TEXT, "For insert: the text to insert.")


def _editor(name: str, *, can_undo: bool, inserts_new_str: bool) -> Builtin:
    commands = ["view", "create", "str_replace", "insert", *(["undo_edit"] if can_undo else [])]
    both = "For str_replace: the text to put in its place. For insert: the text to insert."
    inserted = {"new_str": _about(_TEXT, both)} if inserts_new_str else {"insert_text": _INSERTED}
    command = _one_of(commands, "What to do.")
    schema = _takes(["command", "path"], **{"command": command, **_files(**inserted)})
    return Builtin(name, "Shows, creates and edits text files.", schema)


_OLD_EDITOR = _editor("str_replace_editor", can_undo=True, inserts_new_str=True)
_EDITORS = {
    "20241022": _OLD_EDITOR,
    "20250124": _OLD_EDITOR,
    "20250429": _editor("str_replace_based_edit_tool", can_undo=False, inserts_new_str=True),
    "20250728": _editor("str_replace_based_edit_tool", can_undo=False, inserts_new_str=False),
}

_MEMORY = Builtin(
    "memory",
    "Keeps notes as files under /memories, which are still there in later conversations. Look there before you begin, "
    "and write down what is worth knowing later.",
    _takes(
        ["command"],
        command=_one_of(["view", "create", "str_replace", "insert", "delete", "rename"], "What to do."),
        **_files(
            insert_text=_INSERTED,
            old_path=_about(_TEXT, "For rename: the path now."),
            new_path=_about(_TEXT, "For rename: the path then."),
        ),
    ),
)

_FIRST_ACTIONS = (
    *("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click"),
    *("screenshot", "cursor_position"),
)
_LATER_ACTIONS = ("left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click")


def _screen(version: str, tool: Mapping[str, Any]) -> Builtin:
    """Anthropic's computer, of the size that the request says."""
    is_later, can_zoom = version >= "20250124", version >= "20251124" and tool.get("enable_zoom") is True
    actions = [*_FIRST_ACTIONS, *(_LATER_ACTIONS if is_later else ()), *(["zoom"] if can_zoom else [])]
    properties = {
        "action": _one_of(actions, "What to do."),
        "coordinate": _point("Where: pixels from the left, pixels from the top."),
        "text": _about(_TEXT, "The text to type, the keys to press, or the keys to hold while clicking."),
    }
    if is_later:
        properties |= {
            "start_coordinate": _point("For left_click_drag: where it begins."),
            "scroll_direction": _one_of(["up", "down", "left", "right"], "For scroll."),
            "scroll_amount": _about(_NUMBER, "For scroll: how many clicks of the wheel."),
            "duration": _about({"type": "number"}, "For hold_key and wait: how many seconds."),
        }
    if can_zoom:
        region = {"type": "array", "items": _NUMBER, "minItems": 4, "maxItems": 4}
        properties["region"] = _about(region, "For zoom: the left, top, right and bottom edges.")
    size = tool.get("display_width_px"), tool.get("display_height_px")
    schema = _takes(["action"], **properties)
    return Builtin("computer", f"Works the screen, mouse and keyboard of a computer.{_screen_size(*size)}", schema)


def _screen_size(width: Any, height: Any) -> str:
    is_known = all(type(pixels) is int and 0 < pixels <= _MAX_PIXELS for pixels in (width, height))
    return f" The screen is {width} pixels wide and {height} high." if is_known else ""


_ANTHROPIC = re.compile(r"(?P<family>bash|text_editor|memory|computer)_(?P<version>\d{8})")


def find_anthropic(kind: str, tool: Mapping[str, Any]) -> Builtin | None:
    """A version that is not known here is taken for the last before it."""
    named = _ANTHROPIC.fullmatch(kind)
    if not named:
        return None
    version = named["version"]
    match named["family"]:
        case "bash":
            return _BASH
        case "memory":
            return _MEMORY
        case "computer":
            return _screen(version, tool)
    return _EDITORS[max((known for known in _EDITORS if known <= version), default=min(_EDITORS))]


_XY = {"x": _NUMBER, "y": _NUMBER}
_KEYS = _about(_TEXTS, "Keys, pressed together.")


def _action(kind: str, **properties: Json) -> Json:
    return _takes(["type", *properties], type={"const": kind}, **properties)


_ACTIONS: Json = {
    "anyOf": [
        _action("click", button=_one_of(["left", "right", "wheel", "back", "forward"], "Which button."), **_XY),
        _action("double_click", **_XY, keys=_about(_TEXTS, "Keys held meanwhile, if any.")),
        _action("drag", path={"type": "array", "items": _takes(_XY, **_XY)}),
        _action("keypress", keys=_KEYS),
        _action("move", **_XY),
        _action("screenshot"),
        _action("scroll", **_XY, scroll_x=_NUMBER, scroll_y=_NUMBER),
        _action("type", text=_TEXT),
        _action("wait"),
    ]
}
_TIMEOUT = _about(_NUMBER, "After how many milliseconds to stop waiting.")
_OPENAI = {
    "shell": Builtin(
        "shell",
        "Runs commands in a shell, side by side, and returns what each prints.",
        _takes(
            ["commands"],
            commands=_about(_TEXTS, "The commands to run."),
            timeout_ms=_TIMEOUT,
            max_output_length=_about(_NUMBER, "How many characters of each command's output to return."),
        ),
    ),
    "local_shell": Builtin(
        "local_shell",
        "Runs a command on the user's machine and returns what it prints.",
        _takes(
            ["command"],
            command=_about(_TEXTS, 'The program and its arguments, such as ["bash", "-lc", "ls"].'),
            timeout_ms=_TIMEOUT,
            working_directory=_about(_TEXT, "The directory to run it in."),
            env={"type": "object", "additionalProperties": _TEXT, "description": "Environment variables to set."},
            user=_about(_TEXT, "The user to run it as."),
        ),
    ),
    "apply_patch": Builtin(
        "apply_patch",
        "Creates, updates or deletes one file. A diff has lines that begin with a space (kept), + (added) or - "
        "(removed); in an update each changed place begins with a line @@.",
        _takes(
            ["type", "path", "diff"],
            type=_one_of(["create_file", "update_file", "delete_file"], "What to do with the file."),
            path=_about(_TEXT, "The path of the file."),
            diff=_about(_TEXT, "The lines of a new file, each behind a +, or the changes; empty to delete the file."),
        ),
    ),
    "computer": Builtin(
        "computer",
        "Works the screen, mouse and keyboard of a computer.",
        _takes(["actions"], actions={"type": "array", "items": _ACTIONS, "minItems": 1}),
    ),
    "computer_use_preview": Builtin(
        "computer",
        "Works the screen, mouse and keyboard of a computer, one action at a time.",
        _takes(["action"], action=_ACTIONS),
    ),
}


def find_openai(tool: Mapping[str, Any]) -> Builtin | None:
    """A shell in a container is its maker's."""
    found, environment = _OPENAI.get(str(tool.get("type"))), tool.get("environment")
    if isinstance(environment, dict) and str(environment.get("type")).startswith("container"):
        return None
    if found and "display_width" in tool:
        size = _screen_size(tool["display_width"], tool.get("display_height"))
        return Builtin(found.name, found.description + size, found.schema)
    return found


def choose_openai(kind: str) -> str | None:
    """The name of the tool that a `tool_choice` of this type is about."""
    return "computer" if kind == "computer_use" else _OPENAI[kind].name if kind in _OPENAI else None


def _shell_action(given: Json) -> Json:
    limits = {name: _number(given.get(name)) for name in ("timeout_ms", "max_output_length")}
    return {"action": {"commands": _list_texts(given.get("commands")), **limits}, "environment": None}


def _local_action(given: Json) -> Json:
    env = given.get("env")
    texts = {name: given.get(name) for name in ("working_directory", "user") if isinstance(given.get(name), str)}
    action = {"type": "exec", "command": _list_texts(given.get("command")), **texts}
    action |= present(timeout_ms=_number(given.get("timeout_ms")))
    pairs = {name: str(value) for name, value in env.items()} if isinstance(env, dict) else {}
    return {"action": {**action, "env": pairs}}


def _operation(given: Json) -> Json:
    kinds = _OPENAI["apply_patch"].schema["properties"]["type"]["enum"]
    kind = given.get("type") if given.get("type") in kinds else "update_file"
    operation = {"type": kind, "path": _one_text(given.get("path"))}
    return {"operation": operation if kind == "delete_file" else {**operation, "diff": _one_text(given.get("diff"))}}


def _computer_actions(given: Json) -> Json:
    kept = {name: given[name] for name, kind in (("action", dict), ("actions", list)) if type(given.get(name)) is kind}
    return {**kept, "pending_safety_checks": []}


def _list_texts(value: Any) -> list[str]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _one_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    return value if type(value) is int else None


@dataclass(frozen=True, slots=True)
class CallItemKind:
    """How the calls of a tool of OpenAI's look among the items."""

    name: str
    id_prefix: str
    write: Callable[[Json], Json]
    """From arguments; what of them is missing or wrong, as in a call that was cut off, is empty."""


CALL_ITEMS: Mapping[str, CallItemKind] = {
    "shell_call": CallItemKind("shell", "sh", _shell_action),
    "local_shell_call": CallItemKind("local_shell", "lsh", _local_action),
    "apply_patch_call": CallItemKind("apply_patch", "apc", _operation),
    "computer_call": CallItemKind("computer", "cu", _computer_actions),
}
RESULT_ITEMS = frozenset(f"{kind}_output" for kind in CALL_ITEMS)


def find_call_item(tool: Mapping[str, Any]) -> str:
    """The type of item that a call of this built-in tool becomes; nothing for one whose calls are as any other's."""
    name = choose_openai(str(tool.get("type")))
    return f"{name}_call" if name else ""


def write_call_item(kind: str, arguments: str) -> Json:
    return {"type": kind, **CALL_ITEMS[kind].write(read_arguments(arguments) or {})}


def read_call_item(item: Field, kind: str) -> str:
    """The arguments that the model wrote."""
    if kind == "computer_call":
        taken = {name: item.object().get(name) for name in ("action", "actions")}
    elif kind == "apply_patch_call":
        operation = item.need("operation").object()
        taken = {**operation, "diff": operation.get("diff") or ""}
    else:
        taken = {name: value for name, value in item.need("action").object().items() if name != "type" and value != {}}
    return write_arguments(Field(present(**taken), item))


def read_call_id(item: Field) -> str:
    """Those of the local shell are named by their items' ids where they have none of their own."""
    return read_text(item, "call_id") or item.need("id").text()


def read_result_item(item: Field, kind: str) -> tuple[tuple[Part, ...], bool]:
    """What the tool returned, and whether it failed."""
    has_failed, output = read_text(item, "status") == "failed", item.get("output")
    if kind == "computer_call_output":
        screen = item.need("output")
        url = read_text(screen, "image_url")
        is_kept_there = Opaque("responses", "input_image", screen.object(), at=screen)
        return (Image(url, at=screen) if url else is_kept_there,), False
    if output is None:
        return (Text(read_text(item, "status") or "", at=item),), has_failed
    if output.is_text:
        return (Text(output.text(), at=output),), has_failed
    return (Text("\n".join(map(_say_output, output.each())), at=output),), has_failed


def _say_output(output: Field) -> str:
    outcome = output.get("outcome")
    code = outcome.get("exit_code") if outcome else None
    ended = "timed out" if outcome and outcome.kind() == "timeout" else f"exit code: {code.number() if code else 0}"
    stderr = read_text(output, "stderr")
    said = [read_text(output, "stdout"), f"stderr:\n{stderr}" if stderr else None, ended]
    return "\n".join(part.rstrip("\n") for part in said if part)
