"""From logits to tokens without leaving the device. A token depends on its row, never on the batch.

Draws are Gumbel-max with noise addressed by (seed of the row, token id), so what is drawn does not depend on how the
row is split over programs. The cuts need no sort: what they leave is all tokens from some logit up, so the token that
the noise puts first is drawn if it is among them, and else the first of those with a larger logit is asked. That is
the first of all tokens that are left, mostly after one or two looks at the row.
"""

import torch
import triton
import triton.language as tl

_PART = 4096  # tokens of a program of the first stage
_GROUP = 128  # tokens whose peak is kept: bounds the k-th largest logit well
_TILE = 8192  # tokens of a row looked at together by the second stage
_LEAST_HEAT = tl.constexpr(1e-5)  # a colder division could overflow


def adjust(
    logits: torch.Tensor,  # [rows, vocab_size]
    rows: torch.Tensor,  # [num] int32
    tokens: torch.Tensor,  # [num] int32; a (row, token) comes once
    repetition: torch.Tensor,  # [num] float32; 1: none
    addend: torch.Tensor,  # [num] float32
) -> None:
    """Penalties and biases, in place: the repetition penalty first, as it depends on the sign."""
    tile = 256
    if len(rows):
        grid = (triton.cdiv(len(rows), tile),)
        _adjust[grid](logits, rows, tokens, repetition, addend, len(rows), logits.shape[1], tile)


@triton.jit(do_not_specialize=["num"], do_not_specialize_on_alignment=["rows", "tokens", "repetition", "addend"])
def _adjust(logits, rows, tokens, repetition, addend, num, vocab_size: tl.constexpr, tile: tl.constexpr):
    i = tl.program_id(0) * tile + tl.arange(0, tile)
    is_in = i < num
    row = tl.load(rows + i, mask=is_in, other=0)
    at = logits + row.to(tl.int64) * vocab_size + tl.load(tokens + i, mask=is_in, other=0)
    penalty = tl.load(repetition + i, mask=is_in, other=1.0)
    value = tl.load(at, mask=is_in, other=0.0)
    value = tl.where(value > 0, value / penalty, value * penalty) + tl.load(addend + i, mask=is_in, other=0.0)
    tl.store(at, value, mask=is_in)


def apply_masks(logits: torch.Tensor, mask_rows: torch.Tensor, masks: torch.Tensor) -> None:
    """Forbid tokens, in place. Mask m (int32 words, lowest bit first: 1 may come) is for row mask_rows[m]."""
    num_masks, num_words = masks.shape
    assert num_words == triton.cdiv(logits.shape[1], 32)
    tile = 64
    if num_masks:
        _apply_masks[(num_masks, triton.cdiv(num_words, tile))](
            logits, mask_rows, masks, logits.shape[1], num_words, tile
        )


@triton.jit(do_not_specialize_on_alignment=["mask_rows"])
def _apply_masks(
    logits, mask_rows, masks, vocab_size: tl.constexpr, num_words: tl.constexpr, tile: tl.constexpr
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(mask_rows + index).to(tl.int64)
    word = tl.program_id(1) * tile + tl.arange(0, tile)
    bits = tl.load(masks + index * num_words + word, mask=word < num_words, other=0)
    bit = tl.arange(0, 32)[None, :]
    token = word[:, None] * 32 + bit
    is_forbidden = ((bits[:, None] >> bit) & 1) == 0
    forbidden = tl.full([tile, 32], float("-inf"), tl.float32)
    tl.store(logits + row * vocab_size + token, forbidden, mask=is_forbidden & (token < vocab_size))


def choose(
    logits: torch.Tensor,  # [rows, vocab_size] float32
    temperature: torch.Tensor,  # [rows] float32; 0: the likeliest, the first of several
    top_k: torch.Tensor,  # [rows] int32; 0: all
    top_p: torch.Tensor,  # [rows] float32; 1: all
    min_p: torch.Tensor,  # [rows] float32; 0: all
    seeds: torch.Tensor,  # [rows] int64, of request and position
    out: torch.Tensor,  # [rows] int32; -1: the row has a NaN, an infinity or no token that may come
    *,
    is_random: bool,
    has_cuts: bool,
) -> torch.Tensor:
    """A token for each row, with the cuts of `backends.sampler`: top_k, then min_p, then top_p of what is left.

    Tokens that weigh the same as the last kept one are kept too. `is_random` says that some temperature is above 0,
    `has_cuts` that some such row has a cut.
    """
    num_rows, vocab_size = logits.shape
    num_parts = triton.cdiv(vocab_size, _PART)
    num_groups = num_parts * (_PART // _GROUP)
    peaks, scores = (logits.new_empty((num_rows, num_parts)) for _ in range(2))  # each aligned, however many rows
    tokens = out.new_empty((num_rows, num_parts))
    group_peaks = logits.new_empty((num_rows, num_groups)) if has_cuts else None
    _look_through[(num_rows, num_parts)](
        logits, temperature, seeds, peaks, scores, tokens, group_peaks, vocab_size, _PART, _GROUP, is_random
    )
    _settle[(num_rows,)](
        logits, temperature, top_k, top_p, min_p, seeds, peaks, scores, tokens, group_peaks, out,
        vocab_size, num_parts, triton.next_power_of_2(num_parts), num_groups, _TILE, num_warps=16 if has_cuts else 1,
    )  # fmt: skip
    return out


@triton.jit
def _look_through(
    logits, temperature, seeds, peaks, scores, tokens, group_peaks,
    vocab_size: tl.constexpr, part: tl.constexpr, group: tl.constexpr, is_random: tl.constexpr,
):  # fmt: skip
    """Program (row, part of it): its largest logit, NaN if there is any, and its first token after the noise."""
    row = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1) * part
    at = row * tl.num_programs(1) + tl.program_id(1)
    logit = _load_logits(logits + row * vocab_size, begin, vocab_size, part)
    has_nan = tl.max((logit != logit).to(tl.int32), 0) > 0
    logit = tl.where(logit == logit, logit, float("-inf"))
    tl.store(peaks + at, tl.where(has_nan, float("nan"), tl.max(logit, 0)))
    if group_peaks is not None:
        num_groups: tl.constexpr = part // group
        group_peak = tl.max(tl.reshape(logit, [num_groups, group]), 1)
        tl.store(group_peaks + at * num_groups + tl.arange(0, num_groups), group_peak)
    score = logit
    if is_random:
        heat = tl.load(temperature + row)
        if heat > 0:
            score = _score(logit, heat, tl.load(seeds + row), begin, part)
    best, index = tl.max(score, 0, return_indices=True)
    tl.store(scores + at, best)
    tl.store(tokens + at, begin + index)


@triton.jit
def _settle(
    logits, temperature, top_k, top_p, min_p, seeds, peaks, scores, tokens, group_peaks, out,
    vocab_size: tl.constexpr, num_parts: tl.constexpr, part_tile: tl.constexpr, num_groups: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """Program (row): the best of its parts, and what the cuts make of it."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, part_tile)
    part_peak = tl.load(peaks + row * num_parts + i, mask=i < num_parts, other=float("-inf"))
    has_nan = tl.max((part_peak != part_peak).to(tl.int32), 0) > 0
    peak = tl.max(tl.where(part_peak == part_peak, part_peak, float("-inf")), 0)
    is_valid = (peak > float("-inf")) & (peak < float("inf")) & (has_nan == 0)
    score = tl.load(scores + row * num_parts + i, mask=i < num_parts, other=float("-inf"))
    token = tl.load(tokens + row * num_parts + tl.argmax(score, 0))
    if group_peaks is not None:
        heat = tl.load(temperature + row)
        if is_valid & (heat > 0):
            values = logits + row * vocab_size
            floor = _floor(
                values, group_peaks + row * num_groups, tl.load(top_k + row), tl.load(min_p + row), heat, peak,
                vocab_size, num_groups, tile,
            )  # fmt: skip
            seed, share = tl.load(seeds + row), tl.load(top_p + row)
            token = _cut(values, token, floor, share, heat, seed, peak, vocab_size, tile)
    tl.store(out + row, tl.where(is_valid, token, -1))


@triton.jit
def _floor(values, group_peaks, k, least_share, heat, peak, vocab_size: tl.constexpr, num_groups: tl.constexpr,
           tile: tl.constexpr):  # fmt: skip
    """The least logit that top_k and min_p leave. The likeliest token is always left."""
    floor = tl.full([], float("-inf"), tl.float32)
    if (k > 0) & (k < vocab_size):
        if k <= num_groups:  # so many peaks, so many logits at least
            floor = _kth_largest(group_peaks, k, floor, peak, num_groups, 2048)
        floor = _kth_largest(values, k, floor, peak, vocab_size, tile)
    if least_share > 0:
        floor = tl.maximum(floor, peak + tl.log(least_share) * tl.maximum(heat, _LEAST_HEAT))
    return tl.minimum(floor, peak)


@triton.jit
def _kth_largest(values, k, low, high, num_values: tl.constexpr, tile: tl.constexpr):
    """By bisection whose bounds move from value to value: at least k are >= low, fewer than k are > high.

    Begins at low itself: a good bound is mostly the answer.
    """
    pivot = low
    while low < high:
        num_above = tl.zeros([tile], tl.int32)
        next_above = tl.full([tile], float("inf"), tl.float32)
        next_below = tl.full([tile], float("-inf"), tl.float32)
        for begin in range(0, num_values, tile):
            value = _load_logits(values, begin, num_values, tile)
            is_above = value > pivot
            num_above += is_above.to(tl.int32)
            next_above = tl.minimum(next_above, tl.where(is_above, value, float("inf")))
            next_below = tl.maximum(next_below, tl.where(is_above, float("-inf"), value))
        if tl.sum(num_above, 0) >= k:
            low = tl.min(next_above, 0)
        else:
            high = tl.max(next_below, 0)
        pivot = low * 0.5 + high * 0.5
        pivot = tl.where(pivot < high, pivot, low)
    return low


@triton.jit
def _cut(values, token, floor, share, heat, seed, peak, vocab_size: tl.constexpr, tile: tl.constexpr):
    """The first token after the noise that is neither below the floor nor after the likeliest `share` of the weight."""
    value = tl.load(values + token)
    if value < floor:
        token = _draw(values, floor, float("-inf"), heat, seed, vocab_size, tile)
        value = tl.load(values + token)
    if share < 1:
        limit = share * _weight(values, floor, float("-inf"), heat, peak, vocab_size, tile)
        above = _weight(values, floor, value, heat, peak, vocab_size, tile)
        while (above > 0) & (above >= limit):
            token = _draw(values, floor, value, heat, seed, vocab_size, tile)
            value = tl.load(values + token)
            above = _weight(values, floor, value, heat, peak, vocab_size, tile)
    return token


@triton.jit
def _weight(values, floor, low, heat, peak, vocab_size: tl.constexpr, tile: tl.constexpr):
    """What the tokens with a logit >= floor and > low weigh together; the likeliest weighs 1."""
    total = tl.zeros([tile], tl.float32)
    for begin in range(0, vocab_size, tile):
        value = _load_logits(values, begin, vocab_size, tile)
        weight = tl.exp((value - peak) / tl.maximum(heat, _LEAST_HEAT))
        total += tl.where((value >= floor) & (value > low), weight, 0.0)
    return tl.sum(total, 0)


@triton.jit
def _draw(values, floor, low, heat, seed, vocab_size: tl.constexpr, tile: tl.constexpr):
    """The first token after the noise of those with a logit >= floor and > low, of which there is one."""
    best = tl.full([], float("-inf"), tl.float32)
    token = tl.full([], 0, tl.int32)
    for begin in range(0, vocab_size, tile):
        value = _load_logits(values, begin, vocab_size, tile)
        is_in = (value >= floor) & (value > low)
        if tl.max(is_in.to(tl.int32), 0) > 0:  # noise costs more than a look
            score = tl.where(is_in, _score(value, heat, seed, begin, tile), float("-inf"))
            tile_best, index = tl.max(score, 0, return_indices=True)
            token = tl.where(tile_best > best, begin + index, token)
            best = tl.maximum(best, tile_best)
    return token


@triton.jit
def _load_logits(values, begin, num_values: tl.constexpr, tile: tl.constexpr):
    i = begin + tl.arange(0, tile)
    return tl.load(values + i, mask=i < num_values, other=float("-inf"))


@triton.jit
def _score(logit, heat, seed, begin, tile: tl.constexpr):
    """Logits of tokens [begin, begin + tile) at this temperature, with Gumbel noise: one Philox word a token."""
    a, b, c, d = tl.randint4x(seed, begin // 4 + tl.arange(0, tile // 4))
    word = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))  # token 4 * n + i has word i of n
    uniform = tl.minimum(word.to(tl.uint32, bitcast=True).to(tl.float32) * 2.0**-32 + 2.0**-33, 1 - 2.0**-24)
    # -log(1 - uniform), by its series where 1 - uniform would lose the digits that order the likeliest tokens.
    series = uniform * (1 + uniform * (1 / 2 + uniform * (1 / 3 + uniform * (1 / 4))))
    exponential = tl.where(uniform < 0.01, series, -tl.log(1 - uniform))
    return logit / tl.maximum(heat, _LEAST_HEAT) - tl.log(exponential)
