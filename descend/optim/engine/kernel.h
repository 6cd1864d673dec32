// What every kernel for a CPU shares. The text of a rule's update comes after it, as made by source.py.
//
// A kernel walks over *units*: some thousand elements of one tensor each, in the order of the arena. Threads share the
// units by their number of elements, and what a unit computes does not depend on who computes it.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#ifdef _OPENMP
#include <omp.h>
#endif

struct bfloat16 {  // rounded to nearest even, as torch does it
  uint16_t bits;
  bfloat16() = default;
  explicit bfloat16(float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    bits = x != x ? 0x7fc0 : static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
  }
  operator float() const {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &word, 4);
    return x;
  }
};

struct Work {  // as native.py fills it
  int64_t begin, end;       // units to visit
  const int64_t* tensor;    // of each unit its tensor,
  const int64_t* first;     // its first element within the tensor
  const int64_t* count;     // and its number of elements
  const int64_t* start;     // of each tensor its first element within the arena,
  const int64_t* weights;   // the address of what torch holds of it,
  const int64_t* gradient;  // and that of its gradient, 0 where it has none
  const int64_t* buffer;    // address of each buffer
  const double* table;      // number i of tensor t stands at i * stride + t * step
  int64_t stride, step;
  double* sums;             // of each reduction and unit
  int64_t units, threads;
};

constexpr int64_t BLOCK = 64;

// The sum over one block: whole rows of 16 first, then by halves, so it is the same on every processor.
template <class T>
inline T fold(const T* x) {
  T lane[16];
  for (int i = 0; i < 16; ++i) lane[i] = x[i] + x[16 + i];
  for (int row = 32; row < BLOCK; row += 16)
    for (int i = 0; i < 16; ++i) lane[i] += x[row + i];
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  return lane[0];
}

// Calls each(unit) for all units whose tensor has a gradient. An update goes backwards: whoever looked at the gradients
// before went forwards, and left the last of them in the cache.
template <bool forwards = false, class Each>
inline void share(const Work& w, Each each) {
  const auto place = [&w](int64_t unit) { return w.start[w.tensor[unit]] + w.first[unit]; };
  const auto border = [&w, place](int64_t part, int64_t parts) {
    const int64_t low = place(w.begin), high = place(w.end - 1) + w.count[w.end - 1];
    const int64_t wanted = low + (high - low) / parts * part;
    int64_t a = w.begin, b = w.end;
    while (a < b) {
      const int64_t middle = (a + b) / 2;
      if (place(middle) < wanted) a = middle + 1; else b = middle;
    }
    return a;
  };
  const auto walk = [&w, each](int64_t from, int64_t to) {
    for (int64_t i = 0; i < to - from; ++i) {
      const int64_t unit = forwards ? from + i : to - 1 - i;
      if (w.gradient[w.tensor[unit]]) each(unit);
    }
  };
#ifdef _OPENMP
  if (w.threads > 1) {
#pragma omp parallel num_threads(static_cast<int>(w.threads))
    {
      const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
      walk(part ? border(part, parts) : w.begin, part + 1 < parts ? border(part + 1, parts) : w.end);
    }
    return;
  }
#endif
  walk(w.begin, w.end);
}

// Whether a gradient holds a NaN or an infinity: all bits of the exponent are set.
template <class Word>
inline bool unfit(const Work& w, Word exponent) {
  int64_t found = 0;
  share<true>(w, [&w, &found, exponent](int64_t unit) {
    const Word* g = reinterpret_cast<const Word*>(w.gradient[w.tensor[unit]]) + w.first[unit];
    Word bad = 0;
    for (int64_t i = 0; i < w.count[unit]; ++i) bad |= static_cast<Word>((g[i] & exponent) == exponent);
    if (bad) __atomic_store_n(&found, 1, __ATOMIC_RELAXED);
  });
  return found;
}

extern "C" int64_t unfit_float64(const Work* w) { return unfit<uint64_t>(*w, 0x7ff0000000000000u); }
extern "C" int64_t unfit_float32(const Work* w) { return unfit<uint32_t>(*w, 0x7f800000u); }
extern "C" int64_t unfit_bfloat16(const Work* w) { return unfit<uint16_t>(*w, 0x7f80u); }
extern "C" int64_t unfit_float16(const Work* w) { return unfit<uint16_t>(*w, 0x7c00u); }
