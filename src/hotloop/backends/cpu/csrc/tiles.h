// AMX tiles: eight registers of 16 rows of 64 bytes, and dot products of them, which sum up over K.
//
//     sums[m][n] += rows[m][k] * weights[k][n]        rows      32 bf16 of each of 16 rows
//                                                     weights   [numbers 2k and 2k + 1 of column n] at row k, word n
//                                                     sums      16 x 16 floats
//
// or of bytes: 64 of each row, signed or not, with weights' [4k .. 4k + 3], signed, at row k; sums are 32-bit integers.
//
// On a CPU with AMX these are its instructions. Everywhere else, and with -DEMULATE_TILES, they are loops that do the
// same, slowly: so that whatever is built on them can be tested on any machine. Tiles are named by literals.

#pragma once

#include <cstdint>
#include <cstring>

#include "vectors.h"

#if defined(__AMX_BF16__) && !defined(EMULATE_TILES)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HAS_AMX 1
#define tile_zero(tile) _tile_zero(tile)
#define tile_load(tile, from) _tile_loadd(tile, from, 64)
#define tile_load_once(tile, from) _tile_stream_loadd(tile, from, 64)  // leaves the L1 cache to others
#define tile_store(tile, to) _tile_stored(tile, to, 64)
#define tile_dot(sums, rows, weights) _tile_dpbf16ps(sums, rows, weights)
#define tile_dot_bytes(sums, rows, weights) _tile_dpbssd(sums, rows, weights)
#define tile_dot_unsigned(sums, rows, weights) _tile_dpbusd(sums, rows, weights)

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {};
};

// Whether the system lets this process have tiles; it has to be asked once, before any thread uses them.
inline bool permit_tiles() {
    const int request_permission = 0x1023, tile_data = 18;
    return !syscall(SYS_arch_prctl, request_permission, tile_data);
}

// The compiler does not know that tile instructions read and write memory.
inline void settle_memory() { asm volatile("" ::: "memory"); }

// Tiles 0 to 5, of sums and rows, have so many rows; 6 and 7, of weights, have all 16.
inline void tiles_begin(int num_rows) {
    TileConfig config;
    for (int i = 0; i < 8; i++) config.rows[i] = i < 6 ? num_rows : 16;
    settle_memory();
    _tile_loadconfig(&config);
}

inline void tiles_end() { _tile_release(); }

#else

#define HAS_AMX 0

struct alignas(64) Tile {
    uint8_t bytes[1024];
};

inline Tile& tile_at(int i) {
    static thread_local Tile tiles[8];
    return tiles[i];
}

inline void tile_zero(int tile) { tile_at(tile) = {}; }
inline void tile_load(int tile, const void* from) { memcpy(tile_at(tile).bytes, from, 1024); }
inline void tile_load_once(int tile, const void* from) { tile_load(tile, from); }
inline void tile_store(int tile, void* to) { memcpy(to, tile_at(tile).bytes, 1024); }

inline void tile_dot(int sums, int rows, int weights) {
    auto* c = (Vector*)tile_at(sums).bytes;
    auto* a = (const uint16_t*)tile_at(rows).bytes;
    auto* b = (const Bits*)tile_at(weights).bytes;
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 16; k++) {
            c[m] += widened(a[m * 32 + 2 * k]) * (Vector)(b[k] << 16);
            c[m] += widened(a[m * 32 + 2 * k + 1]) * (Vector)(b[k] & 0xffff0000);
        }
}

template <typename Byte>
void tile_dot_integers(int sums, int rows, int weights) {
    auto* c = (Integers*)tile_at(sums).bytes;
    auto* a = (const Byte*)tile_at(rows).bytes;
    auto* b = (const Integers*)tile_at(weights).bytes;
    for (int m = 0; m < 16; m++)
        for (int k = 0; k < 64; k++) c[m] += (int)a[m * 64 + k] * (b[k / 4] << (24 - k % 4 * 8) >> 24);
}

inline void tile_dot_bytes(int sums, int rows, int weights) { tile_dot_integers<int8_t>(sums, rows, weights); }
inline void tile_dot_unsigned(int sums, int rows, int weights) { tile_dot_integers<uint8_t>(sums, rows, weights); }

inline bool permit_tiles() { return true; }
inline void tiles_begin(int) {}
inline void tiles_end() {}
inline void settle_memory() {}

#endif
