// Large channels of rows that are rounded to bytes.
//
// Rows have a scale for each chunk of K, and some channels, much the same ones in all rows, are many times as large as the
// others, to which they would leave few bits. So a large channel has several places: its own and some of the slots, one
// more step at the end of the chunk, with the same weights. Its integer is the sum of what stands in them, each of which
// holds 127 at the most.

#pragma once

#include <algorithm>
#include <vector>

#include "layout.h"
#include "vectors.h"

constexpr int NUM_SLOTS = STEP_BYTES;
constexpr float MOST_BYTE = 127;

struct Slots {
    int channels[NUM_SLOTS];
    float before[NUM_SLOTS];    // what the channel's places before this one hold
    std::vector<float> shares;  // of each channel: 1 / the number of its places

    // So that the places of the largest channels have as little to hold as there are slots for. largest: of each channel
    void choose(const float* largest, int count) {
        float bound = 2 * *std::max_element(largest, largest + count), low = 0;
        for (int i = 0; i < 12; i++) {
            const float middle = (low + bound) / 2;
            (num_used(largest, count, middle) <= NUM_SLOTS ? bound : low) = middle;
        }
        std::fill_n(channels, NUM_SLOTS, 0);
        std::fill_n(before, NUM_SLOTS, 1e30f);
        shares.assign(count, 1.0f);
        for (int channel = 0, slot = 0; channel < count; channel++) {
            if (!(largest[channel] > bound)) continue;  // nor if either is no number
            int places = 1;
            for (const int most = 1 + (int)(largest[channel] / bound); places < most && slot < NUM_SLOTS; places++, slot++)
                channels[slot] = channel, before[slot] = MOST_BYTE * places;
            shares[channel] = 1.0f / places;
        }
    }

   private:
    // By channels none of whose places is to hold more than that.
    static int num_used(const float* largest, int count, float bound) {
        Integers sum = {};
        for (int i = 0; i < count; i += LANES) sum += __builtin_convertvector(load(largest + i) / bound, Integers);
        int total = 0;
        for (int i = 0; i < LANES; i++) total += sum[i];
        return total;
    }
};

// A chunk of a row as bytes, and its slots. Returns what an integer stands for.
inline float put_bytes(const float* row, const Slots& slots, uint8_t* to) {
    const int count = (int)slots.shares.size();
    Vector most[4] = {};  // so that none waits for the one before
    for (int i = 0; i < count; i += STEP_BYTES)
        for (int j = 0; j < 4; j++) {
            const int at = i + j * LANES;
            most[j] = larger(most[j], absolute(load(row + at)) * load(&slots.shares[at]));
        }
    const float all = largest_of(larger(larger(most[0], most[1]), larger(most[2], most[3])));
    const float scale = all / MOST_BYTE, inverse = scale > 0 ? 1.0f / scale : 0.0f;
    auto within = [](Vector v, Vector bound) { return larger(smaller(v, bound), -bound); };
    for (int i = 0; i < count; i += STEP_BYTES, to += PAIR_BYTES)
        for (int j = 0; j < STEP_BYTES; j += LANES)
            store((int8_t*)to + j, within(load(row + i + j) * inverse, Vector{} + MOST_BYTE));
    for (int j = 0; j < NUM_SLOTS; j += LANES) {
        const Vector whole = floats(nearest(gather(row, slots.channels + j) * inverse));
        store((int8_t*)to + j, within(whole - within(whole, load(slots.before + j)), Vector{} + MOST_BYTE));
    }
    return scale;
}

// The slots' weights, out of those of their chunk of a panel, into a step of their own.
inline void gather_slots(const Slots& slots, const uint8_t* chunk, uint8_t* to) {
    for (int word = 0; word < NUM_SLOTS / WORD_BYTES; word++) {
        Bits first = {}, second = {};
        for (int i = 0; i < WORD_BYTES; i++) {
            const int channel = slots.channels[word * WORD_BYTES + i], at = channel % STEP_BYTES;
            const uint8_t* words = chunk + (size_t)(channel / STEP_BYTES) * PAIR_BYTES + at / WORD_BYTES * STEP_BYTES;
            auto byte = [&](const uint8_t* from) {
                Bits bits;
                memcpy(&bits, from, sizeof(bits));
                return (bits >> at % WORD_BYTES * 8 & 0xff) << i * 8;
            };
            first |= byte(words), second |= byte(words + TILE_BYTES);
        }
        memcpy(to + word * STEP_BYTES, &first, sizeof(first));
        memcpy(to + TILE_BYTES + word * STEP_BYTES, &second, sizeof(second));
    }
}
