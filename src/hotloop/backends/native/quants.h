// Weights as they are held, and as tiles: bf16 is read where it stands, int8 (a scale for each column of the result) is
// widened on the way into tiles, a chunk of a panel at a time, and its scales wait for the sums.

#pragma once

#include <algorithm>
#include <vector>

#include "layout.h"
#include "vectors.h"
#include "workers.h"

enum class Format { INT8, BF16 };

inline int size_of(Format format) { return format == Format::INT8 ? 1 : 2; }

// One matrix. Gated: it is two, gate and up, of which a panel has 16 columns each, so that they meet in its sums.
struct Weights {
    Format format;
    int num_out, num_in;
    bool is_gated;
    int num_steps, num_panels;
    Memory numbers;                   // in the order of tiles
    std::vector<float> scales, bias;  // of each column of the panels

    // The row of the matrix, gate before up, that a column is; -1 if it only fills up the last panel.
    int source(int column) const {
        if (!is_gated) return column < num_out ? column : -1;
        const int half = num_out / 2, i = column / PANEL_COLUMNS * 16 + column % 16;
        return i >= half ? -1 : column % PANEL_COLUMNS < 16 ? i : half + i;
    }
    size_t num_bytes(int num_pairs) const { return (size_t)num_pairs * PAIR_NUMBERS * size_of(format); }
    uint8_t* place(int panel, int step) const {
        return numbers.data() + num_bytes(panel * num_steps + step);
    }
};

// Bytes to bf16, which holds them exactly.
inline void widen_bytes(const int8_t* from, size_t count, uint16_t* to) {
    for (size_t i = 0; i < count; i += 2 * LANES) store(to + i, load(from + i), load(from + i + LANES));
}

// Steps [step, step + count) of a panel as tiles: where they stand, or unpacked into `room`.
inline const uint8_t* tiles_of(const Weights& w, int panel, int step, int count, uint8_t* room) {
    const uint8_t* from = w.place(panel, step);
    if (w.format == Format::BF16) return from;
    widen_bytes((const int8_t*)from, (size_t)count * PAIR_NUMBERS, (uint16_t*)room);
    return room;
}

// A row of the matrix that weights were packed from, as it was rounded.
inline void read_row(const Weights& w, int row, float* to) {
    const int half = row % PANEL_COLUMNS / 16;
    for (int i = 0; i < w.num_in; i++) {
        const int k = i % STEP;
        const size_t at = half * TILE_NUMBERS + (k / 2 * 16 + row % 16) * 2 + k % 2;
        const uint8_t* pair = w.place(row / PANEL_COLUMNS, i / STEP);
        to[i] = w.format == Format::INT8 ? ((const int8_t*)pair)[at] * w.scales[row] : widened(((const uint16_t*)pair)[at]);
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
    for (int step = 0; step < w.num_steps; step++) {
        alignas(64) float numbers[STEP] = {};
        memcpy(numbers, from + step * STEP, std::min(STEP, w.num_in - step * STEP) * sizeof(float));
        uint8_t* pair = w.place(panel, step);
        const int first = column / 16 * TILE_NUMBERS + column % 16 * 2;
        alignas(64) uint16_t halves[STEP];
        alignas(64) int8_t bytes[STEP];
        for (int i = 0; i < STEP; i += LANES)
            w.format == Format::INT8 ? store(bytes + i, load(numbers + i) * inverse) : store(halves + i, load(numbers + i));
        for (int i = 0; i < STEP; i += 2) {
            const int at = first + i * 16;
            if (w.format == Format::INT8) memcpy(pair + at, bytes + i, 2);
            else memcpy(pair + at * 2, halves + i, 4);
        }
    }
}

// matrix: [num_out][num_in], gate before up if it is gated; bias: [num_out] or null
inline Weights* pack_weights(Workers& workers, Format format, const float* matrix, const float* bias, int num_out,
                             int num_in, bool is_gated) {
    const int columns = is_gated ? divide_up(num_out / 2, 16) * PANEL_COLUMNS : num_out;
    const int num_steps = divide_up(num_in, STEP), num_panels = divide_up(columns, PANEL_COLUMNS);
    auto* w = new Weights{format, num_out, num_in, is_gated, num_steps, num_panels, {}, {}, {}};
    w->numbers = Memory(w->num_bytes(num_panels * num_steps));
    w->scales.assign(num_panels * PANEL_COLUMNS, 0.0f), w->bias.assign(num_panels * PANEL_COLUMNS, 0.0f);
    workers.split(num_panels, 1, [&](int panel, int) {
        for (int i = 0; i < PANEL_COLUMNS; i++) {
            const int column = panel * PANEL_COLUMNS + i, source = w->source(column);
            if (source < 0) continue;
            pack_column(*w, matrix + (size_t)source * num_in, panel, i);
            if (bias) w->bias[column] = bias[source];
        }
    });
    return w;
}
