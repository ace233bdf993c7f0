"""Everything that can go wrong, as one tree.

HotloopError
├── ConfigError          a setting is wrong or contradicts another
├── ModelError           a model cannot be found, read or run
├── RequestError         the caller asked for something impossible
│   ├── PromptTooLong    prompt and answer do not fit the context
│   └── UnknownModel     no model of that name is served here
├── Overloaded           too much is waiting already: try again later
├── Unavailable          a part of this server does not answer: try again
├── EngineClosed         the engine is shutting down or has shut down
├── BackendError         the hardware failed under a step
│   └── DeviceLost       and will not run again in this process
└── RemoteError          a server elsewhere could not be reached, refused, or broke off

`None` means "not now", an `assert` means "our bug"; one of these means the caller or the world.
"""

import re

_BREAKS = re.compile("\\s*[\n\r\t\v\f\x85\u2028\u2029]\\s*")
_CONTROLS = re.compile("[\0-\x1f\x7f-\x9f]")
_MAX_CHARS = 4000


class HotloopError(Exception):
    """The root: `str(error)` is one clear line for a person, whatever it quotes of a file or an answer."""

    def __str__(self) -> str:
        said = super().__str__()
        if len(said) > _MAX_CHARS:
            said = said[:_MAX_CHARS] + "…"
        return _CONTROLS.sub(lambda found: repr(found[0])[1:-1], _BREAKS.sub(" ", said))


class ConfigError(HotloopError):
    """A setting is wrong or contradicts another."""


class ModelError(HotloopError):
    """A model cannot be found, read or run; the message says what and where."""


class RequestError(HotloopError):
    """The caller asked for something impossible. `param` names the field at fault."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLong(RequestError):
    """Prompt and answer do not fit the context; both numbers are in the message, which begins as OpenAI's does: by
    these words clients tell that a conversation has to be compacted. `is_least`: the prompt was not tokenized to its
    end."""

    def __init__(self, num_prompt: int, max_context: int, num_output: int = 0, *, is_least: bool = False) -> None:
        self.num_prompt = num_prompt
        least = "at least " if is_least else ""
        wanted = f"{least}{num_prompt} prompt tokens" + (f" and {num_output} to generate" if num_output else "")
        limit = f"this model's maximum context length is {max_context} tokens"
        super().__init__(f"{limit}: {wanted} do not fit", param="messages")


class UnknownModel(RequestError):
    """No model of that name is served here."""

    def __init__(self, name: str, served: str) -> None:
        super().__init__(f"the model {name!r} does not exist; this server has {served!r}", param="model")


class Overloaded(HotloopError):
    """Too much is waiting already; `retry_after_s` is an honest guess of when what waits will be done, a minute at
    most: clients do not wait for longer."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = min(retry_after_s, 60.0)


class Unavailable(HotloopError):
    """A part of this server does not answer, through no fault of the request; it is being replaced."""


class EngineClosed(HotloopError):
    """The engine is shutting down or has shut down."""


class BackendError(HotloopError):
    """The hardware failed under a step; every request of that step ends with this."""


class DeviceLost(BackendError):
    """The device refuses everything from now on, as CUDA does after a bad access: only a new process can use it."""


class RemoteError(HotloopError):
    """A server elsewhere could not be reached, refused, or broke off; `status` is what it answered, if it did.

    `can_retry` says whether the same question may go better another time, `retry_after_s` when, if the server told.
    """

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_s: float | None = None, can_retry: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.can_retry = can_retry
