"""What everything that writes a chat has to know: whom it is for, and where to say what was lost."""

from dataclasses import dataclass

from hotloop.router.translate.field import Field, Json
from hotloop.router.translate.notes import Notes


@dataclass(frozen=True, slots=True)
class Writing:
    notes: Notes
    is_strict: bool
    """Whether the replica refuses fields it does not know, as OpenAI's own API does and engines do not."""

    def mark(self, block: Field, part: Json) -> Json:
        """The part with the block's `cache_control`: no field of the API, but gateways read it there."""
        control = block.get("cache_control")
        if control is None:
            return part
        if self.is_strict:
            self.lose_mark(block)
            return part
        return {**part, "cache_control": dict(control.object())}

    def lose_mark(self, block: Field) -> None:
        if block.get("cache_control"):
            self.notes.add("cache_control left out: the replica's API has no place for it")
