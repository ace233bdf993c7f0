// Weights as they are held, and as tiles: bf16 and int8 (a scale for each column of the result, which waits for the sums)
// are read where they stand. Strips of a GGUF file's codes become int8 on the way into tiles, a chunk of a panel at a time,
// or are multiplied as they are (grouped.h). Floats, and bf16 and strips if they are said to be multiplied in floats, are no
// tiles (floats.h).

#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "background.h"
#include "layout.h"
#include "packed_ggml.h"
#include "vectors.h"
#include "workers.h"

enum class Format { INT8, BF16, PACKED_GGML, F32 };

// Numbers of K.
inline int step_of(Format format) { return format == Format::BF16 || format == Format::F32 ? 32 : 64; }

// One matrix. Gated: it is two, gate and up, of which a panel has 16 columns each, so that they meet in its sums.
struct Weights {
    Format format;
    int num_out, num_in;
    bool is_gated, in_floats;
    int num_steps, num_panels;
    Memory numbers;                   // in the order of tiles
    std::vector<float> scales, bias;  // of each column of the panels; strips: what they have as int8
    std::vector<int32_t> sums = {};   // of the bytes of a column, if they are bytes
    std::vector<Strip> strips = {};   // two for each panel

    // The row of the matrix, gate before up, that a column is; -1 if it only fills up the last panel.
    int source(int column) const {
        if (!is_gated) return column < num_out ? column : -1;
        const int half = num_out / 2, i = column / PANEL_COLUMNS * 16 + column % 16;
        return i >= half ? -1 : column % PANEL_COLUMNS < 16 ? i : half + i;
    }
    float* floats(int panel) const { return (float*)numbers.data() + (size_t)panel * num_in * PANEL_COLUMNS; }
    uint8_t* place(int panel, int step) const {  // of tiles
        return numbers.data() + (size_t)(panel * num_steps + step) * PAIR_BYTES;
    }
};

// A group of a strip as half a tile of int8. In integers of 16 bits a code is multiplied with its scale and added to what it
// is an offset from, both 256 times as large: the upper byte is the number to the nearest. inverse: 256 / a column's scale.
template <int BITS>
void narrow_group(const Strip& strip, const uint8_t* group, Vector inverse, uint8_t* to) {
    using Pairs = uint16_t __attribute__((vector_size(64)));
    const half *scales = (const half*)group, *mins = scales + strip.num_scales();
    auto both = [](Integers v) { return (Pairs)((Bits)v << 16 | ((Bits)v & 0xffff)); };
    Pairs scale[2], offset[2];
    for (int part = 0; part < (strip.info.has_halves ? 2 : 1); part++) {
        const Integers each = nearest(load(scales + part * STRIP) * inverse);
        Integers zero = 128 - each * strip.info.center;
        if (strip.info.has_mins) zero -= nearest(load(mins + part * STRIP) * inverse);
        scale[part] = both(each), offset[part] = both(zero);
    }
    if (!strip.info.has_halves) scale[1] = scale[0], offset[1] = offset[0];
    auto narrow_word = [&](int row, Pairs codes) __attribute__((always_inline)) {
        const Pairs even = (codes & 0xff) * scale[row / 4] + offset[row / 4];
        const Pairs odd = (codes >> 8) * scale[row / 4] + offset[row / 4];
        const Pairs narrow = even >> 8 | (odd & 0xff00);
        memcpy(to + row * STEP_BYTES, &narrow, sizeof(narrow));
    };
    const uint8_t* codes = group + strip.code_offset();
    auto narrow_words = [&]<int ROW>() __attribute__((always_inline)) {
        Pairs low, high;
        for (int piece = 0; piece < STRIP * 4; piece += LANE_BYTES) {
            Codes a, b;
            unpack_piece<BITS, ROW>(codes + piece, a, b);
            store_codes((uint8_t*)&low + piece, a), store_codes((uint8_t*)&high + piece, b);
        }
        narrow_word(ROW, low), narrow_word(ROW + 4, high);
    };
    narrow_words.template operator()<0>(), narrow_words.template operator()<1>();
    narrow_words.template operator()<2>(), narrow_words.template operator()<3>();
}

// Groups [first, first + count) of a strip, from the first row of a tile on.
inline void narrow_strip(const Strip& strip, int first, int count, Vector inverse, uint8_t* to) {
    for (int i = 0; i < count; i++) {
        const uint8_t* group = strip.group(first + i);
        uint8_t* half = to + i / 2 * PAIR_BYTES + i % 2 * TILE_BYTES / 2;
        switch (strip.info.bits) {
            case 4: narrow_group<4>(strip, group, inverse, half); break;
            case 5: narrow_group<5>(strip, group, inverse, half); break;
            case 6: narrow_group<6>(strip, group, inverse, half); break;
            case BY_TABLE: narrow_group<BY_TABLE>(strip, group, inverse, half); break;
            default: narrow_group<8>(strip, group, inverse, half);
        }
    }
    if (count % 2) memset(to + count / 2 * PAIR_BYTES + TILE_BYTES / 2, 0, TILE_BYTES / 2);
}

// Groups [first, first + count) of both strips of a panel as tiles.
inline void narrow_panel(const Strip* strips, const float* scales, int first, int count, uint8_t* to) {
    for (int half = 0; half < 2; half++) {
        const Vector scale = load(scales + half * STRIP);
        const Vector inverse = scale > 0 ? 256.0f / scale : Vector{};
        narrow_strip(strips[half], first, count, inverse, to + half * TILE_BYTES);
    }
}

// Steps [step, step + count) of a panel as tiles: where they stand, or made from strips in `room`.
inline const uint8_t* tiles_of(const Weights& w, int panel, int step, int count, uint8_t* room) {
    if (w.format != Format::PACKED_GGML) return w.place(panel, step);
    const int group = 2 * step, num_groups = std::min(2 * count, w.num_in / GROUP - group);
    narrow_panel(&w.strips[2 * panel], &w.scales[panel * PANEL_COLUMNS], group, num_groups, room);
    for (int i = 2 * panel + 2; i < std::min(2 * panel + 4, (int)w.strips.size()); i++)
        fetch(w.strips[i].group(group), num_groups * w.strips[i].group_bytes());
    return room;
}

// What a column is divided by, so that it fits into its format.
inline float scale_of(Format format, const float* column, int count) {
    if (format == Format::BF16) return 1.0f;
    float most = 0;
    for (int i = 0; i < count; i++) most = std::max(most, std::abs(column[i]));
    return most / 127.0f;
}

// One column to its place in a panel.
inline void pack_column(Weights& w, const float* from, int panel, int column) {
    const float scale = w.scales[panel * PANEL_COLUMNS + column] = scale_of(w.format, from, w.num_in);
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    const int size = step_of(w.format);
    for (int step = 0; step < w.num_steps; step++) {
        alignas(64) float numbers[64] = {};
        alignas(64) int8_t bytes[STEP_BYTES];
        memcpy(numbers, from + step * size, std::min(size, w.num_in - step * size) * sizeof(float));
        for (int i = 0; i < size; i += LANES)
            w.format == Format::INT8 ? store(bytes + i, load(numbers + i) * inverse)
                                     : store((uint16_t*)bytes + i, load(numbers + i));
        uint8_t* to = w.place(panel, step) + column / 16 * TILE_BYTES + column % 16 * WORD_BYTES;
        for (int i = 0; i < 16; i++) memcpy(to + i * STEP_BYTES, bytes + i * WORD_BYTES, WORD_BYTES);
        for (int i = 0; w.format == Format::INT8 && i < size; i++) w.sums[panel * PANEL_COLUMNS + column] += bytes[i];
    }
}

// Of this shape, without numbers yet.
inline std::unique_ptr<Weights> shape_weights(Format format, int num_out, int num_in, bool is_gated, bool in_floats) {
    const int columns = is_gated ? divide_up(num_out / 2, 16) * PANEL_COLUMNS : num_out;
    const int num_steps = divide_up(num_in, step_of(format)), num_panels = divide_up(columns, PANEL_COLUMNS);
    auto w = std::make_unique<Weights>(Weights{format, num_out, num_in, is_gated, in_floats, num_steps, num_panels, {}, {}, {}});
    w->scales.assign(num_panels * PANEL_COLUMNS, 0.0f), w->bias = w->scales;
    return w;
}

inline void reserve_tiles(Weights& w) {
    w.numbers = Memory((size_t)w.num_panels * w.num_steps * PAIR_BYTES);
    w.sums.assign(w.num_panels * PANEL_COLUMNS, 0);
}

// matrix: [num_out][num_in], gate before up if it is gated; bias: [num_out] or null
inline Weights* pack_weights(Workers& workers, Format format, const float* matrix, const float* bias, int num_out,
                             int num_in, bool is_gated, bool in_floats) {
    auto w = shape_weights(format, num_out, num_in, is_gated, in_floats);
    if (format == Format::F32) w->numbers = Memory((size_t)w->num_panels * num_in * PANEL_COLUMNS * sizeof(float));
    else reserve_tiles(*w);
    workers.split(w->num_panels, 1, [&](int panel, int) {
        for (int i = 0; i < PANEL_COLUMNS; i++) {
            const int column = panel * PANEL_COLUMNS + i, source = w->source(column);
            if (source < 0) continue;
            const float* from = matrix + (size_t)source * num_in;
            if (format != Format::F32) pack_column(*w, from, panel, i);
            else for (int k = 0; k < num_in; k++) w->floats(panel)[(size_t)k * PANEL_COLUMNS + i] = from[k];
            if (bias) w->bias[column] = bias[source];
        }
    });
    return w.release();
}

// Rows of a matrix in one kind. A matrix may have several of them, one below the other.
struct Part {
    GgmlType kind;
    const uint8_t* rows;
    int num_rows;
};

// A row, of the part that has it.
inline Part row_of(const std::vector<Part>& parts, int row, int num_in) {
    for (const Part& part : parts) {
        if (row < part.num_rows) return {part.kind, part.rows + (size_t)row * row_bytes(part.kind, num_in), 1};
        row -= part.num_rows;
    }
    return {};
}

// Both strips of a panel, from the rows of the file that their columns are.
inline void pack_panel(Weights& w, const std::vector<Part>& parts, int panel, const Strip* strips, const GgmlType* kinds) {
    for (int half = 0; half < 2; half++) {
        const int first = panel * PANEL_COLUMNS + half * STRIP;
        const uint8_t* columns[STRIP];
        for (int i = 0; i < STRIP; i++) {
            const int source = w.source(first + i);
            columns[i] = source < 0 ? nullptr : row_of(parts, source, w.num_in).rows;
        }
        pack_strip(strips[half], kinds[half], columns, w.num_in / GROUP, &w.scales[first]);
    }
}

// The same as int8, the way strips become tiles, once for all.
inline void pack_bytes(Weights& w, const std::vector<Part>& parts, int panel, const GgmlType* kinds) {
    const int num_groups = w.num_in / GROUP;
    Strip strips[2] = {{info_of(kinds[0]), nullptr}, {info_of(kinds[1]), nullptr}};
    const size_t first_bytes = (size_t)num_groups * strips[0].group_bytes();
    std::vector<uint8_t> room(first_bytes + (size_t)num_groups * strips[1].group_bytes());
    strips[0].at = room.data(), strips[1].at = room.data() + first_bytes;
    pack_panel(w, parts, panel, strips, kinds);
    const uint8_t* tiles = w.place(panel, 0);
    narrow_panel(strips, &w.scales[panel * PANEL_COLUMNS], 0, num_groups, w.place(panel, 0));
    Integers sums[2] = {};
    for (int at = 0; at < w.num_steps * PAIR_BYTES; at += STEP_BYTES) {
        Integers words;
        memcpy(&words, tiles + at, sizeof(words));
        for (int shift = 0; shift < 32; shift += 8) sums[at / TILE_BYTES % 2] += words << shift >> 24;
    }
    memcpy(&w.sums[panel * PANEL_COLUMNS], sums, sizeof(sums));
}

// As strips or int8, in the background: until that has finished, rows have to stay. Null if a strip has columns of several
// kinds.
inline Weights* pack_parts(Background& background, Format format, const std::vector<Part>& parts, const float* bias,
                           int num_in, bool is_gated, bool in_floats) {
    int num_out = 0;
    for (const Part& part : parts) num_out += part.num_rows;
    auto w = shape_weights(format, num_out, num_in, is_gated, in_floats);
    const bool are_strips = format == Format::PACKED_GGML;
    std::vector<GgmlType> kinds;
    std::vector<size_t> offsets = {0};
    for (int i = 0; i < 2 * w->num_panels; i++) {
        kinds.push_back(row_of(parts, std::max(0, w->source(i * STRIP)), num_in).kind);
        if (!are_strips) continue;
        w->strips.push_back({info_of(kinds[i]), nullptr});
        offsets.push_back(offsets[i] + (size_t)(num_in / GROUP) * w->strips[i].group_bytes());
    }
    for (int i = 0; i < w->num_panels * PANEL_COLUMNS; i++) {
        const int source = w->source(i);
        if (source < 0) continue;
        if (row_of(parts, source, num_in).kind != kinds[i / STRIP]) return nullptr;
        if (bias) w->bias[i] = bias[source];
    }
    if (are_strips) w->numbers = Memory(offsets.back());
    else reserve_tiles(*w);
    for (int i = 0; i < (int)w->strips.size(); i++) w->strips[i].at = w->numbers.data() + offsets[i];
    background.add(w->num_panels, [to = w.get(), parts, kinds = std::move(kinds), are_strips](int panel) {
        if (are_strips) pack_panel(*to, parts, panel, &to->strips[2 * panel], &kinds[2 * panel]);
        else pack_bytes(*to, parts, panel, &kinds[2 * panel]);
    });
    return w.release();
}
