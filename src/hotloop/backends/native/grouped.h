// Rows times strips, in integers: rows are rounded to bytes, by a scale for each 32 neighbours.
//
// A row is computed alike whatever else is in the batch. Codes of a few groups are unpacked once for all rows, four of
// which go over them at a time; for a single row they go from memory into its products.

#pragma once

#include <algorithm>
#include <vector>

#include "strips.h"
#include "vectors.h"

// Rows as bytes: what each 32 were divided by, the sums of each 16, and of each 32 what the bytes stand for, negated.
struct GroupedRows {
    int num_groups = 0;
    std::vector<int8_t> bytes;
    std::vector<float> scales, negated;
    std::vector<int32_t> sums;

    void resize(int num_rows, int num_in) {
        num_groups = num_in / GROUP;
        const size_t count = (size_t)num_rows * num_groups;
        bytes.resize(count * GROUP), scales.resize(count), negated.resize(count), sums.resize(count * 2);
    }
};

template <typename Number>
void round_row(GroupedRows& rows, int row, const Number* x) {
    for (int i = 0; i < rows.num_groups; i++, x += GROUP) {
        const Vector first = load(x), second = load(x + LANES);
        const float scale = largest_of(larger(absolute(first), absolute(second))) / 127.0f;
        const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
        const size_t at = (size_t)row * rows.num_groups + i;
        int8_t* to = rows.bytes.data() + at * GROUP;
        store(to, first * inverse), store(to + LANES, second * inverse);
        rows.scales[at] = scale;
        for (int half = 0; half < 2; half++) {
            int32_t sum = 0;
            for (int j = 0; j < 16; j++) sum += to[half * 16 + j];
            rows.sums[at * 2 + half] = sum;
        }
        rows.negated[at] = -scale * (rows.sums[at * 2] + rows.sums[at * 2 + 1]);
    }
}

// What a row has from a group on.
struct RowAt {
    const int8_t* bytes;
    const float *scales, *negated;
    const int32_t* sums;

    RowAt() = default;
    RowAt(const GroupedRows& rows, int row, int group) {
        const size_t at = (size_t)row * rows.num_groups + group;
        bytes = rows.bytes.data() + at * GROUP, sums = rows.sums.data() + at * 2;
        scales = rows.scales.data() + at, negated = rows.negated.data() + at;
    }
    // Of a group, or of one half of it.
    int32_t sum(int group) const { return sums[2 * group] + sums[2 * group + 1]; }
    float minus(int group, int half, bool has_halves) const {
        return has_halves ? -scales[group] * sums[2 * group + half] : negated[group];
    }
};

// Some rows on their way over unpacked groups, for as many columns as registers hold.
template <int NUM_ROWS, bool HAS_HALVES, bool HAS_MINS>
struct Block {
    static constexpr int NUM = LANE_BYTES == 16 ? 2 : 1, COLUMNS = NUM * NUM_LANES;
    const Unpacked& w;
    const RowAt* rows;
    int center, column;
    Floats totals[NUM_ROWS][NUM];
    Words sums[NUM_ROWS][NUM];

    template <int I>
    void dot_four(const Code* codes, const Sixteen* x) {
        for (int n = 0; n < NUM; n++) {
            const Codes four = load_codes(codes + I * STRIP * 4 + n * LANE_BYTES);
            for (int r = 0; r < NUM_ROWS; r++) sums[r][n] = dot<I>(sums[r][n], four, x[r]);
        }
    }

    void begin(int r, int32_t sum) {
        for (int n = 0; n < NUM; n++) sums[r][n] = Words{} + (IS_SIGNED ? FIRST : FIRST - center * sum);
    }

    void end(int group, int half) {
        for (int n = 0; n < NUM; n++) {
            const Floats scale = load_floats(&w.scales[group][half * STRIP + column + n * NUM_LANES]);
            for (int r = 0; r < NUM_ROWS; r++)
                totals[r][n] = times_plus(floats_of(sums[r][n]) * rows[r].scales[group], scale, totals[r][n]);
        }
    }

    void subtract_mins(int group, int half) {
        for (int n = 0; n < NUM; n++) {
            const Floats min = load_floats(&w.mins[group][half * STRIP + column + n * NUM_LANES]);
            for (int r = 0; r < NUM_ROWS; r++)
                totals[r][n] = times_plus(Floats{} + rows[r].minus(group, half, HAS_HALVES), min, totals[r][n]);
        }
    }

    void add(int group) {
        for (int half = 0; half < 2; half++) {
            Sixteen x[NUM_ROWS];
            for (int r = 0; r < NUM_ROWS; r++) {
                x[r] = load_sixteen(rows[r].bytes + group * GROUP + half * 16);
                if (HAS_HALVES) begin(r, rows[r].sums[2 * group + half]);
                else if (half == 0) begin(r, rows[r].sum(group));
            }
            const Code* codes = w.codes[group][half * 4] + column * 4;
            dot_four<0>(codes, x), dot_four<1>(codes, x), dot_four<2>(codes, x), dot_four<3>(codes, x);
            if (HAS_HALVES || half == 1) end(group, HAS_HALVES ? half : 0);
        }
        for (int half = 0; HAS_MINS && half < (HAS_HALVES ? 2 : 1); half++) subtract_mins(group, half);
    }
};

// out[row][16 columns] += rows * unpacked groups
template <int NUM_ROWS, bool HAS_HALVES, bool HAS_MINS>
void multiply_rows(const Unpacked& w, int center, int num_groups, const RowAt* rows, float* const* out) {
    using Some = Block<NUM_ROWS, HAS_HALVES, HAS_MINS>;
    for (int column = 0; column < STRIP; column += Some::COLUMNS) {
        Some block = {w, rows, center, column, {}, {}};
        for (int r = 0; r < NUM_ROWS; r++)
            for (int n = 0; n < Some::NUM; n++) block.totals[r][n] = load_floats(out[r] + column + n * NUM_LANES);
        for (int group = 0; group < num_groups; group++) block.add(group);
        for (int r = 0; r < NUM_ROWS; r++)
            for (int n = 0; n < Some::NUM; n++) store_floats(out[r] + column + n * NUM_LANES, block.totals[r][n]);
    }
}

template <int NUM_ROWS>
void multiply_rows(const Strip& strip, const Unpacked& w, int num_groups, const RowAt* rows, float* const* out) {
    with_shape(strip.info, [&]<bool HAS_HALVES, bool HAS_MINS>() {
        multiply_rows<NUM_ROWS, HAS_HALVES, HAS_MINS>(w, strip.info.center, num_groups, rows, out);
    });
}

// The same for one row, without unpacking to memory in between. out: [16 columns]
template <int BITS, bool HAS_HALVES, bool HAS_MINS>
void multiply_row(const Strip& strip, int num_groups, RowAt row, float* out) {
    constexpr int NUM = STRIP / NUM_LANES, NUM_PARTS = HAS_HALVES ? 2 : 1;
    constexpr bool IS_LESS = IS_SIGNED && BITS == 8;  // the center, which smaller codes do without here
    const int center = IS_LESS ? 0 : strip.info.center;
    const int code_offset = strip.code_offset(), bytes = strip.group_bytes();
    Floats totals[NUM] = {};
    const uint8_t* at = strip.at;
    for (int g = 0; g < num_groups; g++, at += bytes) {
        const Sixteen x[2] = {load_sixteen(row.bytes + g * GROUP), load_sixteen(row.bytes + g * GROUP + 16)};
        const int32_t *sums = row.sums + 2 * g;
        const float scale = row.scales[g];
        const half* scales = (const half*)at;
        for (int n = 0; n < NUM; n++) {
            const uint8_t* codes = at + code_offset + n * LANE_BYTES;
            Words low = Words{} + (FIRST - center * sums[0]);
            Words high = Words{} + ((HAS_HALVES ? FIRST : 0) - center * sums[1]);
            auto dot_four = [&]<int I>() __attribute__((always_inline)) {
                Codes a, b;
                unpack_piece<BITS, I>(codes, a, b);
                if (IS_LESS) a ^= 128, b ^= 128;
                low = dot<I>(low, a, x[0]), high = dot<I>(high, b, x[1]);
            };
            dot_four.template operator()<0>(), dot_four.template operator()<1>();
            dot_four.template operator()<2>(), dot_four.template operator()<3>();
            auto add = [&](Words sum, const half* of) {
                totals[n] = times_plus(floats_of(sum) * scale, load_floats(of + n * NUM_LANES), totals[n]);
            };
            if (HAS_HALVES) add(low, scales), add(high, scales + STRIP);
            else add(low + high, scales);
            for (int part = 0; HAS_MINS && part < NUM_PARTS; part++) {
                const Floats min = load_floats(scales + (NUM_PARTS + part) * STRIP + n * NUM_LANES);
                totals[n] = times_plus(Floats{} + row.minus(g, part, HAS_HALVES), min, totals[n]);
            }
        }
    }
    for (int n = 0; n < NUM; n++) store_floats(out + n * NUM_LANES, totals[n]);
}

inline void multiply_row(const Strip& strip, int num_groups, RowAt row, float* out) {
    with_shape(strip.info, [&]<bool HAS_HALVES, bool HAS_MINS>() {
        switch (strip.info.bits) {
            case 4: return multiply_row<4, HAS_HALVES, HAS_MINS>(strip, num_groups, row, out);
            case 5: return multiply_row<5, HAS_HALVES, HAS_MINS>(strip, num_groups, row, out);
            case 6: return multiply_row<6, HAS_HALVES, HAS_MINS>(strip, num_groups, row, out);
            default: return multiply_row<8, HAS_HALVES, HAS_MINS>(strip, num_groups, row, out);
        }
    });
}

// Rows [begin, end) times a strip; out(row) is where the 16 sums of a row go.
template <typename Out>
void multiply_strip(const GroupedRows& rows, int begin, int end, const Strip& strip, Unpacked& scratch, Out out) {
    if (end - begin == 1) return multiply_row(strip, rows.num_groups, {rows, begin, 0}, out(begin));
    for (int row = begin; row < end; row++) std::fill_n(out(row), STRIP, 0.0f);
    for (int group = 0; group < rows.num_groups; group += Unpacked::MAX_GROUPS) {
        const int count = std::min(Unpacked::MAX_GROUPS, rows.num_groups - group);
        unpack(strip, group, count, scratch);
        for (int row = begin; row < end; row += 4) {
            const int num_rows = std::min(4, end - row);
            RowAt at[4];
            float* to[4];
            for (int r = 0; r < num_rows; r++) at[r] = {rows, row + r, group}, to[r] = out(row + r);
            switch (num_rows) {
                case 1: multiply_rows<1>(strip, scratch, count, at, to); break;
                case 2: multiply_rows<2>(strip, scratch, count, at, to); break;
                case 3: multiply_rows<3>(strip, scratch, count, at, to); break;
                default: multiply_rows<4>(strip, scratch, count, at, to);
            }
        }
    }
}
