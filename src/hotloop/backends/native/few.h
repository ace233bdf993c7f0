// int8 weights times a few rows, as in decoding, by vectors: widening them to tiles would take longer than reading them.
//
// 16 bytes of a panel are two numbers of each of 8 columns, and go with the same two numbers of a row. So a panel has
// four sums of each row, of which neighbours belong together:
//
//     [column 0: even, odd][column 1: even, odd] ... [column 7: even, odd]

#pragma once

#include "quants.h"

constexpr int MAX_FEW_ROWS = 4, QUARTERS = 4;
constexpr int FETCH_BYTES = 4096;  // how far ahead weights are fetched

using Longs = int64_t __attribute__((vector_size(64)));

// Two floats, over and over.
inline Vector repeat_pair(const float* from) {
    int64_t bits;
    memcpy(&bits, from, sizeof(bits));
    return (Vector)(Longs{} + bits);
}

// rows: the first block of them in the order of tiles. sums: as `multiply` leaves them.
template <int NUM_ROWS>
void multiply_few(const Weights& w, int panel, const uint8_t* rows, float* sums) {
    Vector totals[NUM_ROWS][QUARTERS] = {};
    for (int step = 0; step < w.num_steps; step++, rows += PAIR_BYTES) {
        const auto* from = (const int8_t*)w.place(panel, step);
        for (int i = 0; i < PAIR_NUMBERS; i += 64) __builtin_prefetch(from + FETCH_BYTES + i, 0, 3);
        alignas(64) float numbers[NUM_ROWS][STEP];
        for (int row = 0; row < NUM_ROWS; row++)
            for (int i = 0; i < STEP; i += LANES)
                store(numbers[row] + i, load((const uint16_t*)(rows + row * STEP_BYTES) + i));
        for (int pair = 0; pair < STEP / 2; pair++)
            for (int quarter = 0; quarter < QUARTERS; quarter++) {
                const Vector weights = load(from + quarter / 2 * TILE_NUMBERS + pair * 32 + quarter % 2 * 16);
                for (int row = 0; row < NUM_ROWS; row++)
                    totals[row][quarter] += weights * repeat_pair(numbers[row] + 2 * pair);
            }
    }
    for (int row = 0; row < NUM_ROWS; row++)
        for (int quarter = 0; quarter < QUARTERS; quarter++) {
            float* to = sums + quarter / 2 * 256 + row * 16 + quarter % 2 * 8;
            for (int i = 0; i < 8; i++) to[i] = totals[row][quarter][2 * i] + totals[row][quarter][2 * i + 1];
        }
}

inline void multiply_few(const Weights& w, int panel, const uint8_t* rows, int num_rows, float* sums) {
    constexpr decltype(&multiply_few<1>) by_rows[] = {multiply_few<1>, multiply_few<2>, multiply_few<3>, multiply_few<4>};
    by_rows[num_rows - 1](w, panel, rows, sums);
}
