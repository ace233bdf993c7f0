// Kinds of quantised rows as GGUF files hold them, 32 neighbours at a time: codes, and what they stand for.
//
//     number = scale * (code - center) - min          one scale and min for all 32, or for each 16 of them
//
// K-quants have blocks of 256 with two float scales, which the scales and mins of their groups are multiplied with. The
// sixteen numbers of MXFP4 are halves of whole ones, which are its codes: they are stored as places in a table. Rows of floats
// become codes of eight bits, or, as FLOATS_TO_4, of four.

#pragma once

#include <algorithm>
#include <cmath>

#include "lanes.h"

constexpr int GROUP = 32;  // neighbours along K

enum class GgmlType { F32 = 0, F16 = 1, BF16 = 30, MXFP4 = 39, FLOATS_TO_4 = 1000, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14 };

constexpr int BY_TABLE = 16 + 4;  // four bits that say which code it is of a table

struct GgmlTypeInfo {
    int block_items, block_bytes;
    int bits;  // of a code as we store it
    int center, most;  // the code that stands for nothing but the min, and the largest one
    bool has_halves, has_mins;
};

constexpr GgmlTypeInfo info_of(GgmlType kind) {
    switch (kind) {
        case GgmlType::F32: return {32, 128, 8, 128, 255, false, false};
        case GgmlType::F16:
        case GgmlType::BF16: return {32, 64, 8, 128, 255, false, false};
        case GgmlType::FLOATS_TO_4: return {32, 128, 4, 0, 15, false, true};
        case GgmlType::MXFP4: return {32, 17, BY_TABLE, 12, 24, false, false};
        case GgmlType::Q4_0: return {32, 18, 4, 8, 15, false, false};
        case GgmlType::Q4_1: return {32, 20, 4, 0, 15, false, true};
        case GgmlType::Q5_0: return {32, 22, 5, 16, 31, false, false};
        case GgmlType::Q5_1: return {32, 24, 5, 0, 31, false, true};
        case GgmlType::Q8_0: return {32, 34, 8, 128, 255, false, false};
        case GgmlType::Q2_K: return {256, 84, 4, 0, 3, true, true};
        case GgmlType::Q3_K: return {256, 110, 4, 4, 7, true, false};
        case GgmlType::Q4_K: return {256, 144, 4, 0, 15, false, true};
        case GgmlType::Q5_K: return {256, 176, 5, 0, 31, false, true};
        case GgmlType::Q6_K: return {256, 210, 6, 32, 63, true, false};
    }
    return {};
}

struct Group {
    uint8_t codes[GROUP];
    float scales[2], mins[2];  // of each half
};

inline float read_half(const uint8_t* from) {
    half value;
    memcpy(&value, from, sizeof(value));
    return (float)value;
}

inline void set_scale(Group& g, float scale, float min) {
    g.scales[0] = g.scales[1] = scale;
    g.mins[0] = g.mins[1] = min;
}

using GroupCodes = uint8_t __attribute__((vector_size(GROUP)));

// Some bits of each of 32 bytes. Nothing shifts bytes: pairs of them are, and the mask leaves the right bits.
inline GroupCodes bits_of(const uint8_t* from, int shift, uint8_t mask) {
    using Pairs = uint16_t __attribute__((vector_size(GROUP)));
    Pairs pairs;
    memcpy(&pairs, from, sizeof(pairs));
    return (GroupCodes)(pairs >> shift) & mask;
}

inline void set_codes(Group& g, GroupCodes codes) { memcpy(g.codes, &codes, sizeof(codes)); }

inline void low_halves_first(const uint8_t* from, uint8_t* codes) {
    uint8_t both[GROUP];
    memcpy(both, from, 16), memcpy(both + 16, from, 16);
    const GroupCodes low = bits_of(both, 0, 15), high = bits_of(both, 4, 15);
    memcpy(codes, &low, 16), memcpy(codes + 16, &high, 16);
}

inline void read_q4(const uint8_t* b, bool has_min, Group& g) {
    set_scale(g, read_half(b), has_min ? -read_half(b + 2) : 0.0f);
    low_halves_first(b + (has_min ? 4 : 2), g.codes);
}

inline void read_q5(const uint8_t* b, bool has_min, Group& g) {
    const uint8_t* high = b + (has_min ? 4 : 2);
    set_scale(g, read_half(b), has_min ? -read_half(b + 2) : 0.0f);
    low_halves_first(high + 4, g.codes);
    GroupCodes fifth, place;
    for (int i = 0; i < GROUP; i++) fifth[i] = high[i / 8], place[i] = 1 << i % 8;
    GroupCodes codes;
    memcpy(&codes, g.codes, sizeof(codes));
    set_codes(g, codes | ((GroupCodes)((fifth & place) != 0) & 16));
}

inline void read_q8(const uint8_t* b, Group& g) {
    set_scale(g, read_half(b), 0.0f);
    for (int i = 0; i < GROUP; i++) g.codes[i] = b[2 + i] ^ 128;
}

// Group i of a block of Q4_K or Q5_K: six bits each of scale and min, in twelve bytes for eight groups.
inline void read_q45_k(const uint8_t* b, int i, bool has_fifth, Group& g) {
    const uint8_t *s = b + 4, *high = b + 16, *low = b + (has_fifth ? 48 : 16) + i / 2 * 32;
    const int scale = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | s[i - 4] >> 6 << 4;
    const int min = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | s[i] >> 6 << 4;
    set_scale(g, read_half(b) * scale, read_half(b + 2) * min);
    const GroupCodes codes = bits_of(low, i % 2 * 4, 15);
    set_codes(g, has_fifth ? codes | bits_of(high, i, 1) << 4 : codes);
}

inline void read_q6_k(const uint8_t* b, int i, Group& g) {
    const uint8_t *low = b + i / 4 * 64 + i % 2 * 32, *high = b + 128 + i / 4 * 32;
    const auto* scales = (const int8_t*)b + 192 + 2 * i;
    set_scale(g, 0.0f, 0.0f);
    for (int half = 0; half < 2; half++) g.scales[half] = read_half(b + 208) * scales[half];
    set_codes(g, bits_of(low, i % 4 / 2 * 4, 15) | bits_of(high, i % 4 * 2, 3) << 4);
}

inline void read_q2_k(const uint8_t* b, int i, Group& g) {
    const uint8_t *scales = b + 2 * i, *low = b + 16 + i / 4 * 32;
    for (int half = 0; half < 2; half++) {
        g.scales[half] = read_half(b + 80) * (scales[half] & 15);
        g.mins[half] = read_half(b + 82) * (scales[half] >> 4);
    }
    set_codes(g, bits_of(low, i % 4 * 2, 3));
}

inline void read_q3_k(const uint8_t* b, int i, Group& g) {
    const uint8_t *high = b, *low = b + 32 + i / 4 * 32, *s = b + 96;
    set_scale(g, 0.0f, 0.0f);
    for (int half = 0; half < 2; half++) {
        const int at = 2 * i + half, scale = (s[at % 8] >> at / 8 * 4 & 15) | (s[8 + at % 4] >> at / 4 * 2 & 3) << 4;
        g.scales[half] = read_half(b + 108) * (scale - 32);
    }
    set_codes(g, bits_of(low, i % 4 * 2, 3) | bits_of(high, i, 1) << 2);
}

alignas(16) constexpr uint8_t TABLE[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};  // of MXFP4

inline void read_mxfp4(const uint8_t* b, Group& g) {
    set_scale(g, std::ldexp(1.0f, b[0] - 128), 0.0f);
    low_halves_first(b + 1, g.codes);
    for (uint8_t& code : g.codes) code = TABLE[code];
}

inline bool are_floats(GgmlType kind) {
    return kind == GgmlType::F32 || kind == GgmlType::F16 || kind == GgmlType::BF16 || kind == GgmlType::FLOATS_TO_4;
}

inline void read_floats(GgmlType kind, const uint8_t* from, int count, float* to) {
    if (kind == GgmlType::F32 || kind == GgmlType::FLOATS_TO_4) memcpy(to, from, count * sizeof(float));
    for (int i = 0; kind == GgmlType::F16 && i < count; i++) to[i] = read_half(from + 2 * i);
    for (int i = 0; kind == GgmlType::BF16 && i < count; i++) {
        const uint32_t wide = (uint32_t)(from[2 * i] | from[2 * i + 1] << 8) << 16;
        memcpy(to + i, &wide, sizeof(float));
    }
}

inline float as_half(float x) { return (float)(half)x; }

// To the nearest codes, with scales as they are held.
inline void round_floats(GgmlType kind, const uint8_t* from, Group& g) {
    float numbers[GROUP];
    read_floats(kind, from, GROUP, numbers);
    Floats lows = {}, highs = {};
    for (int i = 0; i < GROUP; i += NUM_LANES) {
        const Floats some = load_floats(numbers + i);
        lows = some < lows ? some : lows, highs = some > highs ? some : highs;
    }
    const float low = -largest_of(-lows), high = largest_of(highs);
    const bool is_narrow = kind == GgmlType::FLOATS_TO_4;
    set_scale(g, as_half(is_narrow ? (high - low) / 15 : std::max(high, -low) / 127), as_half(is_narrow ? -low : 0.0f));
    const float inverse = g.scales[0] > 0 ? 1 / g.scales[0] : 0.0f, least = is_narrow ? 0 : -127, most = is_narrow ? 15 : 127;
    for (int i = 0; i < GROUP; i++)
        g.codes[i] = (uint8_t)(std::nearbyint(std::clamp((numbers[i] + g.mins[0]) * inverse, least, most)) + (is_narrow ? 0 : 128));
}

// Numbers [32 i, 32 i + 32) of a row. Inlined: where the kind is known when it is compiled, only its own reading is left.
inline __attribute__((always_inline)) void read_group(GgmlType kind, const uint8_t* row, int i, Group& g) {
    const GgmlTypeInfo info = info_of(kind);
    const int per_block = info.block_items / GROUP, at = i % per_block;
    const uint8_t* block = row + (size_t)(i / per_block) * info.block_bytes;
    if (are_floats(kind)) return round_floats(kind, block, g);
    switch (kind) {
        case GgmlType::MXFP4: return read_mxfp4(block, g);
        case GgmlType::Q4_0: return read_q4(block, false, g);
        case GgmlType::Q4_1: return read_q4(block, true, g);
        case GgmlType::Q5_0: return read_q5(block, false, g);
        case GgmlType::Q5_1: return read_q5(block, true, g);
        case GgmlType::Q8_0: return read_q8(block, g);
        case GgmlType::Q2_K: return read_q2_k(block, at, g);
        case GgmlType::Q3_K: return read_q3_k(block, at, g);
        case GgmlType::Q4_K: return read_q45_k(block, at, false, g);
        case GgmlType::Q5_K: return read_q45_k(block, at, true, g);
        case GgmlType::Q6_K: return read_q6_k(block, at, g);
        default: return;
    }
}

template <typename Work>
void with_kind(GgmlType kind, Work work) {
    switch (kind) {
        case GgmlType::F32: return work.template operator()<GgmlType::F32>();
        case GgmlType::F16: return work.template operator()<GgmlType::F16>();
        case GgmlType::BF16: return work.template operator()<GgmlType::BF16>();
        case GgmlType::FLOATS_TO_4: return work.template operator()<GgmlType::FLOATS_TO_4>();
        case GgmlType::MXFP4: return work.template operator()<GgmlType::MXFP4>();
        case GgmlType::Q4_0: return work.template operator()<GgmlType::Q4_0>();
        case GgmlType::Q4_1: return work.template operator()<GgmlType::Q4_1>();
        case GgmlType::Q5_0: return work.template operator()<GgmlType::Q5_0>();
        case GgmlType::Q5_1: return work.template operator()<GgmlType::Q5_1>();
        case GgmlType::Q8_0: return work.template operator()<GgmlType::Q8_0>();
        case GgmlType::Q2_K: return work.template operator()<GgmlType::Q2_K>();
        case GgmlType::Q3_K: return work.template operator()<GgmlType::Q3_K>();
        case GgmlType::Q4_K: return work.template operator()<GgmlType::Q4_K>();
        case GgmlType::Q5_K: return work.template operator()<GgmlType::Q5_K>();
        case GgmlType::Q6_K: return work.template operator()<GgmlType::Q6_K>();
    }
}

// What no number is larger than that has this scale and min.
inline float bound_of(float scale, float min, const GgmlTypeInfo& info) {
    return std::max(std::abs(scale * -info.center - min), std::abs(scale * (info.most - info.center) - min));
}

inline size_t row_bytes(GgmlType kind, int num_in) {
    const GgmlTypeInfo info = info_of(kind);
    return are_floats(kind) ? (size_t)num_in * (info.block_bytes / 32) : (size_t)num_in / info.block_items * info.block_bytes;
}

inline void read_numbers(GgmlType kind, const uint8_t* row, int num_in, float* to) {
    if (are_floats(kind)) return read_floats(kind, row, num_in, to);
    const int center = info_of(kind).center;
    Group g;
    for (int i = 0; i < num_in / GROUP; i++) {
        read_group(kind, row, i, g);
        for (int j = 0; j < GROUP; j++) *to++ = g.scales[j / 16] * (g.codes[j] - center) - g.mins[j / 16];
    }
}
