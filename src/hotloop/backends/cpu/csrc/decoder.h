// A step of a decoder: rows of a batch from token ids to logits.
//
//     x       [token][hidden]      the residual stream, in float
//     layer   norm, round > qkv > attention > round > o, add > norm, round > gate and up, gate > round > down, add
//     logits  [num_logits][vocabulary]
//
// Whatever reads x rounds it on the way into tiles, and whatever adds to x does so from the sums: between two products
// nothing is written but what is in the names above. Attention, with its rotary positions and its KV, is a kernel that
// the caller passes in. It has the batch from `attention_plan`, which is called before the step, and uses the same workers.

#pragma once

#include "matmul.h"

struct Shape {
    int num_layers, hidden_size, qkv_size, mixed_size, intermediate_size, vocab_size;
    float eps;
};

// A kernel of attention: (itself, layer, qkv [token][qkv_size], out [token][mixed_size])
using Attend = void (*)(void*, int, const float*, float*);

struct Layer {
    const float *attention_norm = nullptr, *mlp_norm = nullptr;
    const Weights *qkv = nullptr, *o = nullptr, *gate_up = nullptr, *down = nullptr;
};

struct Decoder {
    Context& context;
    Shape shape;
    Attend attend;
    void* attention;
    std::vector<Layer> layers;
    const Weights *embed = nullptr, *head = nullptr;  // the same, if the model ties them
    Part table = {};  // the embedding as its file has it, in place of `embed`
    const float* norm = nullptr;
    Rows rows = {};
    Memory x = {}, qkv = {}, mixed = {}, gated = {};

    float* floats(const Memory& memory, int row, int width) const { return (float*)memory.data() + (size_t)row * width; }
};

inline void reserve(Decoder& d, int num_tokens) {
    auto bytes = [=](int width, int size) { return (size_t)num_tokens * width * size; };
    d.x.reserve(bytes(d.shape.hidden_size, sizeof(float)));
    d.qkv.reserve(bytes(d.shape.qkv_size, sizeof(float)));
    d.mixed.reserve(bytes(d.shape.mixed_size, sizeof(float)));
    d.gated.reserve(bytes(d.shape.intermediate_size, sizeof(uint16_t)));
}

// The rows `logit_rows`, which ascend, to the front.
inline void keep_rows(Decoder& d, const Memory& memory, int width, int num_logits, const int64_t* logit_rows) {
    for (int i = 0; i < num_logits; i++)
        if (logit_rows[i] != i)
            memcpy(d.floats(memory, i, width), d.floats(memory, (int)logit_rows[i], width), width * sizeof(float));
}

inline void pack_normed(Decoder& d, const Weights& next, int num_rows, const float* norm) {
    const Source<float> source = {(const float*)d.x.data(), d.shape.hidden_size, norm, d.shape.eps};
    pack_rows(d.context.workers, d.rows, next, num_rows, source);
}

inline void run_mlp(Decoder& d, const Layer& layer, int num_rows) {
    const int width = d.shape.intermediate_size;
    auto* gated = (uint16_t*)d.gated.data();
    pack_normed(d, *layer.gate_up, num_rows, layer.mlp_norm);
    matmul(d.context, d.rows, *layer.gate_up, {Then::GATE, gated, (size_t)width});
    pack_rows(d.context.workers, d.rows, *layer.down, num_rows, Source<uint16_t>{gated, width});
    matmul(d.context, d.rows, *layer.down, {Then::ADD, d.x.data(), (size_t)d.shape.hidden_size});
}

inline void embed(const Decoder& d, int64_t token_id, float* to) {
    const Part& table = d.table;
    if (!table.rows) return read_row(*d.embed, (int)token_id, to);
    read_numbers(table.kind, table.rows + token_id * row_bytes(table.kind, d.shape.hidden_size), d.shape.hidden_size, to);
}

inline void run_step(Decoder& d, int num_tokens, const int64_t* token_ids, int num_logits, const int64_t* logit_rows,
                     float* logits) {
    const Shape& s = d.shape;
    reserve(d, num_tokens);
    d.context.workers.split(num_tokens, 16, [&](int begin, int end) {
        for (int i = begin; i < end; i++) embed(d, token_ids[i], d.floats(d.x, i, s.hidden_size));
    });
    int num_rows = num_tokens;
    for (int i = 0; i < s.num_layers; i++) {
        const Layer& layer = d.layers[i];
        pack_normed(d, *layer.qkv, num_rows, layer.attention_norm);
        matmul(d.context, d.rows, *layer.qkv, {Then::STORE, d.qkv.data(), (size_t)s.qkv_size});
        Workers::current = &d.context.workers;
        d.attend(d.attention, i, (const float*)d.qkv.data(), (float*)d.mixed.data());
        Workers::current = nullptr;
        if (i == s.num_layers - 1) {  // nobody asks for the others any more
            keep_rows(d, d.x, s.hidden_size, num_logits, logit_rows);
            keep_rows(d, d.mixed, s.mixed_size, num_logits, logit_rows);
            num_rows = num_logits;
        }
        pack_rows(d.context.workers, d.rows, *layer.o, num_rows,
                  Source<float>{(const float*)d.mixed.data(), s.mixed_size});
        matmul(d.context, d.rows, *layer.o, {Then::ADD, d.x.data(), (size_t)s.hidden_size});
        run_mlp(d, layer, num_rows);
    }
    pack_normed(d, *d.head, num_rows, d.norm);
    matmul(d.context, d.rows, *d.head, {Then::STORE, logits, (size_t)s.vocab_size});
}
