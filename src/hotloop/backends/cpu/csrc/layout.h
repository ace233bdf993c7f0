// The order in which numbers stand in memory, and the memory.
//
// A step of K is a pair of tiles of rows and a pair of weights, of which four tiles of sums come: a unit. A row or a column
// has 64 bytes in a step, which are 32 numbers in bf16 and 64 in bytes. A panel is 32 columns; a block is 32 rows, but 16
// of integers of two bytes, where the first of two tiles has the high bytes and the second the low ones:
//
//     rows     [block][step][2 tiles of 16 rows]             weights     [panel][step][2 tiles of 16 columns]
//              [block][step][2 halves of 16 rows]

#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

constexpr int STEP_BYTES = 64, TILE_BYTES = 16 * STEP_BYTES, PAIR_BYTES = 2 * TILE_BYTES;  // of a row, or a column
constexpr int WORD_BYTES = 4, PANEL_COLUMNS = 32;
constexpr int TILE_COLUMNS = 16, TILE_SUMS = 16 * TILE_COLUMNS, UNIT_SUMS = 4 * TILE_SUMS;

inline int divide_up(int a, int b) { return (a + b - 1) / b; }

#ifndef CHUNK_STEPS
#define CHUNK_STEPS 24  // 48 KiB of weights: as much as the L1 cache
#endif

// K in parts of as many steps each, but for the last, as the L1 cache has room for the weights of.
struct Chunks {
    int num_steps = 1, count = divide_up(num_steps, CHUNK_STEPS), size = divide_up(num_steps, count);
    int begin(int chunk) const { return chunk * size; }
    int end(int chunk) const { return chunk + 1 < count ? begin(chunk + 1) : num_steps; }
};

// Into the second cache.
constexpr int LINE_BYTES = 64;
inline void fetch(const uint8_t* at, int num_bytes) {
    for (const uint8_t* end = at + num_bytes; at < end; at += LINE_BYTES) __builtin_prefetch(at, 0, 2);
}

// Zeroed memory in large pages, where the system has some.
class Memory {
   public:
    Memory() = default;
    explicit Memory(size_t num_bytes) : num_bytes_(num_bytes) {
        void* at = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
        madvise(at, num_bytes, MADV_HUGEPAGE);
#endif
        data_ = (uint8_t*)at;
    }
    Memory(Memory&& other) noexcept { *this = std::move(other); }
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(num_bytes_, other.num_bytes_);
        return *this;
    }
    ~Memory() {
        if (data_) munmap(data_, num_bytes_);
    }
    uint8_t* data() const { return data_; }
    size_t num_bytes() const { return num_bytes_; }

    // Room for so much; what was in it is lost if there was less.
    void reserve(size_t num_bytes) {
        if (num_bytes > num_bytes_) *this = Memory(num_bytes);
    }

   private:
    uint8_t* data_ = nullptr;
    size_t num_bytes_ = 0;
};
