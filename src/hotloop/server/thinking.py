"""What a request asks of the model's thoughts, and how thoughts that were given out are known again.

Nothing is secret about a thought, which its client has been shown. Anthropic's clients want a signature and give it
back: here it is a digest of the text, so that a thought is taken back where the model of any replica wrote it, and not
where another maker's did or somebody changed it. OpenAI's may ask for `encrypted_content`: that is the text itself, not
encrypted, since such clients give nothing else back.
"""

import base64
import binascii
import hashlib
from dataclasses import replace

from hotloop.core.message import Thought

_OWN = "hotloop:"


def sign(thought: Thought) -> Thought:
    """As an answer in Anthropic's API has it."""
    return replace(thought, signature=_OWN + _digest(thought.text), maker="messages")


def seal(thought: Thought) -> Thought:
    """As a reasoning item with `encrypted_content` has it."""
    return replace(thought, signature=_OWN + base64.b64encode(thought.text.encode()).decode())


def take_back(thought: Thought) -> Thought | None:
    """A thought that comes back, for the model to read; None if another maker's model wrote it."""
    if not thought.maker:
        return thought
    own = thought.signature.removeprefix(_OWN) if thought.signature.startswith(_OWN) else None
    if own is None:
        return None
    if thought.maker == "messages":
        return Thought(thought.text) if own == _digest(thought.text) else None
    try:
        return Thought(base64.b64decode(own, validate=True).decode())
    except (binascii.Error, UnicodeDecodeError):
        return None


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()
