"""Anthropic's messages and OpenAI's chat and responses, each for replicas that speak only another.

Pure functions of the body and of the bytes that come back. The same conversation one turn longer translates to what it
was, and more: this stands before a prefix cache.
"""

from hotloop.router.translate.translation import StreamTranslation, Translation
from hotloop.router.translate.ways import can_translate, translate

__all__ = ["StreamTranslation", "Translation", "can_translate", "translate"]
