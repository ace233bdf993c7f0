"""A front's end of the state that fronts share: changes go to the engine's process, which passes them on to others.

    front A   change ──> hub ──> front B, C ...     in the order in which they come to the hub, before what B asks next

What cannot be encoded, such as a number of a schema that is too large, is known to its own front alone.
"""

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from hotloop.core.sharing import Value
from hotloop.server.fronts.messages import SharedChange

log = logging.getLogger("hotloop.fronts")


class FrontSharing:
    """A `Sharing`. `send` may be called from any thread."""

    is_alone = False

    def __init__(self, send: Callable[[msgspec.Struct], None]) -> None:
        self._send = send
        self._encoder = msgspec.msgpack.Encoder()
        self._topics: dict[str, tuple[msgspec.msgpack.Decoder[Any], Callable[[Any], None]]] = {}

    def share(self, topic: str, kind: type[Value], apply: Callable[[Value], None]) -> Callable[[Value], None]:
        assert topic not in self._topics
        self._topics[topic] = msgspec.msgpack.Decoder(kind), apply

        def apply_everywhere(value: Value) -> None:
            apply(value)
            try:
                data = self._encoder.encode(value)
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                log.debug("a change of %s is not shared: %s", topic, error)
            else:
                self._send(SharedChange(topic, msgspec.Raw(data)))

        return apply_everywhere

    def take(self, change: SharedChange) -> None:
        """What another front has changed."""
        decoder, apply = self._topics[change.topic]
        apply(decoder.decode(change.value))
