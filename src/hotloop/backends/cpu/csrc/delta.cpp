// The gated delta rule on any CPU: a memory S [key_dim, value_dim] for each value head, carried from token to token.
//
//     S = exp(log) S;  S = S + k (share (v - S'k))';  o = S'q
//
// Tokens come one after the other, whatever the step they are in, so batching, chunking and going on from a saved
// memory change no bit of a result. A head's memory fits the core's own cache, and heads are computed side by side.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <tbb/parallel_for.h>

extern "C" {

struct Linear {
    int num_key_heads, num_value_heads, key_dim, value_dim;
};

// Sequence i has the rows [begins[i], begins[i + 1]), reads the memory slots[2 i], none if that is negative, and leaves
// its own in slots[2 i + 1]. All is [tokens, heads, dim], logs and shares [tokens, value heads].
void linear_run(
    const Linear* shape, int num_sequences, const int32_t* begins, const int32_t* slots, const float* q, const float* k,
    const float* v, const float* logs, const float* shares, float* memories, float* output) {
    const int heads = shape->num_value_heads, key_heads = shape->num_key_heads;
    const int key_dim = shape->key_dim, value_dim = shape->value_dim;
    const size_t head_size = (size_t)key_dim * value_dim, slot_size = heads * head_size;
    tbb::parallel_for(0, num_sequences * heads, [&](int job) {
        const int i = job / heads, head = job % heads, key_head = head / (heads / key_heads);
        const int read = slots[2 * i], write = slots[2 * i + 1];
        float* memory = memories + write * slot_size + head * head_size;
        if (read < 0)
            std::fill(memory, memory + head_size, 0.0f);
        else if (read != write)
            memcpy(memory, memories + read * slot_size + head * head_size, head_size * sizeof(float));
        std::vector<float> change(value_dim);
        for (int row = begins[i]; row < begins[i + 1]; row++) {
            const size_t place = (size_t)row * heads + head, key_place = (size_t)row * key_heads + key_head;
            const float *key = k + key_place * key_dim, *query = q + key_place * key_dim, *value = v + place * value_dim;
            const float kept = std::exp(logs[place]), share = shares[place];
            float *found = output + place * value_dim, *changed = change.data();
            std::fill(changed, changed + value_dim, 0.0f);
            for (int d = 0; d < key_dim; d++) {
                float* line = memory + (size_t)d * value_dim;
                const float part = key[d];
                for (int j = 0; j < value_dim; j++) {
                    line[j] *= kept;
                    changed[j] += part * line[j];
                }
            }
            for (int j = 0; j < value_dim; j++) {
                changed[j] = share * (value[j] - changed[j]);
                found[j] = 0;
            }
            for (int d = 0; d < key_dim; d++) {
                float* line = memory + (size_t)d * value_dim;
                const float part = key[d], asked = query[d];
                for (int j = 0; j < value_dim; j++) {
                    line[j] += part * changed[j];
                    found[j] += asked * line[j];
                }
            }
        }
    });
}

}  // extern "C"
