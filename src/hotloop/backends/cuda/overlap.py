"""Launches that overlap: a kernel begins while the one in front ends, and waits before it touches what others make.

    front    | work ................ |
    behind            | own weights .| wait | work ................ |

So the first weights of a product are on their way before its input is there. A kernel lets the next begin at once; that
one sees all that came before, for every program waits, those that have nothing to do as well: a kernel that ended
without would end before the one in front of it. What is read before the wait is written by no kernel of the step.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@cache
def overlap(device: torch.device) -> dict[str, bool]:
    """How to launch a kernel with a parameter `is_overlapped`: Hopper is the first that can."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0):
        return {"is_overlapped": True, "launch_pdl": True}
    return {"is_overlapped": False}


@triton.jit
def let_next_begin(is_overlapped: tl.constexpr):
    if is_overlapped:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(is_overlapped: tl.constexpr):
    if is_overlapped:
        gdc_wait()
