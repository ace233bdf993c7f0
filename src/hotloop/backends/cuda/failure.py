"""What PyTorch says when the GPU fails, as errors of ours."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hotloop.core.errors import BackendError, DeviceLost


@contextmanager
def hardware() -> Iterator[None]:
    """PyTorch's errors as ours; the first line says what is wrong."""
    try:
        yield
    except RuntimeError as error:
        kind = DeviceLost if _is_lost() else BackendError
        raise kind(f"the GPU failed: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "no reason given")


def _is_lost() -> bool:
    """Whether CUDA refuses to go on: then it says the same of whatever it is asked."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
