// Sixteen floats at once, in the compiler's own vector types: AVX-512 where there is such a thing, pieces elsewhere.

#pragma once

#include "lanes.h"

using Vector = float __attribute__((vector_size(64)));
using Integers = int32_t __attribute__((vector_size(64)));
using Bits = uint32_t __attribute__((vector_size(64)));
using Halves = uint16_t __attribute__((vector_size(32)));
using Bytes = int8_t __attribute__((vector_size(16)));

constexpr int LANES = 16;

inline Vector load(const float* from) {
    Vector v;
    memcpy(&v, from, sizeof(v));
    return v;
}

inline Vector load(const uint16_t* from) {  // bf16
    Halves halves;
    memcpy(&halves, from, sizeof(halves));
    return (Vector)(__builtin_convertvector(halves, Bits) << 16);
}

template <typename Number>  // half or int8_t
inline Vector load(const Number* from) {
    Vector v;
    for (int i = 0; i < LANES; i += NUM_LANES) store_floats((float*)&v + i, load_floats(from + i));
    return v;
}

inline float widened(uint16_t x) {  // bf16
    const uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

inline Vector gather(const float* from, const int* at) {
#if defined(__AVX512F__)
    return (Vector)_mm512_i32gather_ps(_mm512_loadu_si512(at), from, sizeof(float));
#else
    Vector v;
    for (int i = 0; i < LANES; i++) v[i] = from[at[i]];
    return v;
#endif
}

template <typename Number>  // of 32 bits
inline Integers load_integers(const Number* from) {
    Integers v;
    memcpy(&v, from, sizeof(v));
    return v;
}

inline void store(float* to, Vector v) { memcpy(to, &v, sizeof(v)); }

// To the nearest bf16, ties to even, in the upper half of each lane.
inline Bits round_bf16(Vector v) {
    const Bits bits = (Bits)v;
    return bits + 0x7fff + ((bits >> 16) & 1);
}

inline void store(uint16_t* to, Vector v) {
#if defined(__AVX512BF16__)
    const auto halves = _mm512_cvtneps_pbh((__m512)v);
#else
    const Halves halves = __builtin_convertvector(round_bf16(v) >> 16, Halves);
#endif
    memcpy(to, &halves, sizeof(halves));
}

inline void store(uint16_t* to, Vector a, Vector b) {
#if defined(__AVX512BF16__)
    const auto halves = _mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
    memcpy(to, &halves, sizeof(halves));
#else
    store(to, a), store(to + LANES, b);
#endif
}

inline Vector floats(Integers v) { return __builtin_convertvector(v, Vector); }
inline Vector absolute(Vector v) { return (Vector)((Bits)v & 0x7fffffff); }
#if defined(__AVX512F__)
inline Vector larger(Vector a, Vector b) { return (Vector)_mm512_max_ps((__m512)a, (__m512)b); }
inline Vector smaller(Vector a, Vector b) { return (Vector)_mm512_min_ps((__m512)a, (__m512)b); }
#else
inline Vector larger(Vector a, Vector b) { return a > b ? a : b; }
inline Vector smaller(Vector a, Vector b) { return a < b ? a : b; }
#endif

// The nearest integers of numbers in [-2^22, 2^22], ties to even: adding 1.5 * 2^23 leaves them in the lowest bits.
inline Integers nearest(Vector v) { return (Integers)(v + 12582912.0f) - 0x4b400000; }

inline void store(int8_t* to, Vector v) {
    Bytes bytes = __builtin_convertvector(nearest(v), Bytes);
    memcpy(to, &bytes, sizeof(bytes));
}

// 64 neighbours, as the nearest integers between -127 and 127.
inline void store_bytes(int8_t* to, Vector a, Vector b, Vector c, Vector d) {
#if defined(__AVX512BW__)
    auto words = [](Vector a, Vector b) {
        return _mm512_packs_epi32(_mm512_cvtps_epi32((__m512)a), _mm512_cvtps_epi32((__m512)b));
    };
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(words(a, b), words(c, d)));
    _mm512_storeu_si512(to, _mm512_max_epi8(bytes, _mm512_set1_epi8(-127)));
#else
    for (Vector v : {a, b, c, d}) {
        store(to, larger(smaller(v, Vector{} + 127.0f), Vector{} - 127.0f));
        to += LANES;
    }
#endif
}

inline void store_low_bytes(uint8_t* to, Bits v) {
    using Unsigned = uint8_t __attribute__((vector_size(16)));
    Unsigned bytes = __builtin_convertvector(v, Unsigned);
    memcpy(to, &bytes, sizeof(bytes));
}

inline Vector multiply_add(Vector a, Vector b, Vector sum) {
#if defined(__AVX512F__)
    return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#else
    return a * b + sum;
#endif
}

#if !defined(__AVX512F__)  // where registers have as many lanes
inline Vector exponential(Vector x) {
    for (int i = 0; i < LANES; i += NUM_LANES) {
        float* part = (float*)&x + i;
        store_floats(part, exponential(load_floats(part)));
    }
    return x;
}
#endif

// x / (1 + e^-x)
inline Vector exact_silu(Vector x) {
    const Vector bounded = x < -80.0f ? x * 0 - 80.0f : x > 80.0f ? x * 0 + 80.0f : x;
    return x / (exponential(-bounded) + 1.0f);
}

#if defined(__AVX512F__)  // off by far less than a bf16 is: a cubic for the power's fraction, and an estimate of the inverse
inline Vector silu(Vector x) {
    const Vector power = x * -1.44269504f;
    const Vector whole = (Vector)_mm512_roundscale_ps((__m512)power, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Vector f = power - whole;
    Vector p = multiply_add(f, Vector{} + 0.05517166f, Vector{} + 0.24261112f);
    p = multiply_add(p, f, Vector{} + 0.69326099f);
    p = multiply_add(p, f, Vector{} + 0.99992807f);
    return x * (Vector)_mm512_rcp14_ps(_mm512_add_ps(_mm512_scalef_ps((__m512)p, (__m512)whole), _mm512_set1_ps(1)));
}
#else
inline Vector silu(Vector x) { return exact_silu(x); }
#endif
