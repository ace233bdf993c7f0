// Quantised weights in strips of 16 columns of the result: their codes as the file has them, side by side for products.
//
//     strip   [groups of 32 along K]
//     group   [16 halves: scales][16 halves: mins, if any]   both twice where each half of a group has its own
//             [codes]   as words of four neighbours along K of a column, 16 columns side by side, eight such rows:
//                       rows 0 to 3 in the low and 4 to 7 in the high four bits of the same bytes; then fifth bits, or
//                       fifth and sixth, of all rows. Eight bits: as they are.
//
// A column's scale is rounded to a half, once, where the file has it as a product of two.

#pragma once

#include "ggml_types.h"

constexpr int STRIP = 16, WORD_ROWS = 8, GROUP_CODES = GROUP * STRIP;

struct Strip {
    GgmlTypeInfo info;
    uint8_t* at;

    int num_scales() const { return STRIP * (info.has_halves ? 2 : 1); }
    int code_offset() const { return num_scales() * (info.has_mins ? 2 : 1) * (int)sizeof(half); }
    int group_bytes() const { return code_offset() + info.bits % 16 * GROUP_CODES / 8; }
    const uint8_t* group(int i) const { return at + (size_t)i * group_bytes(); }
};

template <typename Work>
void with_shape(const GgmlTypeInfo& info, Work work) {
    if (info.has_halves) info.has_mins ? work.template operator()<true, true>() : work.template operator()<true, false>();
    else info.has_mins ? work.template operator()<false, true>() : work.template operator()<false, false>();
}

// As many bits and shapes as there are kinds with them.
template <typename Work>
void with_codes(const GgmlTypeInfo& info, Work work) {
    switch (info.bits) {
        case 5: return info.has_mins ? work.template operator()<5, false, true>() : work.template operator()<5, false, false>();
        case 6: return work.template operator()<6, true, false>();
        case 8: return work.template operator()<8, false, false>();
        case BY_TABLE: return work.template operator()<BY_TABLE, false, false>();
        default:
            with_shape(info, [&]<bool HAS_HALVES, bool HAS_MINS>() {
                work.template operator()<4, HAS_HALVES, HAS_MINS>();
            });
    }
}

// Some groups of a strip, ready to be multiplied with: codes are less their center if they are signed, else mins are more
// by what the center stands for. Where products are of pairs, two words of a column stand side by side.
struct Unpacked {
    static constexpr int MAX_GROUPS = 16;
    alignas(64) Code codes[MAX_GROUPS][WORD_ROWS][STRIP * 4];
    alignas(64) float scales[MAX_GROUPS][2 * STRIP], mins[MAX_GROUPS][2 * STRIP];  // of both halves
};

// Packs the codes of one column's group from a byte each to BITS bits, at the column's place in the first row. Output is
// only written, never read. pairs[i] holds the words of rows 2 i and 2 i + 1.
template <int BITS>
inline void place_codes(const uint8_t* codes, uint8_t* to) {
    constexpr uint64_t EACH = 0x0101010101010101;
    uint64_t pairs[4];
    memcpy(pairs, codes, sizeof(pairs));
    auto place = [&](int row, uint32_t word) { memcpy(to + row * STRIP * 4, &word, sizeof(word)); };
    auto joined = [](uint64_t pair, int shift) { return (uint32_t)pair | (uint32_t)(pair >> 32) << shift; };
    for (int i = 0; i < (BITS == 8 ? 4 : 2); i++) {
        const uint64_t both = BITS == 8 ? pairs[i] : (pairs[i] & 15 * EACH) | (pairs[i + 2] & 15 * EACH) << 4;
        place(2 * i, (uint32_t)both), place(2 * i + 1, (uint32_t)(both >> 32));
    }
    for (uint64_t& pair : pairs) pair = pair >> 4 & (BITS == 6 ? 3 : 1) * EACH;
    if (BITS == 5) place(4, joined(pairs[0] | pairs[1] << 2 | pairs[2] << 4 | pairs[3] << 6, 1));
    if (BITS == 6) place(4, joined(pairs[0] | pairs[1] << 4, 2)), place(5, joined(pairs[2] | pairs[3] << 4, 2));
}

template <GgmlType KIND>
void pack_strip(const Strip& strip, const uint8_t* const* rows, int num_groups, float* byte_scales) {
    constexpr GgmlTypeInfo info = info_of(KIND);
    constexpr int NUM_PARTS = info.has_halves ? 2 : 1;
    float scales[2][NUM_PARTS][STRIP] = {};  // and mins
    float bounds[STRIP] = {};
    Group g;
    for (int i = 0; i < num_groups; i++) {
        uint8_t* to = strip.at + (size_t)i * strip.group_bytes();
        for (int column = 0; column < STRIP; column++) {
            if (!rows[column]) continue;
            read_group(KIND, rows[column], i, g);
            if (info.bits == BY_TABLE) low_halves_first(rows[column] + (size_t)i * info.block_bytes + 1, g.codes);
            for (int part = 0; part < NUM_PARTS; part++)
                scales[0][part][column] = g.scales[part], scales[1][part][column] = g.mins[part];
            place_codes<info.bits % 16>(g.codes, to + strip.code_offset() + column * 4);
        }
        half* halves = (half*)to;
        for (int kind = 0; kind < (info.has_mins ? 2 : 1); kind++)
            for (int part = 0; part < NUM_PARTS; part++)
                for (int column = 0; column < STRIP; column++) *halves++ = (half)scales[kind][part][column];
        for (int part = 0; part < NUM_PARTS; part++)
            for (int column = 0; column < STRIP; column++)
                bounds[column] = std::max(bounds[column], bound_of(scales[0][part][column], scales[1][part][column], info));
    }
    for (int column = 0; column < STRIP; column++) byte_scales[column] = std::max(byte_scales[column], bounds[column] / 127.0f);
}

// rows: those of the file that the columns are, null where a column only fills up. The memory has to be zero.
// byte_scales: what a column has to be divided by to fit into bytes
inline void pack_strip(const Strip& strip, GgmlType kind, const uint8_t* const* rows, int num_groups, float* byte_scales) {
    with_kind(kind, [&]<GgmlType KIND>() { pack_strip<KIND>(strip, rows, num_groups, byte_scales); });
}

// Codes of one piece of word rows ROW and ROW + 4: columns side by side, as many as a register has.
template <int BITS, int ROW>
inline __attribute__((always_inline)) void unpack_piece(const uint8_t* codes, Codes& low, Codes& high) {
    if constexpr (BITS == 8) {
        low = load_codes(codes + ROW * 64), high = load_codes(codes + (ROW + 4) * 64);
        return;
    }
    const Codes both = load_codes(codes + ROW * 64);
    low = both & 15, high = high_halves(both);
    if constexpr (BITS == BY_TABLE) low = looked_up(TABLE, low), high = looked_up(TABLE, high);
    if constexpr (BITS == 5) {
        const Codes fifth = load_codes(codes + 256);
        low = shifted_into<4 - ROW, 16>(fifth, low), high = shifted_into<-ROW, 16>(fifth, high);
    }
    if constexpr (BITS == 6) {
        const Codes first = load_codes(codes + 256), second = load_codes(codes + 320);
        low = shifted_into<4 - 2 * ROW, 48>(first, low), high = shifted_into<4 - 2 * ROW, 48>(second, high);
    }
}

template <int BITS>
void unpack_codes(const uint8_t* codes, uint8_t center, Code (*to)[STRIP * 4]) {
    for (int piece = 0; piece < STRIP * 4; piece += LANE_BYTES) {
        auto unpack_rows = [&]<int ROW>() {
            Codes low, high;
            unpack_piece<BITS, ROW>(codes + piece, low, high);
            store_codes(to[ROW] + piece, low - center), store_codes(to[ROW + 4] + piece, high - center);
        };
        unpack_rows.template operator()<0>(), unpack_rows.template operator()<1>();
        unpack_rows.template operator()<2>(), unpack_rows.template operator()<3>();
    }
}

inline void unpack_codes(const Strip& strip, const uint8_t* group, Code (*to)[STRIP * 4]) {
    const uint8_t *codes = group + strip.code_offset(), center = IS_SIGNED ? strip.info.center : 0;
    switch (strip.info.bits) {
        case 4: return unpack_codes<4>(codes, center, to);
        case 5: return unpack_codes<5>(codes, center, to);
        case 6: return unpack_codes<6>(codes, center, to);
        case BY_TABLE: return unpack_codes<BY_TABLE>(codes, center, to);
        default: return unpack_codes<8>(codes, center, to);
    }
}

#if defined(HAS_PAIR_PRODUCTS)
inline void pair_words(Code (*codes)[STRIP * 4]) {
    for (int row = 0; row < WORD_ROWS; row += 2) {
        int32x4x2_t words[STRIP / 4];
        for (int i = 0; i < STRIP / 4; i++) {
            const int32_t *even = (const int32_t*)codes[row] + i * 4, *odd = (const int32_t*)codes[row + 1] + i * 4;
            words[i] = {vld1q_s32(even), vld1q_s32(odd)};
        }
        for (int i = 0; i < STRIP / 4; i++) vst2q_s32((int32_t*)codes[row] + i * 8, words[i]);
    }
}
#endif

inline void unpack(const Strip& strip, int first, int count, Unpacked& to) {
    const int num_scales = strip.num_scales();
    const float center = IS_SIGNED ? 0 : strip.info.center;
    for (int i = 0; i < count; i++) {
        const uint8_t* group = strip.group(first + i);
        const half* scales = (const half*)group;
        for (int j = 0; j < num_scales; j += NUM_LANES) {
            const Floats scale = load_floats(scales + j);
            store_floats(&to.scales[i][j], scale);
            store_floats(&to.mins[i][j], strip.info.has_mins ? load_floats(scales + num_scales + j) : scale * center);
        }
        unpack_codes(strip, group, to.codes[i]);
#if defined(HAS_PAIR_PRODUCTS)
        pair_words(to.codes[i]);
#endif
    }
}
