// Weights as they are held, and as tiles: bf16 and int8 (a scale for each column of the result, which waits for the sums)
// are read where they stand. Strips of a GGUF file's codes are widened to bf16 on the way into tiles, a chunk of a panel at
// a time, scales and all, or multiplied as they are (grouped.h).

#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "layout.h"
#include "strips.h"
#include "vectors.h"
#include "workers.h"

enum class Format { INT8, BF16, STRIPS };

// Numbers of K.
inline int step_of(Format format) { return format == Format::INT8 ? 64 : 32; }

// One matrix. Gated: it is two, gate and up, of which a panel has 16 columns each, so that they meet in its sums.
struct Weights {
    Format format;
    int num_out, num_in;
    bool is_gated;
    int num_steps, num_panels;
    Memory numbers;                   // in the order of tiles
    std::vector<float> scales, bias;  // of each column of the panels
    std::vector<int32_t> sums = {};   // of the bytes of a column, if they are bytes
    std::vector<Strip> strips = {};   // two for each panel

    // The row of the matrix, gate before up, that a column is; -1 if it only fills up the last panel.
    int source(int column) const {
        if (!is_gated) return column < num_out ? column : -1;
        const int half = num_out / 2, i = column / PANEL_COLUMNS * 16 + column % 16;
        return i >= half ? -1 : column % PANEL_COLUMNS < 16 ? i : half + i;
    }
    uint8_t* place(int panel, int step) const {  // but of strips
        return numbers.data() + (size_t)(panel * num_steps + step) * PAIR_BYTES;
    }
};

// A group of a strip as one tile of a pair. Codes become floats by their place: in bits 15 to 22 of 256.0 they add themselves.
template <int BITS>
void widen_group(const Strip& strip, const uint8_t* group, uint16_t* to) {
    const half *scales = (const half*)group, *mins = scales + strip.num_scales();
    Vector scale[2], offset[2];
    for (int part = 0; part < (strip.info.has_halves ? 2 : 1); part++) {
        scale[part] = load(scales + part * STRIP), offset[part] = scale[part] * -(256.0f + strip.info.center);
        if (strip.info.has_mins) offset[part] -= load(mins + part * STRIP);
    }
    if (!strip.info.has_halves) scale[1] = scale[0], offset[1] = offset[0];
    auto widen_word = [&](int row, Bits four) __attribute__((always_inline)) {
        auto number = [&](Bits shifted) {
            return multiply_add((Vector)((shifted & 0x7f8000) | 0x43800000), scale[row / 4], offset[row / 4]);
        };
        store_pairs(to + row * 64, number(four << 15), number(four << 7));
        store_pairs(to + row * 64 + 32, number(four >> 1), number(four >> 9));
    };
    const uint8_t* codes = group + strip.code_offset();
    auto widen_words = [&]<int ROW>() __attribute__((always_inline)) {
        Bits low, high;
        for (int piece = 0; piece < STRIP * 4; piece += LANE_BYTES) {
            Codes a, b;
            unpack_piece<BITS, ROW>(codes + piece, a, b);
            store_codes((uint8_t*)&low + piece, a), store_codes((uint8_t*)&high + piece, b);
        }
        widen_word(ROW, low), widen_word(ROW + 4, high);
    };
    widen_words.template operator()<0>(), widen_words.template operator()<1>();
    widen_words.template operator()<2>(), widen_words.template operator()<3>();
}

inline void widen_strip(const Strip& strip, int first, int count, uint8_t* to) {
    for (int i = first; i < first + count; i++, to += PAIR_BYTES) {
        switch (strip.info.bits) {
            case 4: widen_group<4>(strip, strip.group(i), (uint16_t*)to); break;
            case 5: widen_group<5>(strip, strip.group(i), (uint16_t*)to); break;
            case 6: widen_group<6>(strip, strip.group(i), (uint16_t*)to); break;
            default: widen_group<8>(strip, strip.group(i), (uint16_t*)to);
        }
    }
}

// Steps [step, step + count) of a panel as tiles: where they stand, or unpacked into `room`.
inline const uint8_t* tiles_of(const Weights& w, int panel, int step, int count, uint8_t* room) {
    if (w.format != Format::STRIPS) return w.place(panel, step);
    for (int half = 0; half < 2; half++) widen_strip(w.strips[2 * panel + half], step, count, room + half * TILE_BYTES);
    for (int i = 2 * panel + 2; i < std::min(2 * panel + 4, (int)w.strips.size()); i++)
        fetch(w.strips[i].group(step), count * w.strips[i].group_bytes());
    return room;
}

// A row of the matrix that weights were packed from, as it was rounded.
inline void read_row(const Weights& w, int row, float* to) {
    const int size = step_of(w.format);
    for (int i = 0; i < w.num_in; i++) {
        const int byte = i % size * (STEP_BYTES / size);
        const uint8_t* tile = w.place(row / PANEL_COLUMNS, i / size) + row % PANEL_COLUMNS / 16 * TILE_BYTES;
        const uint8_t* at = tile + byte / WORD_BYTES * STEP_BYTES + row % 16 * WORD_BYTES + byte % WORD_BYTES;
        to[i] = w.format == Format::INT8 ? *(const int8_t*)at * w.scales[row] : widened(*(const uint16_t*)at);
    }
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

// matrix: [num_out][num_in], gate before up if it is gated; bias: [num_out] or null
inline Weights* pack_weights(Workers& workers, Format format, const float* matrix, const float* bias, int num_out,
                             int num_in, bool is_gated) {
    const int columns = is_gated ? divide_up(num_out / 2, 16) * PANEL_COLUMNS : num_out;
    const int num_steps = divide_up(num_in, step_of(format)), num_panels = divide_up(columns, PANEL_COLUMNS);
    auto w = std::make_unique<Weights>(Weights{format, num_out, num_in, is_gated, num_steps, num_panels, {}, {}, {}});
    w->numbers = Memory((size_t)num_panels * num_steps * PAIR_BYTES);
    w->scales.assign(num_panels * PANEL_COLUMNS, 0.0f), w->bias = w->scales;
    w->sums.assign(num_panels * PANEL_COLUMNS, 0);
    workers.split(num_panels, 1, [&](int panel, int) {
        for (int i = 0; i < PANEL_COLUMNS; i++) {
            const int column = panel * PANEL_COLUMNS + i, source = w->source(column);
            if (source < 0) continue;
            pack_column(*w, matrix + (size_t)source * num_in, panel, i);
            if (bias) w->bias[column] = bias[source];
        }
    });
    return w.release();
}

// Rows of a matrix in one kind. A matrix may have several of them, one below the other.
struct Part {
    Kind kind;
    const uint8_t* rows;
    int num_rows;
};

// Null if a strip has columns of several kinds.
inline Weights* pack_strips(Workers& workers, const std::vector<Part>& parts, const float* bias, int num_in, bool is_gated) {
    int num_out = 0;
    std::vector<std::pair<Kind, const uint8_t*>> rows;
    for (const Part& part : parts) num_out += part.num_rows;
    rows.reserve(num_out);
    for (const Part& part : parts)
        for (int i = 0; i < part.num_rows; i++)
            rows.emplace_back(part.kind, part.rows + (size_t)i * row_bytes(part.kind, num_in));
    const int columns = is_gated ? divide_up(num_out / 2, 16) * PANEL_COLUMNS : num_out;
    const int num_groups = num_in / GROUP, num_panels = divide_up(columns, PANEL_COLUMNS);
    auto w = std::make_unique<Weights>(Weights{Format::STRIPS, num_out, num_in, is_gated, num_groups, num_panels, {}, {}, {}});
    w->scales.assign(num_panels * PANEL_COLUMNS, 1.0f), w->bias.assign(num_panels * PANEL_COLUMNS, 0.0f);
    std::vector<Kind> kinds;
    std::vector<size_t> offsets = {0};
    for (int i = 0; i < 2 * num_panels; i++) {
        const int source = std::max(0, w->source(i * STRIP));
        kinds.push_back(rows[source].first);
        w->strips.push_back({info_of(kinds[i]), nullptr});
        offsets.push_back(offsets[i] + (size_t)num_groups * w->strips[i].group_bytes());
    }
    for (int i = 0; i < num_panels * PANEL_COLUMNS; i++) {
        const int source = w->source(i);
        if (source < 0) continue;
        if (rows[source].first != kinds[i / STRIP]) return nullptr;
        if (bias) w->bias[i] = bias[source];
    }
    w->numbers = Memory(offsets.back());
    workers.split(2 * num_panels, 2, [&](int begin, int end) {
        for (int i = begin; i < end; i++) {
            const uint8_t* columns[STRIP];
            for (int j = 0; j < STRIP; j++) {
                const int source = w->source(i * STRIP + j);
                columns[j] = source < 0 ? nullptr : rows[source].second;
            }
            w->strips[i].at = w->numbers.data() + offsets[i];
            pack_strip(w->strips[i], kinds[i], columns, num_groups);
        }
    });
    return w.release();
}
