// Products of rows with strips of every kind of code, as bits: to compare one CPU with another.

#include <cstdio>

#include "grouped.h"

namespace {

constexpr int NUM_IN = 512, NUM_GROUPS = NUM_IN / GROUP;

struct Row {
    const float* numbers;
    Vector at(int i) const { return load(numbers + i); }
};

struct Random {
    uint32_t state = 1;
    uint32_t operator()() { return (state = state * 1664525 + 1013904223) >> 8; }
};

std::vector<uint8_t> random_codes(GgmlType kind, Random& random) {
    std::vector<uint8_t> bytes(STRIP * row_bytes(kind, NUM_IN));
    for (uint8_t& byte : bytes) byte = random();
    for (size_t i = 1; i < bytes.size(); i += 2) bytes[i] &= 0x3b;  // no halves that are not numbers
    return bytes;
}

void print(const char* how, GgmlType kind, int num_rows, const std::vector<float>& sums) {
    printf("%s %d %d", how, (int)kind, num_rows);
    for (float sum : sums) {
        uint32_t bits;
        memcpy(&bits, &sum, sizeof(bits));
        printf(" %08x", bits);
    }
    printf("\n");
}

}  // namespace

int main() {
    for (GgmlType kind : {GgmlType::F16, GgmlType::MXFP4, GgmlType::FLOATS_TO_4, GgmlType::Q4_0, GgmlType::Q4_1,
                          GgmlType::Q5_0, GgmlType::Q5_1, GgmlType::Q8_0, GgmlType::Q2_K, GgmlType::Q3_K, GgmlType::Q4_K,
                          GgmlType::Q5_K, GgmlType::Q6_K}) {
        Random random;
        const std::vector<uint8_t> codes = random_codes(kind, random);
        Strip strip = {info_of(kind), nullptr};
        std::vector<uint8_t> packed(NUM_GROUPS * strip.group_bytes());
        strip.at = packed.data();
        const uint8_t* columns[STRIP];
        float byte_scales[STRIP] = {};
        for (int i = 0; i < STRIP; i++) columns[i] = codes.data() + i * row_bytes(kind, NUM_IN);
        pack_strip(strip, kind, columns, NUM_GROUPS, byte_scales);
        for (int num_rows : {1, 2, 3, 4, 7, 16}) {
            std::vector<float> numbers(num_rows * NUM_IN), many(num_rows * STRIP), few(num_rows * STRIP);
            for (float& number : numbers) number = ((int)(random() % 2001) - 1000) / 512.0f;
            GroupedRows rows;
            rows.resize(num_rows, NUM_IN);
            for (int i = 0; i < num_rows; i++) round_row(rows, i, Row{&numbers[i * NUM_IN]});
            static Unpacked scratch;
            multiply_strip(rows, 0, num_rows, strip, 0, NUM_GROUPS, scratch, [&](int i) { return &many[i * STRIP]; });
            multiply_few(rows, 0, num_rows, strip, [&](int i) { return &few[i * STRIP]; });
            print("many", kind, num_rows, many), print("few", kind, num_rows, few);
        }
    }
}
