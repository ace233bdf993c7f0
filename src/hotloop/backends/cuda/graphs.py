"""Steps captured as CUDA graphs: launching each of hundreds of kernels by itself takes the host 12 to 19 ms, longer
than the device needs to run them, unless they read a lot.

A graph is captured for a shape, and serves every step that fits into it. There are graphs for steps that only decode or
verify drafts, and mixed ones, for steps that read prompts as well; for several sequences there is a second one of each,
for steps in which they share blocks. All are captured at start, so that no request waits for one.
"""

from collections.abc import Callable
from functools import partial

import torch
from cachetools import FIFOCache

from hotloop.backends.cuda.decoder import Decoder
from hotloop.backends.cuda.steps.groups import Sharing
from hotloop.backends.cuda.steps.splits import Splitting
from hotloop.backends.cuda.steps.step import MAX_SHORT_ROWS, MIXED_SHORT_ROWS, Shape, view_parts
from hotloop.backends.cuda.steps.tiles import Tiling

_COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_RATIOS = (1, 2, 4, 8)  # rows a sequence, on average
_MAX_ROWS = 512

# Products of other numbers of rows take cuBLAS as long as of the next larger one here, or longer: measured on an H200.
MIXED_ROWS = (64, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048)
_MIXED_COUNTS = (1, 8, 64)
_WIDE_ROWS = (128, 512, 2048)  # where one has more
_WIDE_COUNTS = (8,)
_MIN_SHARING = 64  # sequences of a mixed step
MAX_LONG = 16
MAX_TABLE_WIDTH = 2048
_MAX_KNOWN = 4096  # shapes of steps whose graph is not looked for again


def shapes_for(
    max_sequences: int,
    max_rows: int,
    splitting: Splitting,
    *,
    table_width: int = 0,
    sharing: Sharing | None = None,
    tiling: Tiling | None = None,
) -> list[Shape]:
    """Every shape there is a graph for, the smallest first. One sequence may have a few times its share of rows."""
    shapes = [
        Shape(count, count * ratio, min(4 * ratio, MAX_SHORT_ROWS) if ratio > 1 else 1, splitting.max_splits(count))
        for count in _up_to(max_sequences, _COUNTS)
        for ratio in _RATIOS
        if count * ratio <= _MAX_ROWS or ratio == 1
    ]
    for counts, rows, short_rows in (
        (_MIXED_COUNTS, MIXED_ROWS, MIXED_SHORT_ROWS),
        (_WIDE_COUNTS, _WIDE_ROWS, MAX_SHORT_ROWS),
    ):
        shapes += [
            Shape(
                count, num_rows, short_rows, splitting.max_splits(count), num_long=MAX_LONG, max_long_rows=num_rows,
                num_tile_lines=tiling.max_lines(num_rows, MAX_LONG) if tiling else 0,
                table_width=min(table_width, MAX_TABLE_WIDTH),
            )
            for count in _up_to(max_sequences, counts)
            for num_rows in rows
            if num_rows <= max_rows
        ]  # fmt: skip
    if sharing:
        several = (shape for shape in shapes if shape.num_short >= (_MIN_SHARING if shape.num_long else 2))
        shapes += [shape._replace(num_items=sharing.num_items(shape.num_short_rows)) for shape in several]
    return sorted(shapes, key=lambda shape: (shape.num_long, *shape[1:3], shape.num_short, shape.num_items))


def _up_to(most: int, counts: tuple[int, ...]) -> list[int]:
    return [*(count for count in counts if count < most), most]


class Graphs:
    """Captured over one buffer of indexes and one of chosen tokens, which every step overwrites. Without CUDA nothing
    is captured, but padded all the same, so that it can be tested on a CPU.
    """

    def __init__(self, decoder: Decoder, indexes: torch.Tensor, chosen: torch.Tensor, shapes: list[Shape]) -> None:
        self._shapes = shapes
        self._fitting: FIFOCache[Shape, Shape | None] = FIFOCache(_MAX_KNOWN)
        self._graphs: dict[Shape, Callable[[], torch.Tensor]] = {}
        pool = torch.cuda.graph_pool_handle() if indexes.is_cuda else None
        for shape in reversed(shapes):  # the largest first: the others fit into its memory
            views = view_parts(indexes, shape)
            indexes.zero_()  # the first step is of padding alone: it reads and stores nothing, whatever the blocks hold
            views.slots.fill_(-1)
            views.sources.fill_(-1)
            forward = partial(decoder.forward, views, chosen, shape)
            self._graphs[shape] = _capture(forward, pool) if pool else forward

    def fitting(self, step: Shape) -> Shape | None:
        """The smallest graph that a step of this shape fits into. One without room for what is shared is better than
        none.
        """
        if step not in self._fitting:
            wanted = (step, step._replace(num_items=0))
            self._fitting[step] = next((shape for each in wanted for shape in self._shapes if shape.fits(each)), None)
        known: Shape | None = self._fitting[step]
        return known

    def replay(self, shape: Shape) -> torch.Tensor:
        """The logits that were asked for, and the padding after them, until the next replay of any shape."""
        return self._graphs[shape]()


def _capture(forward: Callable[[], torch.Tensor], pool: tuple[int, int]) -> Callable[[], torch.Tensor]:
    forward()  # compiles what is not compiled yet
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # NCCL has threads of its own
        hidden = forward()

    def replay() -> torch.Tensor:
        graph.replay()
        return hidden

    return replay
