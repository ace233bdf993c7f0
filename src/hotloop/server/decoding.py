"""Bodies from JSON, and a sentence about the field at fault where that fails."""

import re
from typing import TypeVar

import msgspec

from hotloop.core.errors import RequestError
from hotloop.wire.field import Json

Body = TypeVar("Body", bound=msgspec.Struct)

_body = msgspec.json.Decoder(Json)


def decode(data: bytes) -> Json:
    try:
        return _body.decode(data)
    except msgspec.ValidationError as error:
        raise RequestError(_explain(str(error))[0]) from None
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    except UnicodeDecodeError:
        raise RequestError("the body is not UTF-8") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None


def convert(value: Json, kind: type[Body], place: str = "", *, strict: bool = True) -> Body:
    """A body, or the part of one at `place`. Raises RequestError that names the field at fault.

    Not `strict`: numbers may be written as texts, as a query has them.
    """
    try:
        return msgspec.convert(value, kind, strict=strict, str_keys=True)
    except msgspec.ValidationError as error:
        message, param = _explain(str(error), within=place)
        raise RequestError(message, param=param) from None


_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(?P<path>.*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>\w+)`")


def _explain(complaint: str, within: str = "") -> tuple[str, str | None]:
    """Msgspec's complaint as a sentence about a field, and the field.

    Expected `int`, got `str` - at `$.stop[0]`  ->  stop[0]: expected int, got str
    """
    complaint = " ".join(complaint.split())  # it quotes names as they came
    place = _PLACE.search(complaint)
    path = ".".join(filter(None, (within, place["path"] if place else "")))
    what = complaint[: place.start()] if place else complaint
    if missing := _MISSING.search(what):
        path = f"{path}.{missing['name']}" if path else missing["name"]
        return f"{path} is missing", path
    what = what.replace("`", "")
    return (f"{path}: {what[0].lower()}{what[1:]}", path) if path else (what, None)
