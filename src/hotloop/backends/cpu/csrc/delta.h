// Linear attention by the gated delta rule: a memory S [key_dim, value_dim] for each value head, carried from token to token.
//
//     S = exp(log) S;  S = S + k (share (v - S'k))';  o = S'q
//
// q, k and v go through a short convolution before, so that the last inputs of that are a part of the state as well:
//
//     a slot's state   [layer][inputs: conv_width - 1 tokens, conv_size][memories: value heads, key_dim, value_dim]
//
// Tokens come one after the other, whatever the step they are in, so batching, chunking and going on from a saved state
// change no bit of a result. A head's memory fits the core's own cache, and heads are computed side by side.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "vectors.h"
#include "workers.h"

struct DeltaShape {
    int num_key_heads, num_value_heads, key_dim, value_dim, conv_width;
    float eps;

    int key_size() const { return num_key_heads * key_dim; }
    int value_size() const { return num_value_heads * value_dim; }
    int conv_size() const { return 2 * key_size() + value_size(); }
    size_t inputs_size() const { return (size_t)(conv_width - 1) * conv_size(); }
    size_t head_size() const { return (size_t)key_dim * value_dim; }
};

struct Delta {
    const float *taps, *fading, *bias, *norm;  // [conv_width][conv_size], of each value head, the same, [value_dim]
    size_t offset;                             // of the layer in a state
};

// Sequence i has the rows [begins[i], begins[i + 1]), reads the state slots[2 i], none if that is negative, and leaves its own
// in slots[2 i + 1]; without slots in the first one, which is nobody's.
struct DeltaBatch {
    int num_sequences;
    const int32_t *begins, *slots;
    float* states;
    size_t state_size;

    const float* read(int i) const {
        return slots && slots[2 * i] >= 0 ? states + slots[2 * i] * state_size : nullptr;
    }
    float* write(int i) const { return states + (slots ? slots[2 * i + 1] : 0) * state_size; }
};

inline float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// x / sqrt(sum of squares + eps) * factor
inline void make_unit(float* x, int size, float factor) {
    float squares = 0;
    for (int i = 0; i < size; i++) squares += x[i] * x[i];
    const float scale = factor / std::sqrt(squares + 1e-6f);
    for (int i = 0; i < size; i++) x[i] *= scale;
}

// Inputs [token][stride], the first conv_size of them -> queries, keys and values, [token][conv_size].
inline void convolve(Workers& workers, const DeltaShape& s, const Delta& layer, const DeltaBatch& batch, const float* x,
                     size_t stride, float* out) {
    const int size = s.conv_size(), before = s.conv_width - 1;
    for (int i = 0; i < batch.num_sequences; i++) {
        const int first = batch.begins[i], count = batch.begins[i + 1] - first;
        const float* read = batch.read(i);
        const float* past = read ? read + layer.offset : nullptr;
        auto input = [&](int t) -> const float* {  // of the sequence's token t, negative for those before the step
            return t >= 0 ? x + (first + t) * stride : past ? past + (size_t)(before + t) * size : nullptr;
        };
        workers.split(count, 4, [&](int begin, int end) {
            for (int t = begin; t < end; t++) {
                float* to = out + (size_t)(first + t) * size;
                std::fill_n(to, size, 0.0f);
                for (int tap = 0; tap < s.conv_width; tap++) {
                    const float *from = input(t - before + tap), *taps = layer.taps + (size_t)tap * size;
                    for (int c = 0; from && c < size; c++) to[c] += taps[c] * from[c];
                }
                int c = 0;
                for (; c + LANES <= size; c += LANES) store(to + c, exact_silu(load(to + c)));
                for (; c < size; c++) to[c] *= sigmoid(to[c]);
                for (int h = 0; h < 2 * s.num_key_heads; h++)
                    make_unit(to + h * s.key_dim, s.key_dim, h < s.num_key_heads ? 1 / std::sqrt((float)s.key_dim) : 1.0f);
            }
        });
        std::vector<float> kept(s.inputs_size());
        for (int t = 0; t < before; t++)
            if (const float* from = input(count - before + t)) std::copy_n(from, size, &kept[(size_t)t * size]);
        std::copy(kept.begin(), kept.end(), batch.write(i) + layer.offset);
    }
}

// One token of a head: the memory fades, is corrected and read.
inline void run_token(const DeltaShape& s, float* memory, const float* q, const float* k, const float* v, float kept, float share,
                      float* changed, float* found) {
    const int width = s.value_dim;
    std::fill_n(changed, width, 0.0f), std::fill_n(found, width, 0.0f);
    for (int d = 0; d < s.key_dim; d++) {
        float* line = memory + (size_t)d * width;
        for (int j = 0; j < width; j++) line[j] *= kept, changed[j] += k[d] * line[j];
    }
    for (int j = 0; j < width; j++) changed[j] = share * (v[j] - changed[j]);
    for (int d = 0; d < s.key_dim; d++) {
        float* line = memory + (size_t)d * width;
        for (int j = 0; j < width; j++) line[j] += k[d] * changed[j], found[j] += q[d] * line[j];
    }
}

// mixed: [token][value heads], normalised and gated. gates: [token][stride]; rates: [token][b, then a, of each value head].
inline void run_delta(Workers& workers, const DeltaShape& s, const Delta& layer, const DeltaBatch& batch, const float* qkv,
                      const float* gates, size_t stride, const float* rates, float* mixed) {
    const int heads = s.num_value_heads;
    workers.split(batch.num_sequences * heads, 1, [&](int job, int) {
        const int i = job / heads, head = job % heads, key = head / (heads / s.num_key_heads) * s.key_dim;
        const size_t at = layer.offset + s.inputs_size() + head * s.head_size();
        float* memory = batch.write(i) + at;
        if (const float* read = batch.read(i)) memmove(memory, read + at, s.head_size() * sizeof(float));
        else std::fill_n(memory, s.head_size(), 0.0f);
        std::vector<float> changed(s.value_dim);
        for (int row = batch.begins[i]; row < batch.begins[i + 1]; row++) {
            const float *x = qkv + (size_t)row * s.conv_size(), *rate = rates + (size_t)row * 2 * heads + head;
            const float decay = rate[heads] + layer.bias[head];
            const float soft = decay > 20 ? decay : std::log1p(std::exp(decay));
            float* found = mixed + (size_t)row * s.value_size() + head * s.value_dim;
            run_token(s, memory, x + key, x + s.key_size() + key, x + 2 * s.key_size() + head * s.value_dim,
                      std::exp(layer.fading[head] * soft), sigmoid(*rate), changed.data(), found);
            const float* gate = gates + row * stride + head * s.value_dim;
            float squares = 0;
            for (int j = 0; j < s.value_dim; j++) squares += found[j] * found[j];
            const float scale = 1 / std::sqrt(squares / s.value_dim + s.eps);
            for (int j = 0; j < s.value_dim; j++) found[j] *= scale * layer.norm[j] * gate[j] * sigmoid(gate[j]);
        }
    });
}
