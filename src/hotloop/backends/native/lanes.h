// A register of the CPU's own width, in the words of products of codes: dot products of four neighbours to a lane.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#elif defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANE_BYTES = 64;
#elif defined(__AVX2__)
constexpr int LANE_BYTES = 32;
#else
constexpr int LANE_BYTES = 16;
#endif

using Codes = uint8_t __attribute__((vector_size(LANE_BYTES)));
using Words = int32_t __attribute__((vector_size(LANE_BYTES)));
using Floats = float __attribute__((vector_size(LANE_BYTES)));

#ifdef __ARM_FP16_FORMAT_IEEE
using half = __fp16;
#else
using half = _Float16;
#endif

constexpr int NUM_LANES = LANE_BYTES / 4;

// Dot products are of signed codes on ARM, where the center can be subtracted before, and of unsigned ones elsewhere.
#if defined(__ARM_FEATURE_DOTPROD)
using Code = int8_t;
constexpr bool IS_SIGNED = true;
#else
using Code = uint8_t;
constexpr bool IS_SIGNED = false;
#endif

inline Codes load_codes(const void* from) {
    Codes v;
    memcpy(&v, from, sizeof(v));
    return v;
}

// Bits of bytes shifted to the left, or to the right if LEFT is negative, where MASK has them; the others are those of
// `rest`, which has none there. x86 shifts no bytes but pairs of them, of which the mask leaves the right bits.
template <int LEFT, uint8_t MASK>
inline Codes shifted_into(Codes v, Codes rest) {
#if defined(__ARM_FEATURE_DOTPROD)
    const Codes shifted = LEFT < 0 ? v >> (LEFT < 0 ? -LEFT : 0) : v << (LEFT < 0 ? 0 : LEFT);
    return vbslq_u8(vdupq_n_u8(MASK), shifted, rest);
#else
    using Pairs = uint16_t __attribute__((vector_size(LANE_BYTES)));
    const Pairs pairs = (Pairs)v;
    return ((Codes)(LEFT < 0 ? pairs >> (LEFT < 0 ? -LEFT : 0) : pairs << (LEFT < 0 ? 0 : LEFT)) & MASK) | rest;
#endif
}

inline Codes high_halves(Codes v) {
    using Pairs = uint16_t __attribute__((vector_size(LANE_BYTES)));
    return IS_SIGNED ? v >> 4 : (Codes)((Pairs)v >> 4) & 15;
}

inline void store_codes(void* to, Codes v) { memcpy(to, &v, sizeof(v)); }

inline Floats load_floats(const float* from) {
    Floats v;
    memcpy(&v, from, sizeof(v));
    return v;
}

inline Floats load_floats(const half* from) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vcvt_f32_f16(vld1_f16((const float16_t*)from));
#elif defined(__AVX512VNNI__)
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#else
    Floats v;
    for (int i = 0; i < NUM_LANES; i++) v[i] = (float)from[i];
    return v;
#endif
}

inline void store_floats(float* to, Floats v) { memcpy(to, &v, sizeof(v)); }

// What sums of less than 2^22 begin with, so that a subtraction makes them floats: converting takes longer on some.
constexpr int32_t FIRST = 0x4b400000;
inline Floats floats_of(Words sum) { return (Floats)sum - 12582912.0f; }

inline Floats times_plus(Floats a, Floats b, Floats sum) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vfmaq_f32(sum, a, b);
#elif defined(__AVX512VNNI__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#else
    return a * b + sum;
#endif
}

// Sixteen neighbours of a row of bytes; dot<I>: words of codes times the I-th four of them, added to each lane.
#if defined(__ARM_FEATURE_DOTPROD)

using Sixteen = int8x16_t;
inline Sixteen load_sixteen(const int8_t* from) { return vld1q_s8(from); }

template <int I>
inline Words dot(Words sum, Codes codes, Sixteen x) {
    return vdotq_laneq_s32(sum, (int8x16_t)codes, x, I);
}

#else

struct Sixteen {
    int32_t words[4];
};

inline Sixteen load_sixteen(const int8_t* from) {
    Sixteen x;
    memcpy(&x, from, sizeof(x));
    return x;
}

template <int I>
inline Words dot(Words sum, Codes codes, const Sixteen& x) {
#if defined(__AVX512VNNI__)
    return (Words)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, _mm512_set1_epi32(x.words[I]));
#else
    const Words words = (Words)codes;
    const int32_t four = x.words[I];
    for (int i = 0; i < 4; i++) sum += (words >> 8 * i & 255) * (int32_t)(int8_t)(four >> 8 * i);
    return sum;
#endif
}

#endif
