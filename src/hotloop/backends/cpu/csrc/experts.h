// A mixture of experts: a router chooses a few of them for each token, and only those are read.
//
// A token and one of its experts are a pair. Pairs stand in the order of their experts, so that those of one go over its
// weights together, and all products of a step are one piece of work. What a token's experts come to is summed in the order
// in which they were chosen: who else is in the step changes nothing.

#pragma once

#include <functional>
#include <numeric>

#include "matmul.h"

struct ExpertsShape {
    int num_experts, num_chosen, size, is_sigmoid, is_normed, num_groups, num_chosen_groups, shared_size, has_shared_gate;
    float scale, limit, slope;  // limit: 0 for none
};

struct Experts {
    const Weights* router;      // [experts, then the gate of the shared one if it has one]
    const float* router_bias;   // or null
    const Weights* const* gate_ups;
    const Weights* const* downs;
    const Weights *shared_gate_up, *shared_down;  // or null
};

// Of all tokens of a step: what was chosen, and the pairs.
struct Choice {
    std::vector<int> ids;        // [token][rank]
    std::vector<float> scores;   // [token][rank]
    std::vector<int> places;     // [token][rank]: the pair's
    std::vector<int> tokens;     // of each pair
    std::vector<int> begins;     // of each expert its first pair, and where the last one's end
};

// Leave only the best groups of experts to choose from.
inline void drop_groups(const ExpertsShape& e, std::vector<float>& rank) {
    const int size = e.num_experts / e.num_groups;
    std::vector<float> worth(e.num_groups);
    std::vector<int> order(e.num_groups);
    std::iota(order.begin(), order.end(), 0);
    for (int g : order) {
        std::vector<float> own(rank.begin() + g * size, rank.begin() + (g + 1) * size);
        std::sort(own.begin(), own.end(), std::greater<float>());
        worth[g] = e.is_sigmoid && size > 1 ? own[0] + own[1] : own[0];
    }
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return worth[a] > worth[b]; });
    for (int i = e.num_chosen_groups; i < e.num_groups; i++)
        std::fill_n(rank.begin() + order[i] * size, size, -INFINITY);
}

// The experts of a token, the best first, and their scores.
inline void choose(const ExpertsShape& e, const float* router_bias, const float* logits, int* ids, float* scores) {
    std::vector<float> score(e.num_experts), rank(e.num_experts);
    for (int i = 0; i < e.num_experts; i++) {
        const float added = router_bias ? router_bias[i] : 0;
        score[i] = e.is_sigmoid ? 1 / (1 + std::exp(-logits[i])) : logits[i] + added;
        rank[i] = e.is_sigmoid ? score[i] + added : score[i];
        if (rank[i] != rank[i]) rank[i] = -INFINITY;  // sorting can do with numbers alone
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

// logits: [token][experts, then what else the router gives]
inline void choose_all(Workers& workers, const ExpertsShape& e, const Experts& layer, int num_tokens, const float* logits,
                       Choice& choice) {
    const int num_pairs = num_tokens * e.num_chosen, stride = layer.router->num_out;
    choice.ids.resize(num_pairs), choice.scores.resize(num_pairs);
    choice.places.resize(num_pairs), choice.tokens.resize(num_pairs);
    workers.split(num_tokens, 4, [&](int begin, int end) {
        for (int t = begin; t < end; t++)
            choose(e, layer.router_bias, logits + (size_t)t * stride, &choice.ids[t * e.num_chosen], &choice.scores[t * e.num_chosen]);
    });
    choice.begins.assign(e.num_experts + 1, 0);
    for (int id : choice.ids) choice.begins[id + 1]++;
    for (int i = 0; i < e.num_experts; i++) choice.begins[i + 1] += choice.begins[i];
    std::vector<int> next(choice.begins.begin(), choice.begins.end() - 1);
    for (int p = 0; p < num_pairs; p++) {
        choice.places[p] = next[choice.ids[p]]++;
        choice.tokens[choice.places[p]] = p / e.num_chosen;
    }
}

inline std::vector<Piece> pieces_of(const Choice& choice, const Weights* const* weights) {
    std::vector<Piece> pieces;
    for (int i = 0; i + 1 < (int)choice.begins.size(); i++)
        if (choice.begins[i] < choice.begins[i + 1]) pieces.push_back({weights[i], choice.begins[i], choice.begins[i + 1]});
    return pieces;
}

// x[token] += what its experts have come to, [pair][hidden], by their scores.
inline void add_experts(Workers& workers, const ExpertsShape& e, const Choice& choice, int num_tokens, int hidden,
                        const float* mixed, float* x) {
    workers.split(num_tokens, 4, [&](int begin, int end) {
        std::vector<float> sum(hidden);
        for (int t = begin; t < end; t++) {
            std::fill(sum.begin(), sum.end(), 0.0f);
            for (int p = t * e.num_chosen; p < (t + 1) * e.num_chosen; p++) {
                const float *own = mixed + (size_t)choice.places[p] * hidden, score = choice.scores[p];
                for (int i = 0; i < hidden; i++) sum[i] += score * own[i];
            }
            for (int i = 0; i < hidden; i++) x[(size_t)t * hidden + i] += sum[i];
        }
    });
}
