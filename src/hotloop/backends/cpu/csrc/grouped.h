// Rows times strips, in integers: rows are rounded to bytes, by a scale for each 32 neighbours.
//
// A row is computed alike whatever else is in the batch. Codes of a few groups are unpacked once for all rows, some of
// which go over them at a time; for few rows they go from memory into products.

#pragma once

#include <algorithm>
#include <vector>

#include "packed_ggml.h"
#include "vectors.h"

constexpr int MAX_ROWS = LANE_BYTES == 64 ? 8 : 4;  // as many as registers hold
constexpr int MAX_FEW_ROWS = 2 * MAX_ROWS;           // for which codes are not unpacked to memory

// 32 neighbours of a row as bytes, which the scale makes numbers of; the sums of each 16; and what the sum of all and those
// sums stand for, negated.
struct alignas(64) RowGroup {
    int8_t bytes[GROUP];
    int32_t sums[2];
    float scale, negated[3];

    // Of all, or of one half.
    float minus(int half, bool has_halves) const { return negated[has_halves ? 1 + half : 0]; }
};

struct GroupedRows {
    int num_groups = 0;
    std::vector<RowGroup> groups;

    void resize(int num_rows, int num_in) {
        num_groups = num_in / GROUP;
        groups.resize((size_t)num_rows * num_groups);
    }
    const RowGroup* at(int row, int group) const { return groups.data() + (size_t)row * num_groups + group; }
};

template <typename Row>
void round_row(GroupedRows& rows, int i, const Row& row) {
    RowGroup* g = rows.groups.data() + (size_t)i * rows.num_groups;
    for (int at = 0; at < rows.num_groups * GROUP; at += GROUP, g++) {
        const Vector first = row.at(at), second = row.at(at + LANES);
        g->scale = largest_of(larger(absolute(first), absolute(second))) / 127.0f;
        const float inverse = g->scale > 0 ? 1.0f / g->scale : 0.0f;
        store(g->bytes, first * inverse), store(g->bytes + LANES, second * inverse);
        for (int half = 0; half < 2; half++) {
            g->sums[half] = 0;
            for (int j = 0; j < 16; j++) g->sums[half] += g->bytes[half * 16 + j];
            g->negated[1 + half] = -g->scale * g->sums[half];
        }
        g->negated[0] = -g->scale * (g->sums[0] + g->sums[1]);
    }
}

// Of products with codes of so many bits, in pairs: how many sums of these fit into 16 bits, of four; 0: not even one.
constexpr int fit_of(int bits) { return bits == 8 ? 0 : bits == 6 ? 2 : 4; }

// Some rows on their way over unpacked groups, for as many columns as registers hold.
template <int NUM_ROWS, bool HAS_HALVES, bool HAS_MINS, int NUM_FIT>
struct Block {
    static constexpr int NUM = LANE_BYTES == 16 ? 2 : 1, COLUMNS = NUM * NUM_LANES;
#if defined(HAS_PAIR_PRODUCTS)
    static constexpr int NUM_SUMS = NUM_ROWS + NUM_ROWS % 2;
#else
    static constexpr int NUM_SUMS = NUM_ROWS;
#endif
    const Unpacked& w;
    const RowGroup* const* rows;
    int column;
    Floats totals[NUM_ROWS][NUM];
    Words sums[NUM_SUMS][NUM];

#if defined(HAS_PAIR_PRODUCTS)
    // Those of two rows over the same two columns stand side by side until `part_rows`.
    void dot_half(const Code* codes, const Sixteen* x) {
        for (int r = 0; r < NUM_SUMS; r += 2) {
            const Sixteen &even = x[r], &odd = x[std::min(r + 1, NUM_ROWS - 1)];
            const Sixteen eights[2] = {first_halves(even, odd), second_halves(even, odd)};
            for (int i = 0; i < 2; i++)
                for (int n = 0; n < NUM; n++) {
                    const Code* four = codes + i * STRIP * 8 + (column + n * NUM_LANES) * 8;
                    sums[r][n] = dot_pairs(sums[r][n], load_codes(four), eights[i]);
                    sums[r + 1][n] = dot_pairs(sums[r + 1][n], load_codes(four + LANE_BYTES), eights[i]);
                }
        }
    }

    void part_rows() {
        for (int r = 0; r < NUM_SUMS; r += 2)
            for (int n = 0; n < NUM; n++) {
                const Words first = sums[r][n], second = sums[r + 1][n];
                sums[r][n] = first_halves(first, second), sums[r + 1][n] = second_halves(first, second);
            }
    }
#else
    template <int I>
    void dot_four(const Code* codes, const Sixteen* x) {
        for (int n = 0; n < NUM; n++) {
            const Codes four = load_codes(codes + I * STRIP * 4 + column * 4 + n * LANE_BYTES);
            for (int r = 0; r < NUM_ROWS; r++) sums[r][n] = dot<I, NUM_FIT == 0>(sums[r][n], four, x[r]);
        }
    }

    void dot_half(const Code* codes, const Sixteen* x) {
#if defined(ADDS_PAIRS)
        for (int n = 0; NUM_FIT && n < NUM; n++) {
            Codes fours[4];
            for (int i = 0; i < 4; i++) fours[i] = load_codes(codes + i * STRIP * 4 + column * 4 + n * LANE_BYTES);
            for (int r = 0; r < NUM_ROWS; r++) sums[r][n] = dot_all<NUM_FIT>(sums[r][n], fours, x[r]);
        }
        if (NUM_FIT) return;
#endif
        dot_four<0>(codes, x), dot_four<1>(codes, x), dot_four<2>(codes, x), dot_four<3>(codes, x);
    }

    void part_rows() {}
#endif

    void begin() {
        for (auto& own : sums)
            for (Words& sum : own) sum = Words{} + FIRST;
    }

    void end(int group, int half) {
        part_rows();
        for (int n = 0; n < NUM; n++) {
            const Floats scale = load_floats(&w.scales[group][half * STRIP + column + n * NUM_LANES]);
            for (int r = 0; r < NUM_ROWS; r++)
                totals[r][n] = times_plus(floats_of(sums[r][n]) * rows[r][group].scale, scale, totals[r][n]);
        }
    }

    void subtract_mins(int group, int half) {
        for (int n = 0; n < NUM; n++) {
            const Floats min = load_floats(&w.mins[group][half * STRIP + column + n * NUM_LANES]);
            for (int r = 0; r < NUM_ROWS; r++)
                totals[r][n] = times_plus(all(rows[r][group].minus(half, HAS_HALVES)), min, totals[r][n]);
        }
    }

    // Inlined, or clang has totals and sums in memory.
    __attribute__((always_inline)) void add(int group) {
        for (int half = 0; half < 2; half++) {
            Sixteen x[NUM_ROWS];
            for (int r = 0; r < NUM_ROWS; r++) x[r] = load_sixteen(rows[r][group].bytes + half * 16);
            if (HAS_HALVES || half == 0) begin();
            dot_half(w.codes[group][half * 4], x);
            if (HAS_HALVES || half == 1) end(group, HAS_HALVES ? half : 0);
        }
        for (int half = 0; (HAS_MINS || !IS_SIGNED) && half < (HAS_HALVES ? 2 : 1); half++) subtract_mins(group, half);
    }
};

// out[row][16 columns] += rows * unpacked groups
template <int NUM_ROWS, bool HAS_HALVES, bool HAS_MINS, int NUM_FIT>
void multiply_rows(const Unpacked& w, int num_groups, const RowGroup* const* rows, float* const* out) {
    using Some = Block<NUM_ROWS, HAS_HALVES, HAS_MINS, NUM_FIT>;
    for (int column = 0; column < STRIP; column += Some::COLUMNS) {
        Some block = {w, rows, column, {}, {}};
        for (int r = 0; r < NUM_ROWS; r++)
            for (int n = 0; n < Some::NUM; n++) block.totals[r][n] = load_floats(out[r] + column + n * NUM_LANES);
        for (int group = 0; group < num_groups; group++) block.add(group);
        for (int r = 0; r < NUM_ROWS; r++)
            for (int n = 0; n < Some::NUM; n++) store_floats(out[r] + column + n * NUM_LANES, block.totals[r][n]);
    }
}

template <int NUM_ROWS>
void multiply_rows(const Strip& strip, const Unpacked& w, int num_groups, const RowGroup* const* rows, float* const* out) {
    if (strip.info.bits == 8) return multiply_rows<NUM_ROWS, false, false, fit_of(8)>(w, num_groups, rows, out);
    if (strip.info.bits == 6) return multiply_rows<NUM_ROWS, true, false, fit_of(6)>(w, num_groups, rows, out);
    with_shape(strip.info, [&]<bool HAS_HALVES, bool HAS_MINS>() {
        multiply_rows<NUM_ROWS, HAS_HALVES, HAS_MINS, fit_of(4)>(w, num_groups, rows, out);
    });
}

// The same for all groups and a few rows, without unpacking to memory in between: weights are read from end to end.
// out[row]: [16 columns]
template <int NUM_ROWS, int BITS, bool HAS_HALVES, bool HAS_MINS>
void multiply_few(const Strip& strip, int num_groups, const RowGroup* const* rows, float* const* out) {
    constexpr int NUM = STRIP / NUM_LANES, NUM_PARTS = HAS_HALVES ? 2 : 1;
    constexpr bool IS_LESS = IS_SIGNED && BITS == 8;  // the center; with smaller codes their sums are less by it
    const int center = IS_SIGNED && !IS_LESS ? strip.info.center : 0;
    const int code_offset = strip.code_offset(), bytes = strip.group_bytes();
    Floats totals[NUM_ROWS][NUM] = {};
    const uint8_t* at = strip.at;
    for (int g = 0; g < num_groups; g++, at += bytes) {
        const half* scales = (const half*)at;
#pragma unroll  // for clang, so that totals stay in registers; gcc does by itself
        for (int n = 0; n < NUM; n++) {
            const uint8_t* codes = at + code_offset + n * LANE_BYTES;
            Words sums[NUM_ROWS][NUM_PARTS];
            for (int r = 0; r < NUM_ROWS; r++) {
                const int32_t first = rows[r][g].sums[0], second = rows[r][g].sums[1];
                sums[r][0] = Words{} + (FIRST - center * (HAS_HALVES ? first : first + second));
                if (HAS_HALVES) sums[r][NUM_PARTS - 1] = Words{} + (FIRST - center * second);
            }
#if defined(ADDS_PAIRS)
            Codes low[4], high[4];
#endif
            auto dot_four = [&]<int I>() __attribute__((always_inline)) {
                Codes a, b;
                unpack_piece<BITS, I>(codes, a, b);
#if defined(ADDS_PAIRS)
                low[I] = a, high[I] = b;
                if (fit_of(BITS)) return;
#endif
                if (IS_LESS) a ^= 128, b ^= 128;
                for (int r = 0; r < NUM_ROWS; r++) {
                    const int8_t* x = rows[r][g].bytes;
                    sums[r][0] = dot<I, BITS == 8>(sums[r][0], a, load_sixteen(x));
                    sums[r][NUM_PARTS - 1] = dot<I, BITS == 8>(sums[r][NUM_PARTS - 1], b, load_sixteen(x + 16));
                }
            };
            dot_four.template operator()<0>(), dot_four.template operator()<1>();
            dot_four.template operator()<2>(), dot_four.template operator()<3>();
#if defined(ADDS_PAIRS)
            for (int r = 0; fit_of(BITS) && r < NUM_ROWS; r++) {
                const int8_t* x = rows[r][g].bytes;
                sums[r][0] = dot_all<fit_of(BITS)>(sums[r][0], low, load_sixteen(x));
                sums[r][NUM_PARTS - 1] = dot_all<fit_of(BITS)>(sums[r][NUM_PARTS - 1], high, load_sixteen(x + 16));
            }
#endif
            for (int part = 0; part < NUM_PARTS; part++) {
                const half* of = scales + part * STRIP + n * NUM_LANES;
                const Floats scale = load_floats(of);
                for (int r = 0; r < NUM_ROWS; r++)
                    totals[r][n] = times_plus(floats_of(sums[r][part]) * rows[r][g].scale, scale, totals[r][n]);
            }
            for (int part = 0; (HAS_MINS || !IS_SIGNED) && part < NUM_PARTS; part++) {
                const half* of = scales + part * STRIP + n * NUM_LANES;
                const Floats min = HAS_MINS ? load_floats(of + NUM_PARTS * STRIP) : load_floats(of) * (float)strip.info.center;
                for (int r = 0; r < NUM_ROWS; r++)
                    totals[r][n] = times_plus(all(rows[r][g].minus(part, HAS_HALVES)), min, totals[r][n]);
            }
        }
    }
    for (int r = 0; r < NUM_ROWS; r++)
        for (int n = 0; n < NUM; n++) store_floats(out[r] + n * NUM_LANES, totals[r][n]);
}

template <int NUM_ROWS>
void multiply_few(const Strip& strip, int num_groups, const RowGroup* const* rows, float* const* out) {
    with_codes(strip.info, [&]<int BITS, bool HAS_HALVES, bool HAS_MINS>() {
        multiply_few<NUM_ROWS, BITS, HAS_HALVES, HAS_MINS>(strip, num_groups, rows, out);
    });
}

// Rows [begin, end) times a strip; out(row) is where the 16 sums of a row go. Where nothing was compiled for so many rows
// the last one is computed several times.
template <typename Out>
void multiply_few(const GroupedRows& rows, int begin, int end, const Strip& strip, Out out) {
    for (int row = begin; row < end; row += MAX_ROWS) {
        const RowGroup* at[MAX_ROWS];
        float* to[MAX_ROWS];
        const int count = std::min(MAX_ROWS, end - row);
        for (int r = 0; r < MAX_ROWS; r++) {
            const int each = row + std::min(r, count - 1);
            at[r] = rows.at(each, 0), to[r] = out(each);
        }
        if (count == 1) multiply_few<1>(strip, rows.num_groups, at, to);
        else if (count == 2) multiply_few<2>(strip, rows.num_groups, at, to);
        else if (count <= 4) multiply_few<4>(strip, rows.num_groups, at, to);
        else multiply_few<MAX_ROWS>(strip, rows.num_groups, at, to);
    }
}

// Rows [begin, end) times some groups of a strip, unpacked; out(row) is where the 16 sums of a row go on.
template <typename Out>
void multiply_strip(const GroupedRows& rows, int begin, int end, const Strip& strip, int group, int count,
                    Unpacked& scratch, Out out) {
    unpack(strip, group, count, scratch);
    for (int row = begin; row < end;) {
        auto multiply = [&]<int NUM_ROWS>() {
            const RowGroup* at[NUM_ROWS];
            float* to[NUM_ROWS];
            for (int r = 0; r < NUM_ROWS; r++) at[r] = rows.at(row + r, group), to[r] = out(row + r);
            multiply_rows<NUM_ROWS>(strip, scratch, count, at, to);
            row += NUM_ROWS;
        };
        if (end - row >= MAX_ROWS) multiply.template operator()<MAX_ROWS>();
        else if (end - row >= 4) multiply.template operator()<4>();
        else if (end - row >= 2) multiply.template operator()<2>();
        else multiply.template operator()<1>();
    }
}
