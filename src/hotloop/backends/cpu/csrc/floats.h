// Rows of floats times weights that are, or become, floats: for `exact`, and for weights that are held in no other way.
//
// A column of a row is summed over K in its order by one chain of multiply-adds, wherever K is cut and whatever other rows are
// there: batching changes no bit of a result.

#pragma once

#include <algorithm>
#include <vector>

#include "quants.h"

constexpr int FLOAT_BLOCK = 16;
constexpr int FLOAT_ROWS = LANE_BYTES == 64 ? FLOAT_BLOCK : LANE_BYTES == 32 ? 5 : 6;  // as many as registers hold sums of
constexpr int FLOAT_CHUNK = 128;  // of K: a panel of so many becomes floats at once, which stay in the first cache

// A group of a strip, [32 neighbours][columns of a panel].
inline void widen_group(const Strip& strip, const uint8_t* group, float* to) {
    alignas(64) Code codes[WORD_ROWS][STRIP * 4];
    unpack_codes(strip, group, codes);
    const half *scales = (const half*)group, *mins = scales + strip.num_scales();
    const int center = IS_SIGNED ? 0 : strip.info.center;
    for (int row = 0; row < WORD_ROWS; row++)
        for (int column = 0; column < STRIP; column += NUM_LANES) {
            const int of = (strip.info.has_halves ? row / 4 * STRIP : 0) + column;
            const Floats scale = load_floats(scales + of), min = strip.info.has_mins ? load_floats(mins + of) : Floats{};
            Words words;
            memcpy(&words, codes[row] + column * 4, sizeof(words));
            for (int i = 0; i < 4; i++) {
                const Words code = IS_SIGNED ? words << (24 - 8 * i) >> 24 : (words >> 8 * i & 255) - center;
                store_floats(to + (row * 4 + i) * PANEL_COLUMNS + column, __builtin_convertvector(code, Floats) * scale - min);
            }
        }
}

// Tiles of bf16, a step of K.
inline void widen_tiles(const uint8_t* tiles, float* to) {
    for (int half = 0; half < 2; half++)
        for (int word = 0; word < 16; word++) {
            Bits both;
            memcpy(&both, tiles + half * TILE_BYTES + word * STEP_BYTES, sizeof(both));
            float* at = to + 2 * word * PANEL_COLUMNS + half * TILE_COLUMNS;
            store(at, (Vector)(both << 16)), store(at + PANEL_COLUMNS, (Vector)(both & 0xffff0000));
        }
}

// Numbers [k, k + count) of a panel, [number][column]: where they stand, or widened in `room`. k is a multiple of 32.
inline const float* floats_of(const Weights& w, int panel, int k, int count, float* room) {
    if (w.format == Format::F32) return w.floats(panel) + (size_t)k * PANEL_COLUMNS;
    for (int at = 0; at < count; at += GROUP) {
        float* to = room + at * PANEL_COLUMNS;
        if (w.format == Format::BF16) widen_tiles(w.place(panel, (k + at) / GROUP), to);
        else
            for (int half = 0; half < 2; half++) {
                const Strip& strip = w.strips[2 * panel + half];
                widen_group(strip, strip.group((k + at) / GROUP), to + half * STRIP);
            }
    }
    return room;
}

// Rows of floats side by side, sixteen to a block, so that one register of the CPU points at all: [row / 16][K][row % 16].
struct FloatRows {
    int width = 0;
    std::vector<float> numbers;

    void resize(int num_rows, int size) {
        width = size;
        numbers.resize((size_t)divide_up(num_rows, FLOAT_BLOCK) * FLOAT_BLOCK * width);
    }
    float* at(int row, int k) { return &numbers[((size_t)row / FLOAT_BLOCK * width + k) * FLOAT_BLOCK + row % FLOAT_BLOCK]; }
    const float* at(int row, int k) const { return const_cast<FloatRows*>(this)->at(row, k); }
};

// 16 sums of each of N rows of a block += rows * weights, [count][columns of a panel]
template <int N>
void add_floats(const float* rows, const float* weights, int count, float* const* to) {
    constexpr int M = TILE_COLUMNS / NUM_LANES;
    Floats sums[N][M];
    for (int n = 0; n < N; n++)
        for (int i = 0; i < M; i++) sums[n][i] = load_floats(to[n] + i * NUM_LANES);
    for (int k = 0; k < count; k++, rows += FLOAT_BLOCK, weights += PANEL_COLUMNS) {
        Floats span[M];
        for (int i = 0; i < M; i++) span[i] = load_floats(weights + i * NUM_LANES);
        for (int n = 0; n < N; n++)
            for (int i = 0; i < M; i++) sums[n][i] = times_plus(all(rows[n]), span[i], sums[n][i]);
    }
    for (int n = 0; n < N; n++)
        for (int i = 0; i < M; i++) store_floats(to[n] + i * NUM_LANES, sums[n][i]);
}

// Rows [begin, end) times numbers [k, k + count) of a panel; out(row, half): its 16 sums so far.
template <typename Out>
void multiply_floats(const FloatRows& rows, int begin, int end, const float* weights, int k, int count, Out out) {
    for (int half = 0; half < 2; half++)
        for (int row = begin; row < end;) {
            const int left = std::min(end, (row / FLOAT_BLOCK + 1) * FLOAT_BLOCK) - row;
            auto multiply = [&]<int N>() {
                float* to[N];
                for (int n = 0; n < N; n++) to[n] = out(row + n, half);
                add_floats<N>(rows.at(row, k), weights + half * TILE_COLUMNS, count, to);
                row += N;
            };
            if (left >= FLOAT_ROWS) multiply.template operator()<FLOAT_ROWS>();
            else if (left >= 4) multiply.template operator()<4>();
            else if (left >= 2) multiply.template operator()<2>();
            else multiply.template operator()<1>();
        }
}
