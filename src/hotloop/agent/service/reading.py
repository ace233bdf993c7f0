"""What a client asks an agent: what was said before, and the prompt. Tools are the agent's own."""

from collections.abc import Iterator

from hotloop.agent.conversation import Prompt
from hotloop.core.errors import ConfigError, RequestError
from hotloop.core.message import Attachment, Message
from hotloop.wire.part import File, Image, Text, Turn, text_of
from hotloop.wire.policy import check_portable
from hotloop.wire.request import ApiRequest


def read_request(request: ApiRequest) -> tuple[Prompt, list[Message]]:
    """Raises RequestError for what an agent cannot be asked."""
    check_portable(request)
    if request.tools:
        raise RequestError("tools: not accepted, since the agent runs its own", param="tools")
    if request.shape is not None:
        param = "text.format" if request.api == "responses" else "response_format"
        raise RequestError(f"{param}: not accepted, since the agent sets the format of its answer", param=param)
    *before, last = request.turns
    if last.role != "user":
        raise RequestError(f"{request.turns_param}: the last turn must be the user's", param=request.turns_param)
    prompt = [*_parts(last)]
    return prompt, [_message(turn) for turn in before]


def _message(turn: Turn) -> Message:
    parts = [*_parts(turn)]
    attachments = tuple(part for part in parts if isinstance(part, Attachment))
    return Message(turn.role, "\n\n".join(part for part in parts if isinstance(part, str)), attachments=attachments)


def _parts(turn: Turn) -> Iterator[str | Attachment]:
    for part in turn.parts:
        match part:
            case Image(url=url) | File(url=url) if url:
                try:
                    yield Attachment(url, part.name or "" if isinstance(part, File) else "")
                except ConfigError as error:
                    raise part.refuse(str(error)) from None
            case Text() | File():
                yield text_of(part) or ""
            case _:
                raise RequestError("tool calls and results are not accepted: send the text of the conversation only")
