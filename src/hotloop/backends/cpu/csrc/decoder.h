// A step of a decoder: rows of a batch from token ids to logits.
//
//     x       [token][hidden]      the residual stream, in float
//     layer   norm, round > qkv > attention > round > o, add > norm, round > gate and up, gate > round > down, add
//     logits  [num_logits][vocabulary]
//
// Whatever reads x rounds it on the way into products, and whatever adds to x does so from the sums: between two products
// nothing is written but what is in the names above. Attention, with its rotary positions and its KV, is a kernel that
// the caller passes in. It has the batch from attention's `plan`, which is called before the step, and uses the same workers.
//
// In place of attention a layer may have the delta rule (delta.h), and in place of the MLP experts (experts.h). Latent
// attention has its queries, latents and rotary keys, side by side, in place of qkv.

#pragma once

#include "delta.h"
#include "experts.h"

struct Shape {
    int num_layers, hidden_size, qkv_size, mixed_size, intermediate_size, vocab_size;
    int query_size, q_rank, kv_rank;  // of latent attention, q_rank 0 if queries are made of tokens; else all 0
    float eps, latent_eps;
    ExpertsShape experts;
    DeltaShape delta;
};

// A kernel of attention: (itself, layer, qkv [token][qkv_size], out [token][mixed_size])
using Attend = void (*)(void*, int, const float*, float*);

// Null what a layer has not.
struct Layer {
    const float *attention_norm, *mlp_norm;
    Attend attend;
    void* attention;
    int index;                              // among the layers that this attention does
    const Weights *qkv, *gate, *o;          // gate: of what attention comes to
    const Weights *q_a, *kv_a;              // of latent attention, whose qkv makes queries alone
    const float *q_a_norm, *kv_a_norm;
    const Weights* rates;                   // of the delta rule, whose qkv has its gates as well
    Delta delta;
    const Weights *gate_up, *down;
    Experts experts;

    const Weights& first() const { return kv_a ? *kv_a : *qkv; }  // what its rows are packed for
};

struct Decoder {
    Context& context;
    Shape shape;
    std::vector<Layer> layers;
    Part table = {};  // the embedding as its file has it
    const Weights* head = nullptr;
    const float* norm = nullptr;
    Rows rows = {}, float_rows = {};
    Choice choice = {};
    Memory x = {}, qkv = {}, mixed = {}, gates = {}, latents = {}, gated = {}, outputs = {};

    float* floats(const Memory& memory, int row, int width) const { return (float*)memory.data() + (size_t)row * width; }
};

inline float* room_for(Memory& memory, size_t num_rows, size_t width) {
    memory.reserve(num_rows * width * sizeof(float));
    return (float*)memory.data();
}

// The rows `logit_rows`, which ascend, to the front.
inline void keep_rows(Decoder& d, const Memory& memory, int width, int num_logits, const int64_t* logit_rows) {
    for (int i = 0; i < num_logits; i++)
        if (logit_rows[i] != i)
            memcpy(d.floats(memory, i, width), d.floats(memory, (int)logit_rows[i], width), width * sizeof(float));
}

inline void pack_normed(Decoder& d, Rows& rows, const Weights& next, int num_rows, const float* norm) {
    const Source<float> source = {(const float*)d.x.data(), d.shape.hidden_size, norm, d.shape.eps};
    pack_rows(d.context.workers, rows, next, num_rows, source);
}

// Rows that are packed by gate and up, `width` wide: what comes of it, by a factor for each if there are any, packed for `down`.
template <typename Number, typename Multiply>
void run_gates(Decoder& d, const Weights& down, int num_rows, int width, bool in_tiles, const std::vector<float>& factors,
               Multiply multiply) {
    auto* gated = (Number*)room_for(d.gated, num_rows, width);
    multiply(gated);
    for (int i = 0; i < (int)factors.size(); i++)
        for (int j = 0; j < width; j++) {
            float x;
            Number& at = gated[(size_t)i * width + j];
            if constexpr (sizeof(Number) == sizeof(float)) at *= factors[i];
            else x = widened(at) * factors[i], at = (Number)(round_bf16(Vector{} + x)[0] >> 16);
        }
    pack_rows(d.context.workers, d.rows, down, num_rows, Source<Number>{gated, width}, in_tiles);
}

inline void run_mlp(Decoder& d, const Weights& gate_up, const Weights& down, const float* norm, int num_rows,
                    const std::vector<float>& factors = {}) {
    const int width = gate_up.num_out / 2;
    pack_normed(d, d.rows, gate_up, num_rows, norm);
    auto multiply = [&](auto* gated) {
        const Then then = sizeof(*gated) == sizeof(float) ? Then::GATE_FLOATS : Then::GATE;
        matmul(d.context, d.rows, gate_up, {then, gated, (size_t)width});
    };
    if (down.in_floats) run_gates<float>(d, down, num_rows, width, true, factors, multiply);
    else run_gates<uint16_t>(d, down, num_rows, width, true, factors, multiply);
    matmul(d.context, d.rows, down, {Then::ADD, d.x.data(), (size_t)d.shape.hidden_size});
}

inline void run_experts(Decoder& d, const Layer& layer, int num_rows) {
    const ExpertsShape& e = d.shape.experts;
    const Experts& experts = layer.experts;
    const int hidden = d.shape.hidden_size, num_scores = experts.router->num_out, num_pairs = num_rows * e.num_chosen;
    Workers& workers = d.context.workers;
    float* logits = room_for(d.gates, num_rows, num_scores);
    pack_normed(d, d.float_rows, *experts.router, num_rows, layer.mlp_norm);
    matmul(d.context, d.float_rows, *experts.router, {Then::STORE, logits, (size_t)num_scores});
    choose_all(workers, e, experts, num_rows, logits, d.choice);
    const int* tokens = d.choice.tokens.data();
    const Source<float> source = {(const float*)d.x.data(), hidden, layer.mlp_norm, d.shape.eps, hidden, tokens};
    pack_rows(workers, d.rows, *experts.gate_ups[0], num_pairs, source, false);
    auto multiply = [&](auto* gated) {
        const Then then = sizeof(*gated) == sizeof(float) ? Then::GATE_FLOATS : Then::GATE;
        const Target target = {then, gated, (size_t)e.size, e.limit, e.slope};
        matmul_pieces(d.context, d.rows, pieces_of(d.choice, experts.gate_ups), target);
    };
    const Weights& down = *experts.downs[0];
    if (down.in_floats) run_gates<float>(d, down, num_pairs, e.size, false, {}, multiply);
    else run_gates<uint16_t>(d, down, num_pairs, e.size, false, {}, multiply);
    float* outputs = room_for(d.outputs, num_pairs, hidden);
    matmul_pieces(d.context, d.rows, pieces_of(d.choice, experts.downs), {Then::STORE, outputs, (size_t)hidden});
    if (experts.shared_gate_up) {
        std::vector<float> factors;
        for (int i = 0; e.has_shared_gate && i < num_rows; i++)
            factors.push_back(sigmoid(logits[(size_t)i * num_scores + e.num_experts]));
        run_mlp(d, *experts.shared_gate_up, *experts.shared_down, layer.mlp_norm, num_rows, factors);
    }
    add_experts(workers, e, d.choice, num_rows, hidden, outputs, (float*)d.x.data());
}

// What queries, latents and rotary keys are made of; latents are normalised.
inline void run_latents(Decoder& d, const Layer& layer, int num_rows) {
    const Shape& s = d.shape;
    auto* qkv = (float*)d.qkv.data();
    matmul(d.context, d.rows, *layer.kv_a, {Then::STORE, qkv + s.query_size, (size_t)s.qkv_size});
    if (layer.q_a) {
        float* latents = room_for(d.latents, num_rows, s.q_rank);
        matmul(d.context, d.rows, *layer.q_a, {Then::STORE, latents, (size_t)s.q_rank});
        pack_rows(d.context.workers, d.rows, *layer.qkv, num_rows, Source<float>{latents, s.q_rank, layer.q_a_norm, s.latent_eps});
    }
    matmul(d.context, d.rows, *layer.qkv, {Then::STORE, qkv, (size_t)s.qkv_size});
    d.context.workers.split(num_rows, 8, [&](int begin, int end) {
        for (int i = begin; i < end; i++) {
            float *kept = qkv + (size_t)i * s.qkv_size + s.query_size, squares = 0;
            for (int j = 0; j < s.kv_rank; j++) squares += kept[j] * kept[j];
            const float scale = 1 / std::sqrt(squares / s.kv_rank + s.latent_eps);
            for (int j = 0; j < s.kv_rank; j++) kept[j] *= scale * layer.kv_a_norm[j];
        }
    });
}

inline void run_attention(Decoder& d, const Layer& layer, int num_rows) {
    const Shape& s = d.shape;
    auto* mixed = (float*)d.mixed.data();
    float* gates = layer.gate ? room_for(d.gates, num_rows, s.mixed_size) : nullptr;
    if (gates) matmul(d.context, d.rows, *layer.gate, {Then::STORE, gates, (size_t)s.mixed_size});
    if (layer.kv_a) run_latents(d, layer, num_rows);
    else matmul(d.context, d.rows, *layer.qkv, {Then::STORE, d.qkv.data(), (size_t)s.qkv_size});
    Workers::current = &d.context.workers;
    layer.attend(layer.attention, layer.index, (const float*)d.qkv.data(), mixed);
    Workers::current = nullptr;
    d.context.workers.split(gates ? num_rows : 0, 8, [&](int begin, int end) {
        for (size_t i = (size_t)begin * s.mixed_size; i < (size_t)end * s.mixed_size; i++) mixed[i] *= sigmoid(gates[i]);
    });
}

inline void run_linear(Decoder& d, const Layer& layer, const DeltaBatch& batch, int num_rows) {
    const DeltaShape& s = d.shape.delta;
    const int width = layer.qkv->num_out, num_rates = 2 * s.num_value_heads;
    float *projected = room_for(d.gated, num_rows, width), *rates = room_for(d.gates, num_rows, num_rates);
    matmul(d.context, d.rows, *layer.qkv, {Then::STORE, projected, (size_t)width});
    pack_normed(d, d.float_rows, *layer.rates, num_rows, layer.attention_norm);
    matmul(d.context, d.float_rows, *layer.rates, {Then::STORE, rates, (size_t)num_rates});
    float* qkv = room_for(d.outputs, num_rows, s.conv_size());
    convolve(d.context.workers, s, layer.delta, batch, projected, width, qkv);
    run_delta(d.context.workers, s, layer.delta, batch, qkv, projected + s.conv_size(), width, rates, (float*)d.mixed.data());
}

inline void run_step(Decoder& d, int num_tokens, const int64_t* token_ids, int num_logits, const int64_t* logit_rows,
                     const DeltaBatch& batch, float* logits) {
    const Shape& s = d.shape;
    const int hidden = s.hidden_size;
    room_for(d.x, num_tokens, hidden), room_for(d.qkv, num_tokens, s.qkv_size);
    room_for(d.mixed, num_tokens, std::max(s.mixed_size, s.delta.value_size()));
    d.context.workers.split(num_tokens, 16, [&](int begin, int end) {
        const size_t bytes = row_bytes(d.table.kind, hidden);
        for (int i = begin; i < end; i++)
            read_numbers(d.table.kind, d.table.rows + token_ids[i] * bytes, hidden, d.floats(d.x, i, hidden));
    });
    int num_rows = num_tokens;
    for (int i = 0; i < s.num_layers; i++) {
        const Layer& layer = d.layers[i];
        const int width = layer.o->num_in;
        pack_normed(d, d.rows, layer.first(), num_rows, layer.attention_norm);
        layer.rates ? run_linear(d, layer, batch, num_rows) : run_attention(d, layer, num_rows);
        if (i == s.num_layers - 1) {  // nobody asks for the others any more
            keep_rows(d, d.x, hidden, num_logits, logit_rows);
            keep_rows(d, d.mixed, width, num_logits, logit_rows);
            num_rows = num_logits;
        }
        pack_rows(d.context.workers, d.rows, *layer.o, num_rows, Source<float>{(const float*)d.mixed.data(), width});
        matmul(d.context, d.rows, *layer.o, {Then::ADD, d.x.data(), (size_t)hidden});
        if (!layer.gate_up) run_experts(d, layer, num_rows);
        else run_mlp(d, *layer.gate_up, *layer.down, layer.mlp_norm, num_rows);
    }
    pack_normed(d, d.rows, *d.head, num_rows, d.norm);
    matmul(d.context, d.rows, *d.head, {Then::STORE, logits, (size_t)s.vocab_size});
}
