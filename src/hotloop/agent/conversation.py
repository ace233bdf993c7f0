"""What was said: append-only but for compaction, so that every prompt begins as the one before it did."""

import secrets
from collections.abc import Iterable
from pathlib import Path

import msgspec

from hotloop.core.errors import ConfigError
from hotloop.core.files import write_private
from hotloop.core.message import Message


class Conversation:
    """Messages, and the session they belong to, by which a server keeps its cache."""

    def __init__(self, messages: Iterable[Message] = (), *, session_id: str | None = None) -> None:
        self.session_id = session_id or f"session-{secrets.token_hex(8)}"
        self.num_tokens = 0
        """What its last prompt and answer had, as far as a server said: by that it outgrows a window."""
        self._messages = list(messages)

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, *messages: Message) -> None:
        self._messages += messages

    def replace(self, messages: Iterable[Message]) -> None:
        """For compaction: all that changed has to be recomputed."""
        self._messages = list(messages)
        self.num_tokens = 0

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
        conversation.num_tokens = saved.num_tokens
        return conversation

    def save(self, path: Path | str) -> None:
        """Only its owner may read the file."""
        write_private(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: Path | str) -> "Conversation":
        return cls.from_json(Path(path).read_bytes())


class _Saved(msgspec.Struct):
    session_id: str
    messages: list[Message]
    num_tokens: int = 0
