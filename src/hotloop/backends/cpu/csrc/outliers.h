// Large channels of rows that are rounded to bytes.
//
// Rows have a scale for each chunk of K, and some channels, much the same ones in all rows, are many times as large as the
// others, to which they would leave few bits. So a large channel has several places: its own and some of the outliers, one
// more step at the end of the chunk, with the same weights. Its integer is the sum of what stands in them, each of which
// holds 127 at the most.

#pragma once

#include <algorithm>
#include <vector>

#include "layout.h"
#include "vectors.h"

constexpr int NUM_OUTLIERS = STEP_BYTES;
constexpr float MOST_BYTE = 127;

struct Outliers {
    int channels[NUM_OUTLIERS];
    float before[NUM_OUTLIERS];    // what the channel's places before this one hold
    std::vector<float> shares;  // of each channel: 1 / the number of its places

    // So that the places of the largest channels have as little to hold as there are outliers for. largest: of each channel
    void choose(const float* largest, int count) {
        float bound = 2 * *std::max_element(largest, largest + count), low = 0;
        for (int i = 0; i < 12; i++) {
            const float middle = (low + bound) / 2;
            (num_used(largest, count, middle) <= NUM_OUTLIERS ? bound : low) = middle;
        }
        std::fill_n(channels, NUM_OUTLIERS, 0);
        std::fill_n(before, NUM_OUTLIERS, 1e30f);
        shares.assign(count, 1.0f);
        for (int channel = 0, outlier = 0; channel < count; channel++) {
            if (!(largest[channel] > bound)) continue;  // nor if either is no number
            int places = 1;
            for (const int most = 1 + (int)(largest[channel] / bound); places < most && outlier < NUM_OUTLIERS; places++, outlier++)
                channels[outlier] = channel, before[outlier] = MOST_BYTE * places;
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

// A chunk of a row, from its number `begin` on, as bytes, and its outliers; `room` is for the chunk. Returns what an integer
// stands for.
template <typename Row>
float put_bytes(Row row, int begin, const Outliers& outliers, float* room, uint8_t* to) {
    const int count = (int)outliers.shares.size();
    const float* shares = outliers.shares.data();
    auto read = [=](int i) {
        const Vector v = row.at(begin + i);
        store(room + i, v);
        return absolute(v) * load(shares + i);
    };
    Vector a = {}, b = {}, c = {}, d = {};  // the largest; so many that none waits for the one before
    for (int i = 0; i < count; i += 4 * LANES) {
        a = larger(a, read(i)), b = larger(b, read(i + LANES));
        c = larger(c, read(i + 2 * LANES)), d = larger(d, read(i + 3 * LANES));
    }
    const float all = largest_of(larger(larger(a, b), larger(c, d)));
    const float scale = all / MOST_BYTE, inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (int i = 0; i < count; i += STEP_BYTES, to += PAIR_BYTES) {
        auto scaled = [=](int j) { return load(room + i + j * LANES) * inverse; };
        store_bytes((int8_t*)to, scaled(0), scaled(1), scaled(2), scaled(3));
    }
    auto within = [](Vector v, Vector bound) { return larger(smaller(v, bound), -bound); };
    for (int j = 0; j < NUM_OUTLIERS; j += LANES) {
        const Vector whole = floats(nearest(gather(room, outliers.channels + j) * inverse));
        store((int8_t*)to + j, within(whole - within(whole, load(outliers.before + j)), Vector{} + MOST_BYTE));
    }
    return scale;
}

// The outliers' weights, out of those of their chunk of a panel, into a step of their own.
inline void gather_outliers(const Outliers& outliers, const uint8_t* chunk, uint8_t* to) {
    for (int word = 0; word < NUM_OUTLIERS / WORD_BYTES; word++) {
        Bits first = {}, second = {};
        for (int i = 0; i < WORD_BYTES; i++) {
            const int channel = outliers.channels[word * WORD_BYTES + i], at = channel % STEP_BYTES;
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
