// A register of the CPU's own width, in the words of products of codes: dot products of four neighbours to a lane.

#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>

#if defined(__ARM_NEON)
#include <arm_neon.h>
#elif defined(__AVX2__)
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

#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr bool HAS_32_REGISTERS = true;
#else
constexpr bool HAS_32_REGISTERS = false;
#endif

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

// Of sixteen bytes those that these say.
inline Codes looked_up(const uint8_t* table, Codes v) {
#if defined(__ARM_NEON)
    return vqtbl1q_u8(vld1q_u8(table), v);
#elif defined(__AVX512BW__)
    return (Codes)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)table)), (__m512i)v);
#elif defined(__AVX2__)
    return (Codes)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)table)), (__m256i)v);
#else
    for (int i = 0; i < LANE_BYTES; i++) v[i] = table[v[i]];
    return v;
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
#if defined(__ARM_FP16_FORMAT_IEEE)
    return vcvt_f32_f16(vld1_f16((const float16_t*)from));
#elif defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__F16C__)
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
    Floats v;
    for (int i = 0; i < NUM_LANES; i++) v[i] = (float)from[i];
    return v;
#endif
}

inline Floats load_floats(const int8_t* from) {
#if defined(__AVX512F__)  // which the compiler does not find by itself
    return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif defined(__AVX2__)
    return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
    int8_t bytes __attribute__((vector_size(NUM_LANES)));
    memcpy(&bytes, from, sizeof(bytes));
    return __builtin_convertvector(bytes, Floats);
#endif
}

inline Floats all(float x) { return x - Floats{}; }  // not added: compilers would add, for the sign of a zero

inline void store_floats(float* to, Floats v) { memcpy(to, &v, sizeof(v)); }

// What sums of less than 2^22 begin with, so that a subtraction makes them floats: converting takes longer on some.
constexpr int32_t FIRST = 0x4b400000;
inline Floats floats_of(Words sum) { return (Floats)sum - 12582912.0f; }

// In one instruction even where the compiler may not make one of two.
inline Floats times_plus(Floats a, Floats b, Floats sum) {
#if defined(__ARM_NEON)
    return vfmaq_f32(sum, a, b);
#elif defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__FMA__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#else
    return a * b + sum;
#endif
}

template <int NUM_BYTES>
struct Narrow {
    typedef float Type __attribute__((vector_size(NUM_BYTES)));
};

// Of all lanes of a vector, by halves.
template <typename Lanes, typename Join>
inline float joined(Lanes v, Join join) {
    if constexpr (sizeof(v) == 2 * sizeof(float)) return join(v[0], v[1]);
    else {
        typename Narrow<sizeof(v) / 2>::Type halves[2];
        memcpy(halves, &v, sizeof(v));
        return joined(join(halves[0], halves[1]), join);
    }
}

template <typename Lanes>
inline float sum_of(Lanes v) {
    return joined(v, [](auto a, auto b) { return a + b; });
}

template <typename Lanes>
inline float largest_of(Lanes v) {
    return joined(v, [](auto a, auto b) { return a > b ? a : b; });
}

// e^x to about a float's precision, for |x| < 87: a polynomial on the fraction of x / ln 2, scaled by the whole.
inline Floats exponential(Floats x) {
    x *= 1.44269504f;
    const Floats whole = (x + 12582912.0f) - 12582912.0f, f = x - whole;
    Floats p = all(0.00133335581f);
    for (float each : {0.00961812911f, 0.0555041087f, 0.240226507f, 0.693147181f, 1.0f}) p = times_plus(p, f, all(each));
    return (Floats)((Words)p + (__builtin_convertvector(whole, Words) << 23));
}

// M registers of floats for each of N rows.
template <int N, int M>
struct Sums {
    Floats totals[N][M] = {};

    void load(const float* const* from, const float* factors) {
        for (int n = 0; n < N; n++)
            for (int i = 0; i < M; i++) totals[n][i] = load_floats(from[n] + NUM_LANES * i) * factors[n];
    }

    // `count` spans of M registers, each so far from the one before, weighed by each row's own weights.
    void add(const float* const* weights, const float* const* spans, int count, int stride) {
        for (int j = 0; j < count; j++) {
            Floats span[M];
            for (int i = 0; i < M; i++) span[i] = load_floats(spans[i] + (size_t)j * stride);
            for (int n = 0; n < N; n++) {
                const Floats weight = all(weights[n][j]);
                for (int i = 0; i < M; i++) totals[n][i] = times_plus(weight, span[i], totals[n][i]);
            }
        }
    }

    void store(float* const* to) const {
        for (int n = 0; n < N; n++)
            for (int i = 0; i < M; i++) store_floats(to[n] + NUM_LANES * i, totals[n][i]);
    }
};

// Sixteen neighbours of a row of bytes; dot<I>: words of codes times the I-th four of them, added to each lane. Codes have
// all eight bits only if they are said to.
#if defined(__ARM_FEATURE_DOTPROD)

using Sixteen = int8x16_t;
inline Sixteen load_sixteen(const int8_t* from) { return vld1q_s8(from); }

template <int I, bool HAVE_EIGHT = true>
inline Words dot(Words sum, Codes codes, Sixteen x) {
    return vdotq_laneq_s32(sum, (int8x16_t)codes, x, I);
}

#if defined(__ARM_FEATURE_MATMUL_INT8)

#define HAS_PAIR_PRODUCTS

// Eight neighbours of two rows times those of two columns, added to the first row's two sums and to the second's.
inline Words dot_pairs(Words sums, Codes columns, Sixteen rows) { return vmmlaq_s32(sums, rows, (int8x16_t)columns); }

template <typename T>
inline T first_halves(T a, T b) {
    return (T)vzip1q_s64((int64x2_t)a, (int64x2_t)b);
}

template <typename T>
inline T second_halves(T a, T b) {
    return (T)vzip2q_s64((int64x2_t)a, (int64x2_t)b);
}

#endif

#else

struct Sixteen {
    const int8_t* at;  // four of them at once are loaded to every lane
};

inline Sixteen load_sixteen(const int8_t* from) { return {from}; }

#if defined(__AVX512VNNI__)

template <int I, bool HAVE_EIGHT = true>
inline Words dot(Words sum, Codes codes, Sixteen x) {  // with a load in it, of which compilers make another instruction
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(*(const int32_t*)(x.at + 4 * I)));
    return sum;
}

#elif defined(__AVX2__)

#if defined(__AVX512BW__)
inline Words sum_pairs(Codes codes, Words x, int16_t factor) {
    return (Words)_mm512_madd_epi16(_mm512_maddubs_epi16((__m512i)codes, (__m512i)x), _mm512_set1_epi16(factor));
}
#else
inline Words sum_pairs(Codes codes, Words x, int16_t factor) {
    return (Words)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)codes, (__m256i)x), _mm256_set1_epi16(factor));
}
#endif

// A sum of two products with eight bits may not fit into sixteen, so that the highest bits go by themselves.
template <int I, bool HAVE_EIGHT = true>
inline Words dot(Words sum, Codes codes, Sixteen x) {
    int32_t four;
    memcpy(&four, x.at + 4 * I, sizeof(four));
    const Words fours = Words{} + four;
    if (!HAVE_EIGHT) return sum + sum_pairs(codes, fours, 1);
    return sum + sum_pairs(codes & 127, fours, 1) + sum_pairs(codes >> 7, fours, 128);
}

#define ADDS_PAIRS

// All four at once. With fewer bits the sums of so many products fit into sixteen, where they are added first.
template <int NUM_FIT>
inline Words dot_all(Words sum, const Codes* codes, Sixteen x) {
    auto fours = [&](int i) {
        int32_t four;
        memcpy(&four, x.at + 4 * i, sizeof(four));
        return Words{} + four;
    };
#if defined(__AVX512BW__)
    auto pairs = [&](int i) { return _mm512_maddubs_epi16((__m512i)codes[i], (__m512i)fours(i)); };
    auto words = [](__m512i pairs) { return (Words)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)); };
    const auto first = _mm512_add_epi16(pairs(0), pairs(1)), second = _mm512_add_epi16(pairs(2), pairs(3));
    return NUM_FIT == 4 ? sum + words(_mm512_add_epi16(first, second)) : sum + words(first) + words(second);
#else
    auto pairs = [&](int i) { return _mm256_maddubs_epi16((__m256i)codes[i], (__m256i)fours(i)); };
    auto words = [](__m256i pairs) { return (Words)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); };
    const auto first = _mm256_add_epi16(pairs(0), pairs(1)), second = _mm256_add_epi16(pairs(2), pairs(3));
    return NUM_FIT == 4 ? sum + words(_mm256_add_epi16(first, second)) : sum + words(first) + words(second);
#endif
}

#else

template <int I, bool HAVE_EIGHT = true>
inline Words dot(Words sum, Codes codes, Sixteen x) {
    int32_t four;
    memcpy(&four, x.at + 4 * I, sizeof(four));
    const Words words = (Words)codes;
    for (int i = 0; i < 4; i++) sum += (words >> 8 * i & 255) * (int32_t)(int8_t)(four >> 8 * i);
    return sum;
}

#endif

#endif
