// Rows of a batch on their way into products: normalised, rounded, and in the order of tiles, or grouped.
//
// In front of int8 weights, and of strips that become such, rows are rounded to bytes (outliers.h). Where they are few, and
// products take less time than reading the weights, they are rounded to integers of 16 bits, by a scale for each row: a
// product is then the sum of two of bytes, and is exact. Those have 2^15 added, so that no byte has a sign. Up to eight
// rows have their high and their low bytes in the same tile, one below the other, for half of the products.

#pragma once

#include <cmath>

#include "floats.h"
#include "grouped.h"
#include "quants.h"
#include "outliers.h"
#include "tiles.h"

#ifndef MAX_GROUPED_ROWS
#define MAX_GROUPED_ROWS (HAS_AMX ? 16 : 1 << 30)  // up to which strips are multiplied as they are
#endif

constexpr int MAX_WORD_ROWS = 16;
constexpr int LEAST = 1 << 15, MOST = 127 * 256;  // what is added to integers, and the largest of them before that

enum class RowForm { BF16, INT8, INT16, GROUPED, FLOATS };

struct Rows {
    RowForm form;
    int num_rows;
    Chunks chunks;
    Memory tiles;
    std::vector<float> scales;  // of each row, if they are integers; of each of its chunks, if they are bytes
    std::vector<Outliers> outliers;   // of each chunk, if they are bytes
    std::vector<float> factors; // of each row, by which it is normalised, if they are bytes
    GroupedRows grouped;
    FloatRows floats;

    bool are_few() const { return form == RowForm::INT16 && num_rows <= 8; }
    int tile_rows() const { return are_few() ? 2 * num_rows : std::min(num_rows, 16); }
    int low_bytes() const { return are_few() ? num_rows * STEP_BYTES : TILE_BYTES; }       // after the high ones
    int low_sums() const { return are_few() ? num_rows * TILE_COLUMNS : 2 * TILE_SUMS; }
    int block_rows() const { return form == RowForm::INT16 ? 16 : 32; }
    int num_blocks() const { return divide_up(num_rows, block_rows()); }
    int num_steps() const { return chunks.num_steps + (form == RowForm::INT8 ? chunks.count : 0); }
    uint8_t* block(int i) const { return tiles.data() + (size_t)i * num_steps() * PAIR_BYTES; }
    uint8_t* row(int i) const { return block(i / block_rows()) + i % block_rows() * STEP_BYTES; }
    // Where a chunk of bytes begins in a block.
    size_t chunk_offset(int chunk) const { return (size_t)(chunks.begin(chunk) + chunk) * PAIR_BYTES; }
    size_t scale_place(int row, int chunk) const { return (size_t)row * chunks.count + chunk; }
};

inline RowForm form_for(const Weights& w, int num_rows, bool in_tiles) {
    if (w.in_floats) return RowForm::FLOATS;
    switch (w.format) {
        case Format::BF16: return RowForm::BF16;
        case Format::INT8: return num_rows <= MAX_WORD_ROWS ? RowForm::INT16 : RowForm::INT8;
        case Format::PACKED_GGML: return !in_tiles || num_rows <= MAX_GROUPED_ROWS ? RowForm::GROUPED : RowForm::INT8;
        default: return RowForm::FLOATS;
    }
}

// A row on its way: x * factor * weight, or, where there is no weight, x.
template <typename Number>
struct Row {
    const Number* x;
    const float* weight;
    float factor;

    Vector at(int i) const { return weight ? load(x + i) * factor * load(weight + i) : load(x + i); }
};

// Rows of `width` numbers, `stride` from one to the next, to be normalised if there is a weight:
// x / sqrt(mean(x^2) + eps) * weight. With an index these are the rows with its numbers.
template <typename Number>
struct Source {
    const Number* numbers;
    int width;
    const float* weight = nullptr;
    float eps = 0;
    int stride = width;
    const int* index = nullptr;

    const Number* row(int i) const { return numbers + (size_t)(index ? index[i] : i) * stride; }

    float factor(int i) const {
        if (!weight) return 1;
        Vector a = {}, b = {}, c = {}, d = {};  // so that none waits for the one before
        auto add_square = [](Vector& sum, Vector v) { sum += v * v; };
        for (const Number *x = row(i), *end = x + stride; x < end; x += 4 * LANES) {
            add_square(a, load(x)), add_square(b, load(x + LANES));
            add_square(c, load(x + 2 * LANES)), add_square(d, load(x + 3 * LANES));
        }
        return 1.0f / sqrtf(sum_of((a + b) + (c + d)) / width + eps);
    }
};

template <typename Number>
void put_bf16(Row<Number> row, int num_steps, uint8_t* to) {
    for (int i = 0; i < num_steps * 2 * LANES; i += 2 * LANES, to += PAIR_BYTES)
        store((uint16_t*)to, row.at(i), row.at(i + LANES));
}

template <typename Number>
void put_floats(Row<Number> row, int count, float* to) {
    for (int i = 0; i < count; i += LANES) {
        const Vector v = row.at(i);
        for (int j = 0; j < LANES; j++) to[(i + j) * FLOAT_BLOCK] = v[j];
    }
}

// Low bytes so far after high ones. Returns what an integer stands for.
template <typename Number>
float put_words(Row<Number> row, int num_steps, uint8_t* to, int low_bytes) {
    const int count = num_steps * STEP_BYTES;
    Vector most = {};
    for (int i = 0; i < count; i += LANES) most = larger(most, absolute(row.at(i)));
    const float scale = largest_of(most) / MOST, inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (int step = 0; step < count; step += STEP_BYTES, to += PAIR_BYTES)
        for (int i = 0; i < STEP_BYTES; i += LANES) {
            const Bits integers = (Bits)nearest(row.at(step + i) * inverse) + LEAST;
            store_low_bytes(to + i, integers >> 8), store_low_bytes(to + low_bytes + i, integers);
        }
    return scale;
}

// most = the larger of it and |x * factor|
template <typename Number>
void raise_to(float* most, const Number* x, float factor, int count) {
    for (int i = 0; i < count; i += LANES)
        store(most + i, larger(absolute(load(x + i) * factor), load(most + i)));  // which stays if x is no number
}

// What is largest in each channel decides. All rows are looked at: in most texts there is one that has channels a
// thousand times as large as the others have them, and it would lose all else.
template <typename Number>
void choose_outliers(Workers& workers, Rows& rows, const Source<Number>& source) {
    const Chunks& chunks = rows.chunks;
    const int size = chunks.num_steps * STEP_BYTES, piece = 8;
    rows.factors.resize(rows.num_rows);
    std::vector<std::vector<float>> largest(workers.num_workers, std::vector<float>(size));
    auto none = [] {};
    auto look = [&](int job, int worker) {
        for (int i = job * piece; i < std::min(job * piece + piece, rows.num_rows); i++) {
            rows.factors[i] = source.factor(i);
            raise_to(largest[worker].data(), source.row(i), rows.factors[i], size);
        }
    };
    workers.share(divide_up(rows.num_rows, piece), none, look, none);
    for (int worker = 1; worker < workers.num_workers; worker++)
        for (int i = 0; i < size; i++) largest[0][i] = std::max(largest[0][i], largest[worker][i]);
    for (int i = 0; source.weight && i < size; i++)
        largest[0][i] = std::max(0.0f, largest[0][i] * fabsf(source.weight[i]));
    rows.outliers.resize(chunks.count);
    for (int i = 0; i < chunks.count; i++) {
        const int begin = chunks.begin(i) * STEP_BYTES, end = chunks.end(i) * STEP_BYTES;
        rows.outliers[i].choose(&largest[0][begin], end - begin);
    }
}

template <typename Number>
void put_chunks(Rows& rows, int i, Row<Number> row) {
    static thread_local std::vector<float> room;
    room.resize(rows.chunks.size * STEP_BYTES);
    for (int chunk = 0; chunk < rows.chunks.count; chunk++) {
        uint8_t* to = rows.row(i) + rows.chunk_offset(chunk);
        const int begin = rows.chunks.begin(chunk) * STEP_BYTES;
        rows.scales[rows.scale_place(i, chunk)] = put_bytes(row, begin, rows.outliers[chunk], room.data(), to);
    }
}

// Rows with zeros up to `stride`.
template <typename Number>
std::vector<Number> padded(const Source<Number>& from, int num_rows, int stride) {
    std::vector<Number> to((size_t)num_rows * stride);
    for (int i = 0; i < num_rows; i++) memcpy(&to[(size_t)i * stride], from.row(i), from.width * sizeof(Number));
    return to;
}

// Rows for these weights; of strips and floats they may be asked to be in no tiles.
template <typename Number>
void pack_rows(Workers& workers, Rows& rows, const Weights& next, int num_rows, const Source<Number>& source,
               bool in_tiles = true) {
    if (source.stride % STEP_BYTES) {  // all else reads whole steps
        const int stride = divide_up(source.stride, STEP_BYTES) * STEP_BYTES;
        const std::vector<Number> numbers = padded(source, num_rows, stride);
        const std::vector<float> weight = padded(Source<float>{source.weight, source.width}, source.weight != nullptr, stride);
        const float* weights = source.weight ? weight.data() : nullptr;
        const Source<Number> whole = {numbers.data(), source.width, weights, source.eps, stride};
        return pack_rows(workers, rows, next, num_rows, whole, in_tiles);
    }
    rows.form = form_for(next, num_rows, in_tiles), rows.num_rows = num_rows, rows.chunks = {next.num_steps};
    if (rows.form == RowForm::GROUPED) rows.grouped.resize(num_rows, next.num_in);
    else if (rows.form == RowForm::FLOATS) rows.floats.resize(num_rows, source.stride);
    else rows.tiles.reserve((size_t)rows.num_blocks() * rows.num_steps() * PAIR_BYTES);
    rows.scales.resize((size_t)num_rows * rows.chunks.count);
    if (rows.form == RowForm::INT8) choose_outliers(workers, rows, source);
    workers.split(num_rows, 4, [&](int begin, int end) {
        for (int i = begin; i < end; i++) {
            const float factor = rows.form == RowForm::INT8 ? rows.factors[i] : source.factor(i);
            const Row<Number> row = {source.row(i), source.weight, factor};
            switch (rows.form) {
                case RowForm::FLOATS: put_floats(row, rows.floats.width, rows.floats.at(i, 0)); break;
                case RowForm::GROUPED: round_row(rows.grouped, i, row); break;
                case RowForm::INT16: rows.scales[i] = put_words(row, next.num_steps, rows.row(i), rows.low_bytes()); break;
                case RowForm::INT8: put_chunks(rows, i, row); break;
                case RowForm::BF16: put_bf16(row, next.num_steps, rows.row(i));
            }
        }
    });
}
