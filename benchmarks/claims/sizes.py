"""How many weights a model has: what a reader needs to know of two models that were given by their paths."""

from hotloop.models.layout import num_active_weights
from hotloop.models.model import load_model


def size_of(name: str) -> str:
    """Such as 1.5B or 135M; embedding and head count once, as where they are the same."""
    spec = load_model(name).spec
    num_weights = num_active_weights(spec) + spec.vocab_size * spec.hidden_size
    return f"{num_weights / 1e9:.1f}B" if num_weights >= 1e9 else f"{num_weights / 1e6:.0f}M"
