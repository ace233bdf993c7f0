"""Steps that only decode or verify drafts, captured as CUDA graphs: launching each of hundreds of kernels by itself
would take the host longer than the device needs to run them.

A graph is captured for a number of sequences and rows, and serves every step that fits into it; for several sequences
there is a second one, for steps in which they share blocks. All are captured at start, so that no request waits for
one.
"""

import torch

from hotloop.backends.cuda.decoder import Decoder
from hotloop.backends.cuda.groups import Sharing
from hotloop.backends.cuda.step import MAX_SHORT_ROWS, Extent, Shape, view_parts

_COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_RATIOS = (1, 2, 4, 8)  # rows a sequence, on average
_MAX_ROWS = 512


def shapes_for(max_sequences: int, sharing: Sharing | None = None) -> list[Shape]:
    """Every shape there is a graph for, the smallest first. One sequence may have a few times its share of rows."""
    counts = [count for count in _COUNTS if count < max_sequences]
    counts.append(max_sequences)
    shapes = [
        Shape(count, count * ratio, min(4 * ratio, MAX_SHORT_ROWS) if ratio > 1 else 1)
        for count in counts
        for ratio in _RATIOS
        if count * ratio <= _MAX_ROWS or ratio == 1
    ]
    if sharing:
        several = (shape for shape in shapes if shape.num_sequences > 1)
        shapes += [shape._replace(num_items=sharing.num_items(shape.num_rows)) for shape in several]
    return sorted(shapes, key=lambda shape: (shape.num_rows, shape.max_rows, shape.num_sequences, shape.num_items))


class Graphs:
    """Captured over one buffer of indexes and one of chosen tokens, which every step overwrites."""

    def __init__(
        self,
        decoder: Decoder,
        indexes: torch.Tensor,
        chosen: torch.Tensor,
        max_sequences: int,
        sharing: Sharing | None,
    ) -> None:
        self._shapes = shapes_for(max_sequences, sharing)
        self._graphs: dict[Shape, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        pool = torch.cuda.graph_pool_handle()
        for shape in reversed(self._shapes):  # the largest first: the others fit into its memory
            self._graphs[shape] = _capture(decoder, indexes, chosen, shape, pool)

    def fitting(self, wanted: Shape) -> Shape | None:
        """The smallest graph that a step of this shape fits into."""
        fits = (shape for shape in self._shapes if all(a >= b for a, b in zip(shape, wanted, strict=True)))
        return next(fits, None)

    def replay(self, shape: Shape) -> torch.Tensor:
        """What the wanted rows come to, and the padding after them, until the next replay of any shape."""
        graph, hidden = self._graphs[shape]
        graph.replay()
        return hidden


def _capture(
    decoder: Decoder, indexes: torch.Tensor, chosen: torch.Tensor, shape: Shape, pool: tuple[int, int]
) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A step of padding alone: it reads nothing and stores nothing, whatever the blocks hold."""
    views = view_parts(indexes, shape.num_sequences, shape.num_rows, shape.num_items)
    indexes.zero_()
    views.slots.fill_(-1)
    views.sources.fill_(-1)
    extent = Extent(shape.num_sequences, shape.num_rows, shape.max_rows, num_items=shape.num_items)
    decoder.forward(views, chosen, extent)  # compiles what is not compiled yet
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # NCCL has threads of its own
        hidden = decoder.forward(views, chosen, extent)
    return graph, hidden
