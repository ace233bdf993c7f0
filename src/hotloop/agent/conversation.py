"""What was said: append-only but for compaction, so that every prompt begins as the one before it did."""

import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from hotloop.core.errors import ConfigError
from hotloop.core.files import write_private
from hotloop.core.message import Attachment, Message
from hotloop.core.structs import compiled

_BYTES_PER_TOKEN = 2
_ATTACHMENT_TOKENS = 1_500
"""What a large image or a page costs with most models."""

Prompt = str | Sequence[str | Attachment]
"""A text, or texts with images and files, which come behind it."""

Mark = tuple[tuple[Message, ...], int]


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens of a text without its tokenizer.

    At two bytes per token this is too high for prose and code, which have three to four. It is too low for digits and
    base64, by a factor of two at most, since a token has at least one byte.
    """
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


def max_bytes(num_tokens: int) -> int:
    """The length of the longest text that is estimated at `num_tokens`."""
    return num_tokens * _BYTES_PER_TOKEN


def user_message(prompt: Prompt, notes: str = "") -> Message:
    parts = [prompt] if isinstance(prompt, str) else prompt
    texts = [*(part for part in parts if isinstance(part, str)), *([notes] if notes else [])]
    attachments = tuple(part for part in parts if isinstance(part, Attachment))
    return Message("user", "\n\n".join(texts), attachments=attachments)


def estimate_message(message: Message) -> int:
    calls = "".join(call.name + call.arguments for call in message.tool_calls)
    words = estimate_tokens(message.content + calls + "".join(thought.text for thought in message.thoughts))
    return words + _ATTACHMENT_TOKENS * len(message.attachments)


class Conversation:
    """Messages, and the session they belong to, by which a server keeps its cache."""

    def __init__(self, messages: Iterable[Message] = (), *, session_id: str | None = None) -> None:
        self.session_id = session_id or f"session-{secrets.token_hex(8)}"
        self.num_tokens = 0
        """Size of the next prompt: as the server counted up to the last answer, and an estimate of what came since."""
        self._messages: list[Message] = []
        self.add(*messages)

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, *messages: Message) -> None:
        self._messages += messages
        self.num_tokens += sum(map(estimate_message, messages))

    def replace(self, messages: Iterable[Message]) -> None:
        """For compaction: all that changed has to be recomputed."""
        self._messages, self.num_tokens = [], 0
        self.add(*messages)

    def mark(self) -> Mark:
        """The state that `rewind` goes back to."""
        return self.messages, self.num_tokens

    def rewind(self, mark: Mark) -> None:
        """Go back to an earlier state, after a turn that failed."""
        messages, self.num_tokens = mark
        self._messages = list(messages)

    def fork(self) -> "Conversation":
        """A branch that begins the same. Its session is `session-1/2`: routers keep branches of a session together."""
        branch = Conversation(self._messages, session_id=f"{self.session_id}/{secrets.token_hex(4)}")
        branch.num_tokens = self.num_tokens
        return branch

    def to_json(self) -> str:
        return msgspec.json.encode(_Saved(self.session_id, self._messages, self.num_tokens)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Conversation":
        """Raises ConfigError if it is no saved conversation."""
        try:
            saved = msgspec.json.decode(text, type=_Saved)
        except msgspec.DecodeError as error:
            raise ConfigError(f"not a saved conversation: {error}") from None
        conversation = cls(saved.messages, session_id=saved.session_id)
        conversation.num_tokens = saved.num_tokens or conversation.num_tokens
        return conversation

    def save(self, path: Path | str) -> None:
        """Replace the file in one step, readable by its owner only."""
        write_private(Path(path), self.to_json())

    @classmethod
    def load(cls, path: Path | str) -> "Conversation":
        return cls.from_json(Path(path).read_bytes())


@compiled
class _Saved(msgspec.Struct):
    session_id: str
    messages: list[Message]
    num_tokens: int = 0
