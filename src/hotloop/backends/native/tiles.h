// AMX tiles: eight registers of 16 rows of 64 bytes, and dot products of them, which sum up over K.
//
//     sums[m][n] += rows[m][k] * weights[k][n]        rows      16 x 64 bytes: 64 int8 or 32 bf16 of each of 16 rows
//                                                     weights   [bytes 4k to 4k + 4 of column n] at row k, word n
//                                                     sums      16 x 16 int32 or float
//
// On a CPU with AMX these are its instructions. Everywhere else, and with -DEMULATE_TILES, they are loops that do the
// same, slowly: so that whatever is built on them can be tested on any machine. Tiles are named by literals.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && !defined(EMULATE_TILES)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HAS_AMX 1
#define tile_zero(tile) _tile_zero(tile)
#define tile_load(tile, from) _tile_loadd(tile, from, 64)
#define tile_store(tile, to) _tile_stored(tile, to, 64)
#define tile_dot_int8(sums, rows, weights) _tile_dpbssd(sums, rows, weights)
#define tile_dot_bf16(sums, rows, weights) _tile_dpbf16ps(sums, rows, weights)

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Whether the system lets this process have tiles; it has to be asked once, before any thread uses them.
inline bool permit_tiles() {
    const int request_permission = 0x1023, tile_data = 18;
    return !syscall(SYS_arch_prctl, request_permission, tile_data);
}

inline void tiles_begin() {
    static const TileConfig config;
    _tile_loadconfig(&config);
}

inline void tiles_end() { _tile_release(); }

// The compiler does not know that tile instructions read and write memory.
inline void settle_memory() { asm volatile("" ::: "memory"); }

#else

#define HAS_AMX 0

struct Tile {
    uint8_t bytes[1024];
};

inline Tile& tile_at(int i) {
    static thread_local Tile tiles[8];
    return tiles[i];
}

inline void tile_zero(int tile) { tile_at(tile) = {}; }
inline void tile_load(int tile, const void* from) { memcpy(tile_at(tile).bytes, from, 1024); }
inline void tile_store(int tile, void* to) { memcpy(to, tile_at(tile).bytes, 1024); }

template <typename Number, typename Word, typename Widen>
void dot_tiles(Tile& sums, const Tile& rows, const Tile& weights, Widen widen) {
    constexpr int SIZE = 4 / sizeof(Word);  // numbers that stand side by side in a column
    auto* c = (Number*)sums.bytes;
    auto *a = (const Word*)rows.bytes, *b = (const Word*)weights.bytes;
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 16; n++)
                for (int i = 0; i < SIZE; i++)
                    c[m * 16 + n] += widen(a[(m * 16 + k) * SIZE + i]) * widen(b[(k * 16 + n) * SIZE + i]);
}

inline void tile_dot_int8(int sums, int rows, int weights) {
    dot_tiles<int32_t, int8_t>(tile_at(sums), tile_at(rows), tile_at(weights), [](int8_t x) { return (int32_t)x; });
}

inline void tile_dot_bf16(int sums, int rows, int weights) {
    auto widen = [](uint16_t x) {
        const uint32_t bits = (uint32_t)x << 16;
        float wide;
        memcpy(&wide, &bits, 4);
        return wide;
    };
    dot_tiles<float, uint16_t>(tile_at(sums), tile_at(rows), tile_at(weights), widen);
}

inline bool permit_tiles() { return true; }
inline void tiles_begin() {}
inline void tiles_end() {}
inline void settle_memory() {}

#endif
