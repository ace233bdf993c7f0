"""What an answer may look like, as a value: two equal grammars are compiled once."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Grammar:
    """A language that the whole answer must belong to."""

    kind: Literal["json_schema", "regex", "lark"]
    """`lark` is llguidance's dialect: `%json {...}` embeds a JSON schema, `<[12]>` is the token with that id."""
    text: str
