// Standard normal noise in a kernel, the same to the bit as engine/noise.py, which says what it is. Only kernels that
// draw include it: the header of the processor's vector instructions takes as long to read as a kernel to compile.

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

constexpr int64_t LANES = 16;  // counters of a block of 64 elements, four words each

// Philox 4x32-10 of 16 counters in a row: word i of counter j to word[i][j].
inline void philox(uint32_t (&word)[4][LANES], uint64_t first, uint64_t key, uint32_t update, uint32_t call) {
  constexpr uint32_t M0 = 0xD2511F53u, M1 = 0xCD9E8D57u, W0 = 0x9E3779B9u, W1 = 0xBB67AE85u;
#if defined(__AVX512F__)
  // Words in the lower half of 64 bits: a product reads these alone, so what the upper half holds does not matter.
  for (int64_t at = 0; at < LANES; at += 8) {
    const __m512i m0 = _mm512_set1_epi64(M0), m1 = _mm512_set1_epi64(M1);
    __m512i c0 = _mm512_add_epi64(_mm512_set1_epi64(first + at), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    __m512i c1 = _mm512_srli_epi64(c0, 32), c2 = _mm512_set1_epi64(update), c3 = _mm512_set1_epi64(call);
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round, k0 += W0, k1 += W1) {
      const __m512i x = _mm512_mul_epu32(c0, m0), y = _mm512_mul_epu32(c2, m1);
      c0 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(y, 32), c1), _mm512_set1_epi64(k0));
      c2 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(x, 32), c3), _mm512_set1_epi64(k1));
      c1 = y;
      c3 = x;
    }
    const __m512i c[4] = {c0, c1, c2, c3};
    for (int i = 0; i < 4; ++i)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(word[i] + at), _mm512_cvtepi64_epi32(c[i]));
  }
#elif defined(__AVX2__)
  for (int64_t at = 0; at < LANES; at += 4) {
    const __m256i m0 = _mm256_set1_epi64x(M0), m1 = _mm256_set1_epi64x(M1);
    __m256i c0 = _mm256_add_epi64(_mm256_set1_epi64x(first + at), _mm256_set_epi64x(3, 2, 1, 0));
    __m256i c1 = _mm256_srli_epi64(c0, 32), c2 = _mm256_set1_epi64x(update), c3 = _mm256_set1_epi64x(call);
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round, k0 += W0, k1 += W1) {
      const __m256i x = _mm256_mul_epu32(c0, m0), y = _mm256_mul_epu32(c2, m1);
      c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(y, 32), c1), _mm256_set1_epi64x(k0));
      c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(x, 32), c3), _mm256_set1_epi64x(k1));
      c1 = y;
      c3 = x;
    }
    const __m256i even = _mm256_set_epi32(0, 0, 0, 0, 6, 4, 2, 0), c[4] = {c0, c1, c2, c3};
    for (int i = 0; i < 4; ++i)
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(word[i] + at), _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(c[i], even)));
  }
#else
  for (int64_t j = 0; j < LANES; ++j) {
    uint32_t c0 = static_cast<uint32_t>(first + j), c1 = static_cast<uint32_t>((first + j) >> 32);
    uint32_t c2 = update, c3 = call, k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round, k0 += W0, k1 += W1) {
      const uint64_t x = static_cast<uint64_t>(M0) * c0, y = static_cast<uint64_t>(M1) * c2;
      c0 = static_cast<uint32_t>(y >> 32) ^ c1 ^ k0;
      c2 = static_cast<uint32_t>(x >> 32) ^ c3 ^ k1;
      c1 = static_cast<uint32_t>(y);
      c3 = static_cast<uint32_t>(x);
    }
    word[0][j] = c0, word[1][j] = c1, word[2][j] = c2, word[3][j] = c3;
  }
#endif
}

// The noise of block number `block` of a tensor.
inline void normal(float* __restrict z, uint64_t block, uint64_t key, uint32_t update, uint32_t call) {
  uint32_t word[4][LANES];
  philox(word, block * LANES, key, update, call);
  for (int64_t pair = 0; pair < 2; ++pair)
    for (int64_t j = 0; j < LANES; ++j) {
      // log u for u in (0, 1]: u = 2^e m with m between √½ and √2, and a polynomial of m − 1.
      const float u = static_cast<float>(static_cast<int32_t>(word[2 * pair][j] >> 1)) * 0x1p-31f + 0x1p-32f;
      int32_t bits;
      std::memcpy(&bits, &u, 4);
      const int32_t e = (bits - 0x3f3504f3) >> 23;
      bits -= e * (1 << 23);
      float m;
      std::memcpy(&m, &bits, 4);
      const float f = m - 1.0f;
      float l = 0.087004304f;
      l = l * f - 0.14267486f;
      l = l * f + 0.14914769f;
      l = l * f - 0.16577585f;
      l = l * f + 0.19963063f;
      l = l * f - 0.25001338f;
      l = l * f + 0.3333391f;
      l = static_cast<float>(e) * 0.6931472f + (f + (l * f - 0.5f) * (f * f));
      const float radius = std::sqrt(-l);
      // Sine and cosine of an angle within π/4 of 0.
      const uint32_t v = word[2 * pair + 1][j];
      const float r = static_cast<float>(static_cast<int32_t>(v & 0x3fffffffu) - 0x20000000) * 0x1p-30f, q = r * r;
      float s = -0.004602177f;
      s = s * q + 0.07968023f;
      s = s * q - 0.6459635f;
      s = (s * q + 1.5707964f) * r;
      float c = -0.020408353f;
      c = c * q + 0.25359863f;
      c = c * q - 1.2336971f;
      c = c * q + 1.0f;
      const float x = radius * (c - s), y = radius * (c + s);
      z[2 * LANES * pair + j] = v & 0x80000000u ? -x : x;
      z[2 * LANES * pair + LANES + j] = v & 0x40000000u ? -y : y;
    }
}
