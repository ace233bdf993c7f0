// A mixture of experts on any CPU: a router chooses a few experts for each token, and only those are read.
//
// A token and one of its experts are a pair. The pairs of an expert go over its rows together, so a row is read from
// memory once a step. A pair is computed in the same way whatever else is in the step, and those of a token are summed
// in the order in which they were chosen: batching changes no bit of a result.
//
// Weights are stored row by row as one of
//
//     F32, BF16   numbers
//     INT8        a byte each, and a scale a row
//     INT4        groups of 32 in 16 bytes, the first half of a group in the low bits; a scale and a zero point a group
//
// What they are multiplied with is rounded to bytes too, by a scale for each 32 neighbours, unless it should be exact.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

#include <tbb/parallel_for.h>

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

#ifdef __ARM_FP16_FORMAT_IEEE
using half = __fp16;
#else
using half = _Float16;
#endif

extern "C" {

struct Matrix {
    const uint8_t* values;  // of all experts, one below the other
    const half* scales;     // of a row (INT8) or a group (INT4)
    const uint8_t* zeros;   // of a group (INT4)
    const float* bias;      // of a row, or null
};

struct Layer {
    const float *router, *router_bias;  // the latter may be null
    Matrix gate_up, down;               // of an expert all rows of gate, then of up
};

struct Experts {
    int hidden, size, num_experts, num_chosen, format;
    int is_exact, is_sigmoid, is_normed;
    int num_groups, num_chosen_groups;
    float scale, limit, slope;  // limit: 0 for none
};

}  // extern "C"

namespace {

enum Format { F32, BF16, INT8, INT4 };
constexpr int GROUP = 32;
constexpr int NUM_ROWS = 16;  // of an expert that a job has
constexpr int NUM_TOKENS = 4; // that go over a row at once

using Vector = float __attribute__((vector_size(16)));
using Integers = int32_t __attribute__((vector_size(16)));
using Bytes = uint8_t __attribute__((vector_size(GROUP / 2)));

inline Vector load(const float* from) {
    Vector v;
    memcpy(&v, from, sizeof(v));
    return v;
}

inline float sum(Vector v) { return (v[0] + v[1]) + (v[2] + v[3]); }

// Rows of numbers, and the same in bytes: for each group a scale, and the sum of what the bytes stand for.
struct Rows {
    int width, num_groups;
    std::vector<float> numbers;
    std::vector<int8_t> bytes;
    std::vector<float> scales;
    std::vector<float> sums;

    Rows(int count, int width, bool has_bytes) : width(width), num_groups((width + GROUP - 1) / GROUP) {
        numbers.resize((size_t)count * width);
        if (!has_bytes) return;
        bytes.resize((size_t)count * num_groups * GROUP);
        scales.resize((size_t)count * num_groups), sums.resize((size_t)count * num_groups);
    }

    void round(int row) {
        const float* x = numbers.data() + (size_t)row * width;
        for (int g = 0; g < num_groups; g++) {
            const int count = std::min(GROUP, width - g * GROUP);
            float largest = 0;
            for (int i = 0; i < count; i++) largest = std::max(largest, std::fabs(x[g * GROUP + i]));
            const float scale = largest / 127, factor = largest > 0 ? 127 / largest : 0;
            int8_t* to = bytes.data() + ((size_t)row * num_groups + g) * GROUP;
            int total = 0;
            for (int i = 0; i < GROUP; i++) {
                to[i] = i < count ? (int8_t)std::lrint(x[g * GROUP + i] * factor) : 0;
                total += to[i];
            }
            scales[(size_t)row * num_groups + g] = scale;
            sums[(size_t)row * num_groups + g] = total * scale;
        }
    }
};

inline Integers dot(const int8_t* a, const int8_t* b) {  // of a group, in four parts
#if defined(__ARM_FEATURE_DOTPROD)
    int32x4_t total = vdotq_s32(vdupq_n_s32(0), vld1q_s8(a), vld1q_s8(b));
    total = vdotq_s32(total, vld1q_s8(a + 16), vld1q_s8(b + 16));
    Integers v;
    memcpy(&v, &total, sizeof(v));
    return v;
#else
    int32_t parts[4] = {};
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < 8; i++) parts[p] += a[p * 8 + i] * b[p * 8 + i];
    return Integers{parts[0], parts[1], parts[2], parts[3]};
#endif
}

// One row of the weights, ready to be multiplied: as numbers, or as bytes, of which those of INT4 have a scale for each
// group, and a zero point times that.
struct Row {
    const float* numbers;
    const int8_t* bytes;
    float scale;
    const float *scales, *shifts;
};

struct Workspace {
    std::vector<float> numbers, scales, shifts;
    std::vector<int8_t> bytes;
};

size_t row_bytes(int format, int width) {
    switch (format) {
        case F32: return (size_t)width * 4;
        case BF16: return (size_t)width * 2;
        case INT8: return width;
        default: return width / 2;
    }
}

// Bytes of a group of INT4, from 0 to 15.
inline void unpack(const uint8_t* packed, int8_t* to) {
    Bytes both;
    memcpy(&both, packed, sizeof(both));
    const Bytes low = both & 15, high = both >> 4;
    memcpy(to, &low, sizeof(low));
    memcpy(to + sizeof(low), &high, sizeof(high));
}

Row read_row(const Experts& e, const Matrix& m, size_t row, int width, Workspace& room) {
    const uint8_t* stored = m.values + row * row_bytes(e.format, width);
    const int num_groups = (width + GROUP - 1) / GROUP;
    Row read = {};
    if (e.format == F32) {
        read.numbers = (const float*)stored;
        return read;
    }
    room.bytes.resize((size_t)num_groups * GROUP);
    if (e.format == INT8) {
        read.scale = (float)m.scales[row];
        read.bytes = (const int8_t*)stored;
        if (width % GROUP) {
            std::fill(room.bytes.begin(), room.bytes.end(), 0);
            memcpy(room.bytes.data(), stored, width);
            read.bytes = room.bytes.data();
        }
    }
    if (e.format == INT4) {
        for (int g = 0; g < num_groups; g++) unpack(stored + g * GROUP / 2, room.bytes.data() + g * GROUP);
        room.scales.resize(num_groups), room.shifts.resize(num_groups);
        const half* scales = m.scales + row * num_groups;
        const uint8_t* zeros = m.zeros + row * num_groups;
        for (int g = 0; g < num_groups; g++) room.scales[g] = (float)scales[g];
        for (int g = 0; g < num_groups; g++) room.shifts[g] = room.scales[g] * zeros[g];
        read.scale = 1, read.bytes = room.bytes.data();
        read.scales = room.scales.data(), read.shifts = room.shifts.data();
    }
    if (e.format != BF16 && !e.is_exact) return read;
    room.numbers.resize(width);
    float* numbers = room.numbers.data();
    if (e.format == BF16)
        for (int i = 0; i < width; i++) {
            uint32_t bits = (uint32_t)((const uint16_t*)stored)[i] << 16;
            memcpy(&numbers[i], &bits, 4);
        }
    else if (e.format == INT8)
        for (int i = 0; i < width; i++) numbers[i] = read.bytes[i] * read.scale;
    else
        for (int g = 0; g < num_groups; g++)
            for (int i = g * GROUP; i < (g + 1) * GROUP; i++)
                numbers[i] = read.bytes[i] * read.scales[g] - read.shifts[g];
    read.numbers = numbers;
    return read;
}

template <int N>
void multiply_numbers(const float* w, const float* const* x, int width, float* out) {
    Vector totals[N][2] = {};
    int i = 0;
    for (; i + 8 <= width; i += 8)
        for (int h = 0; h < 2; h++) {
            const Vector part = load(w + i + 4 * h);
            for (int n = 0; n < N; n++) totals[n][h] += part * load(x[n] + i + 4 * h);
        }
    for (int n = 0; n < N; n++) {
        out[n] = sum(totals[n][0] + totals[n][1]);
        for (int j = i; j < width; j++) out[n] += w[j] * x[n][j];
    }
}

template <int N>
void multiply_bytes(const Row& w, const Rows& rows, const int* at, float* out) {
    Vector totals[N] = {};
    for (int g = 0; g < rows.num_groups; g++)
        for (int n = 0; n < N; n++) {
            const size_t place = (size_t)at[n] * rows.num_groups + g;
            const Integers parts = dot(w.bytes + g * GROUP, rows.bytes.data() + place * GROUP);
            const float scale = w.scales ? rows.scales[place] * w.scales[g] : rows.scales[place];
            totals[n] += __builtin_convertvector(parts, Vector) * scale;
        }
    for (int n = 0; n < N; n++) {
        out[n] = sum(totals[n]) * w.scale;
        if (!w.shifts) continue;
        const float* sums = rows.sums.data() + (size_t)at[n] * rows.num_groups;
        float shift;
        multiply_numbers<1>(w.shifts, &sums, rows.num_groups, &shift);
        out[n] -= shift;
    }
}

template <int N>
void multiply(const Row& w, const Rows& rows, const int* at, float* out) {
    if (!w.numbers) return multiply_bytes<N>(w, rows, at, out);
    const float* x[N];
    for (int n = 0; n < N; n++) x[n] = rows.numbers.data() + (size_t)at[n] * rows.width;
    multiply_numbers<N>(w.numbers, x, rows.width, out);
}

// The product of a row with each of some rows.
void multiply_all(const Row& w, const Rows& rows, const std::vector<int>& at, float* out) {
    size_t i = 0;
    for (; i + NUM_TOKENS <= at.size(); i += NUM_TOKENS) multiply<NUM_TOKENS>(w, rows, &at[i], out + i);
    for (; i < at.size(); i++) multiply<1>(w, rows, &at[i], out + i);
}

float gated(const Experts& e, float gate, float up) {
    if (e.limit == 0) return gate / (1 + std::exp(-gate)) * up;
    gate = std::min(gate, e.limit);
    up = std::max(-e.limit, std::min(up, e.limit));
    return gate / (1 + std::exp(-e.slope * gate)) * (up + 1);
}

// Leave only the best groups of experts to choose from.
void drop_groups(const Experts& e, std::vector<float>& rank) {
    const int size = e.num_experts / e.num_groups;
    std::vector<float> worth(e.num_groups);
    std::vector<int> order(e.num_groups);
    std::iota(order.begin(), order.end(), 0);
    for (int g : order) {
        std::vector<float> own(rank.begin() + g * size, rank.begin() + (g + 1) * size);
        std::sort(own.begin(), own.end(), std::greater<float>());
        worth[g] = e.is_sigmoid ? own[0] + own[1] : own[0];
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return worth[a] > worth[b]; });
    for (int i = e.num_chosen_groups; i < e.num_groups; i++)
        std::fill_n(rank.begin() + order[i] * size, size, -INFINITY);
}

// The experts of a token, the best first, and their scores.
void choose(const Experts& e, const Layer& layer, const float* x, int* ids, float* scores) {
    std::vector<float> score(e.num_experts), rank(e.num_experts);
    for (int i = 0; i < e.num_experts; i++) {
        float logit;
        multiply_numbers<1>(layer.router + (size_t)i * e.hidden, &x, e.hidden, &logit);
        const float added = layer.router_bias ? layer.router_bias[i] : 0;
        score[i] = e.is_sigmoid ? 1 / (1 + std::exp(-logit)) : logit + added;
        rank[i] = e.is_sigmoid ? score[i] + added : score[i];
    }
    if (!e.is_sigmoid) {
        const float largest = *std::max_element(score.begin(), score.end());
        for (float& each : score) each = std::exp(each - largest);
    }
    if (e.num_groups > 1) drop_groups(e, rank);
    std::vector<int> order(e.num_experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return rank[a] > rank[b]; });
    float total = 0;
    for (int j = 0; j < (e.is_normed ? e.num_chosen : e.num_experts); j++) total += score[order[j]];
    if (e.is_sigmoid && !e.is_normed) total = 1;
    for (int j = 0; j < e.num_chosen; j++) ids[j] = order[j], scores[j] = score[order[j]] / total * e.scale;
}

}  // namespace

extern "C" {

// x and out: [token][hidden]
void experts_run(const Experts* experts, const Layer* layer, int num_tokens, const float* x, float* out) {
    const Experts& e = *experts;
    const bool has_bytes = !e.is_exact && (e.format == INT8 || e.format == INT4);
    const int num_pairs = num_tokens * e.num_chosen;
    std::vector<int> ids(num_pairs);
    std::vector<float> scores(num_pairs);
    Rows tokens(num_tokens, e.hidden, has_bytes), middles(num_pairs, e.size, has_bytes);
    memcpy(tokens.numbers.data(), x, sizeof(float) * num_tokens * e.hidden);
    tbb::parallel_for(0, num_tokens, [&](int t) {
        choose(e, *layer, x + (size_t)t * e.hidden, &ids[t * e.num_chosen], &scores[t * e.num_chosen]);
        if (has_bytes) tokens.round(t);
    });

    std::vector<std::vector<int>> pairs(e.num_experts), owners(e.num_experts);
    for (int p = 0; p < num_pairs; p++) pairs[ids[p]].push_back(p), owners[ids[p]].push_back(p / e.num_chosen);
    std::vector<int> used;
    for (int i = 0; i < e.num_experts; i++)
        if (!pairs[i].empty()) used.push_back(i);

    // Each job has some rows of an expert.
    auto each_row = [&](int num_rows, auto act) {
        const int jobs = (num_rows + NUM_ROWS - 1) / NUM_ROWS;
        tbb::parallel_for(0, (int)used.size() * jobs, [&](int job) {
            const int expert = used[job / jobs], begin = job % jobs * NUM_ROWS;
            std::vector<float> sums(pairs[expert].size()), others(sums.size());
            thread_local Workspace room;
            for (int n = begin; n < std::min(begin + NUM_ROWS, num_rows); n++) act(expert, n, sums, others, room);
        });
    };
    each_row(e.size, [&](int expert, int n, std::vector<float>& gates, std::vector<float>& ups, Workspace& room) {
        const Matrix& m = layer->gate_up;
        const size_t gate = (size_t)expert * 2 * e.size + n, up = gate + e.size;
        multiply_all(read_row(e, m, gate, e.hidden, room), tokens, owners[expert], gates.data());
        multiply_all(read_row(e, m, up, e.hidden, room), tokens, owners[expert], ups.data());
        for (size_t i = 0; i < gates.size(); i++) {
            const float g = gates[i] + (m.bias ? m.bias[gate] : 0), u = ups[i] + (m.bias ? m.bias[up] : 0);
            middles.numbers[(size_t)pairs[expert][i] * e.size + n] = gated(e, g, u);
        }
    });
    if (has_bytes) tbb::parallel_for(0, num_pairs, [&](int p) { middles.round(p); });
    std::vector<float> mixed((size_t)num_pairs * e.hidden);
    each_row(e.hidden, [&](int expert, int n, std::vector<float>& sums, std::vector<float>&, Workspace& room) {
        const size_t row = (size_t)expert * e.hidden + n;
        const float bias = layer->down.bias ? layer->down.bias[row] : 0;
        multiply_all(read_row(e, layer->down, row, e.size, room), middles, pairs[expert], sums.data());
        for (size_t i = 0; i < sums.size(); i++) mixed[(size_t)pairs[expert][i] * e.hidden + n] = sums[i] + bias;
    });
    tbb::parallel_for(0, num_tokens, [&](int t) {
        float* row = out + (size_t)t * e.hidden;
        std::fill(row, row + e.hidden, 0.0f);
        for (int p = t * e.num_chosen; p < (t + 1) * e.num_chosen; p++)
            for (int n = 0; n < e.hidden; n++) row[n] += scores[p] * mixed[(size_t)p * e.hidden + n];
    });
}

}  // extern "C"
