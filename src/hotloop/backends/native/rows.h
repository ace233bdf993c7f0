// Rows of a batch on their way into products: normalised, rounded, and in the order of tiles, or grouped.
//
// In front of int8 weights, and of strips that become such, rows are rounded to bytes (slots.h). Where they are few, and
// products take less time than reading the weights, they are rounded to integers of 16 bits, by a scale for each row: a
// product is then the sum of two of bytes, and is exact. Those have 2^15 added, so that no byte has a sign. Up to eight
// rows have their high and their low bytes in the same tile, one below the other, for half of the products.

#pragma once

#include <cmath>

#include "grouped.h"
#include "quants.h"
#include "slots.h"
#include "tiles.h"

#ifndef MAX_GROUPED_ROWS
#define MAX_GROUPED_ROWS (HAS_AMX ? 16 : 1 << 30)  // up to which strips are multiplied as they are
#endif

constexpr int MAX_WORD_ROWS = 16;
constexpr int LEAST = 1 << 15, MOST = 127 * 256;  // what is added to integers, and the largest of them before that

enum class RowForm { BF16, BYTES, WORDS, GROUPED };

struct Rows {
    RowForm form;
    int num_rows;
    Chunks chunks;
    Memory tiles;
    std::vector<float> scales;  // of each row, if they are integers; of each of its chunks, if they are bytes
    std::vector<Slots> slots;   // of each chunk, if they are bytes
    GroupedRows grouped;

    bool are_few() const { return form == RowForm::WORDS && num_rows <= 8; }
    int tile_rows() const { return are_few() ? 2 * num_rows : std::min(num_rows, 16); }
    int low_bytes() const { return are_few() ? num_rows * STEP_BYTES : TILE_BYTES; }       // after the high ones
    int low_sums() const { return are_few() ? num_rows * TILE_COLUMNS : 2 * TILE_SUMS; }
    int block_rows() const { return form == RowForm::WORDS ? 16 : 32; }
    int num_blocks() const { return divide_up(num_rows, block_rows()); }
    int num_steps() const { return chunks.num_steps + (form == RowForm::BYTES ? chunks.count : 0); }
    uint8_t* block(int i) const { return tiles.data() + (size_t)i * num_steps() * PAIR_BYTES; }
    uint8_t* row(int i) const { return block(i / block_rows()) + i % block_rows() * STEP_BYTES; }
    // Where a chunk of bytes begins in a block.
    size_t chunk_offset(int chunk) const { return (size_t)(chunks.begin(chunk) + chunk) * PAIR_BYTES; }
    size_t scale_place(int row, int chunk) const { return (size_t)row * chunks.count + chunk; }
};

inline RowForm form_for(const Weights& w, int num_rows) {
    switch (w.format) {
        case Format::BF16: return RowForm::BF16;
        case Format::INT8: return num_rows <= MAX_WORD_ROWS ? RowForm::WORDS : RowForm::BYTES;
        case Format::STRIPS: return num_rows <= MAX_GROUPED_ROWS ? RowForm::GROUPED : RowForm::BYTES;
    }
    return RowForm::BF16;
}

// x / sqrt(mean(x^2) + eps) * weight
inline void normalise(const float* x, const float* weight, float eps, int count, float* to) {
    Vector squares[4] = {};  // so that none waits for the one before
    float rest = 0;
    int i = 0;
    for (; i + 4 * LANES <= count; i += 4 * LANES)
        for (int j = 0; j < 4; j++) squares[j] += load(x + i + j * LANES) * load(x + i + j * LANES);
    for (; i < count; i++) rest += x[i] * x[i];
    const float square = sum_of((squares[0] + squares[1]) + (squares[2] + squares[3])) + rest;
    const float inverse = 1.0f / sqrtf(square / count + eps);
    for (i = 0; i < count; i++) to[i] = x[i] * inverse * weight[i];
}

// `count` numbers a step at a time, the last one filled up with zeros.
template <int STEP, typename Number, typename Work>
void for_steps(const Number* from, int count, Work work) {
    int i = 0;
    for (; i + STEP <= count; i += STEP) work(from + i);
    if (i == count) return;
    alignas(64) Number rest[STEP] = {};
    memcpy(rest, from + i, (count - i) * sizeof(Number));
    work((const Number*)rest);
}

inline void put_bf16(const float* from, int count, uint8_t* to) {
    for_steps<32>(from, count, [&](const float* x) {
        store((uint16_t*)to, load(x), load(x + LANES));
        to += PAIR_BYTES;
    });
}

inline void put_bf16(const uint16_t* from, int count, uint8_t* to) {
    for_steps<32>(from, count, [&](const uint16_t* x) {
        memcpy(to, x, STEP_BYTES);
        to += PAIR_BYTES;
    });
}

// Low bytes so far after high ones. Returns what an integer stands for.
template <typename Number>
float put_words(const Number* from, int count, uint8_t* to, int low_bytes) {
    Vector most = {};
    for_steps<LANES>(from, count, [&](const Number* x) { most = larger(most, absolute(load(x))); });
    const float scale = largest_of(most) / MOST, inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for_steps<64>(from, count, [&](const Number* x) {
        for (int i = 0; i < 64; i += LANES) {
            const Bits integers = (Bits)nearest(load(x + i) * inverse) + LEAST;
            store_low_bytes(to + i, integers >> 8), store_low_bytes(to + low_bytes + i, integers);
        }
        to += PAIR_BYTES;
    });
    return scale;
}

// A worker's own, for one row.
inline std::vector<float>& row_room(int size) {
    static thread_local std::vector<float> room;
    room.resize(size);
    return room;
}

// What is largest in each channel decides. All rows are looked at: in most texts there is one that has channels a
// thousand times as large as the others have them, and it would lose all else.
template <typename Prepare>
void choose_slots(Workers& workers, Rows& rows, int num_in, Prepare prepare) {
    const Chunks& chunks = rows.chunks;
    const int size = chunks.num_steps * STEP_BYTES, piece = 8;
    std::vector<std::vector<float>> largest(workers.num_workers, std::vector<float>(size));
    auto none = [] {};
    auto look = [&](int job, int worker) {
        std::vector<float>&most = largest[worker], &scratch = row_room(size);
        for (int row = job * piece; row < std::min(job * piece + piece, rows.num_rows); row++) {
            int i = 0;
            for_steps<LANES>(prepare(row, scratch.data()), num_in, [&](const auto* x) {
                store(&most[i], larger(absolute(load(x)), load(&most[i])));  // which stays if x is no number
                i += LANES;
            });
        }
    };
    workers.share(divide_up(rows.num_rows, piece), none, look, none);
    for (int worker = 1; worker < workers.num_workers; worker++)
        for (int i = 0; i < size; i++) largest[0][i] = std::max(largest[0][i], largest[worker][i]);
    rows.slots.resize(chunks.count);
    for (int i = 0; i < chunks.count; i++) {
        const int begin = chunks.begin(i) * STEP_BYTES, end = chunks.end(i) * STEP_BYTES;
        rows.slots[i].choose(&largest[0][begin], end - begin);
    }
}

inline void put_chunks(Rows& rows, int row, const float* x) {
    for (int i = 0; i < rows.chunks.count; i++) {
        uint8_t* to = rows.row(row) + rows.chunk_offset(i);
        rows.scales[rows.scale_place(row, i)] = put_bytes(x + rows.chunks.begin(i) * STEP_BYTES, rows.slots[i], to);
    }
}

// As floats, with zeros to the end of a step; where they are such already, where they stand.
inline const float* in_steps(const float* from, int count, std::vector<float>& room) {
    if (from != room.data() && count % STEP_BYTES == 0) return from;
    if (from != room.data()) memcpy(room.data(), from, count * sizeof(float));
    std::fill(room.begin() + count, room.end(), 0.0f);
    return room.data();
}

inline const float* in_steps(const uint16_t* from, int count, std::vector<float>& room) {
    for (int i = 0; i < count; i++) room[i] = widened(from[i]);
    return in_steps(room.data(), count, room);
}

// Rows for these weights; `prepare(row, scratch)` says where one stands, having made it ready.
template <typename Prepare>
void pack_rows(Workers& workers, Rows& rows, const Weights& next, int num_rows, Prepare prepare) {
    const int num_in = next.num_in;
    rows.form = form_for(next, num_rows), rows.num_rows = num_rows, rows.chunks = {next.num_steps};
    if (rows.form == RowForm::GROUPED) rows.grouped.resize(num_rows, num_in);
    else rows.tiles.reserve((size_t)rows.num_blocks() * rows.num_steps() * PAIR_BYTES);
    rows.scales.resize((size_t)num_rows * rows.chunks.count);
    if (rows.form == RowForm::BYTES) choose_slots(workers, rows, num_in, prepare);
    workers.split(num_rows, 4, [&](int begin, int end) {
        std::vector<float>& scratch = row_room(divide_up(num_in, STEP_BYTES) * STEP_BYTES);
        for (int row = begin; row < end; row++) {
            const auto* from = prepare(row, scratch.data());
            switch (rows.form) {
                case RowForm::GROUPED: round_row(rows.grouped, row, from); break;
                case RowForm::WORDS: rows.scales[row] = put_words(from, num_in, rows.row(row), rows.low_bytes()); break;
                case RowForm::BYTES: put_chunks(rows, row, in_steps(from, num_in, scratch)); break;
                case RowForm::BF16: put_bf16(from, num_in, rows.row(row));
            }
        }
    });
}
