// The order in which numbers stand in memory, and the memory.
//
// Products are of bf16 tiles. A step is 32 numbers of K, a panel 32 columns of the result, a block 32 rows; of each step
// there are two tiles, a pair, one after the other:
//
//     rows     [block][step][2 tiles of 16 rows]        weights     [panel][step][2 tiles of 16 columns]

#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

constexpr int STEP = 32, TILE_NUMBERS = 16 * STEP, PAIR_NUMBERS = 2 * TILE_NUMBERS;
constexpr int STEP_BYTES = 2 * STEP, TILE_BYTES = 2 * TILE_NUMBERS, PAIR_BYTES = 2 * PAIR_NUMBERS;
constexpr int BLOCK_ROWS = 32, PANEL_COLUMNS = 32, BLOCK_SUMS = BLOCK_ROWS * PANEL_COLUMNS;

inline int divide_up(int a, int b) { return (a + b - 1) / b; }

// Zeroed memory in large pages, where the system has some.
class Memory {
   public:
    Memory() = default;
    explicit Memory(size_t num_bytes) : num_bytes_(num_bytes) {
        void* at = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) throw std::bad_alloc();
        madvise(at, num_bytes, MADV_HUGEPAGE);
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
