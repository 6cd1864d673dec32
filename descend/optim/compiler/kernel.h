// The part that all kernels for a CPU share. The C++ of a rule's update comes after it, as written by codegen_cpp.py.
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

template <class To, class From>
inline To same_bits(From x) {
  static_assert(sizeof(To) == sizeof(From), "the same bits in another type");
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

struct bfloat16 {  // rounded to nearest even, as torch does it
  uint16_t bits;
  bfloat16() = default;
  explicit bfloat16(float x) {
    const uint32_t word = same_bits<uint32_t>(x);
    bits = x != x ? 0x7fc0 : static_cast<uint16_t>((word + 0x7fff + ((word >> 16) & 1)) >> 16);
  }
  operator float() const { return same_bits<float>(static_cast<uint32_t>(bits) << 16); }
};

// The same values as of _Float16, of which GCC 12 makes no vectors. Of a size, the bits without the sign, each
// case is computed and one is taken. Numbers below 2^-14 are rounded by an addition that leaves their bits at the end.
struct float16 {
  uint16_t bits;
  float16() = default;
  explicit float16(float x) {
    const uint32_t word = same_bits<uint32_t>(x), sign = word & 0x80000000u, size = word ^ sign;
    const uint32_t small = same_bits<uint32_t>(same_bits<float>(size) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (size - 0x38000000u + 0xfff + ((size >> 13) & 1)) >> 13;
    const uint32_t large = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
    const uint32_t found = size >= 0x47800000u ? large : size < 0x38800000u ? small : normal;
    bits = static_cast<uint16_t>(found | sign >> 16);
  }
  operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, size = static_cast<uint32_t>(bits & 0x7fff) << 13;
    const float small = same_bits<float>(size + 0x38800000u) - same_bits<float>(0x38800000u);
    const uint32_t normal = size + 0x38000000u, large = size + 0x70000000u;
    const uint32_t found = size >= 0x0f800000u ? large : size < 0x00800000u ? same_bits<uint32_t>(small) : normal;
    return same_bits<float>(found | sign);
  }
};

// What lies in memory of a value. GCC makes no vectors of a loop that copies structs, and does of one that copies words.
template <class X> struct InMemory { using Word = X; };
template <> struct InMemory<bfloat16> { using Word = uint16_t; };
template <> struct InMemory<float16> { using Word = uint16_t; };
template <class X> using Word = typename InMemory<X>::Word;

struct Work {  // KernelLaunch in compiler/native.py, filled by engine/launch.py
  int64_t begin, end;       // units to visit
  const int64_t* tensor;    // of each unit its tensor,
  const int64_t* first;     // its first element within the tensor
  const int64_t* count;     // and its number of elements
  const int64_t* border;    // of each tensor its first unit, and after them all the number of units,
  const int64_t* start;     // its first element within the arena,
  const int64_t* weights;   // the address of what torch holds of it,
  const int64_t* gradient;  // and that of its gradient, 0 where it has none
  const int64_t* buffer;    // address of each buffer
  const double* table;      // number i of tensor t stands at i * stride + t * step
  int64_t stride, step;
  double* sums;             // of each reduction and unit
  int64_t units, threads;
  const uint64_t* key;      // of the noise of each tensor,
  const double* updates;    // and how many updates it has had
  const int64_t* layout;    // of each tensor the address of how its gradient lies, 0 where it lies as the weights do
  int64_t checked;          // whether the finite check has made the sums that are of them alone
};

constexpr int64_t BLOCK = 64, UNIT = 1 << 14;  // as in layout.py

// The sum of N elements by halves. Vectors by name: of a loop over a row that grows shorter, GCC 12 makes none.
template <int N, class T>
inline __attribute__((always_inline)) T by_halves(const T* x) {
  typedef T Half __attribute__((vector_size(N / 2 * sizeof(T))));
  Half low, high;
  std::memcpy(&low, x, sizeof low);
  std::memcpy(&high, x + N / 2, sizeof high);
  low += high;
  T y[N / 2];
  std::memcpy(y, &low, sizeof y);
  if constexpr (N == 4) return y[0] + y[1];
  else return by_halves<N / 2>(y);
}

// The sum over one block: whole rows of 16 first, then by halves, so it is the same on every processor.
template <class T>
inline __attribute__((always_inline)) T fold(const T* x) {
  typedef T Row __attribute__((vector_size(16 * sizeof(T))));
  Row sum, row;
  std::memcpy(&sum, x, sizeof sum);
  for (int64_t at = 16; at < BLOCK; at += 16) {
    std::memcpy(&row, x + at, sizeof row);
    sum += row;
  }
  T y[16];
  std::memcpy(y, &sum, sizeof y);
  return by_halves<16>(y);
}

// The sum of reduction i over a whole tensor, unit after unit.
inline double total(const Work& w, int64_t i, int64_t tensor) {
  double sum = 0;
  for (int64_t unit = w.border[tensor]; unit < w.border[tensor + 1]; ++unit) sum += w.sums[i * w.units + unit];
  return sum;
}

// Copies elements of a gradient into the order of the weights. The layout is the number of dimensions, their sizes and
// their strides in elements, from the dimension that is outermost in the weights to the innermost. Some columns of all
// rows are copied before the next columns: a cache line of the gradient often holds elements of several rows.
template <class Word>
inline void gather(const int64_t* layout, const Word* g, int64_t first, int64_t count, Word* room) {
  constexpr int64_t ROWS = 64, COLUMNS = 32, LINE = 64 / sizeof(Word);
  const int64_t last = layout[0] - 1, *size = layout + 1, *stride = size + layout[0];
  const int64_t length = size[last], step = stride[last], end = first + count;
  const Word* from[ROWS];  // where each row begins
  for (int64_t low = first, high; low < end; low = high) {  // the first and the last row may not be wanted whole
    const int64_t begin = low - low % length, rows = std::min(ROWS, (end - begin + length - 1) / length);
    high = std::min(end, begin + rows * length);
    for (int64_t r = 0; r < rows; ++r) {
      int64_t rest = begin / length + r;
      from[r] = g;
      for (int64_t d = last - 1; d >= 0; rest /= size[d--]) from[r] += rest % size[d] * stride[d];
    }
    // Rows of a convolution's gradient lie within each other, where the processor's prefetching follows no single one.
    const Word* const lowest = *std::min_element(from, from + rows);
    const Word* const highest = *std::max_element(from, from + rows) + (length - 1) * step;
    if (highest - lowest < 2 * rows * length)
      for (const Word* line = lowest; line < highest; line += LINE) __builtin_prefetch(line);
    const int64_t left = rows > 1 ? 0 : low - begin, right = rows > 1 ? length : high - begin;
    for (int64_t column = left; column < right; column += COLUMNS)
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t row = begin + r * length;
        const int64_t a = std::max(column, low - row), b = std::min({column + COLUMNS, length, high - row});
        for (int64_t i = a; i < b; ++i) room[row + i - first] = from[r][i * step];
      }
  }
}

// The gradient of a unit, its elements in the order of the weights; until the thread asks for the next one.
template <class X>
inline const Word<X>* gradient_of(const Work& w, int64_t unit) {
  const int64_t tensor = w.tensor[unit];
  const Word<X>* g = reinterpret_cast<const Word<X>*>(w.gradient[tensor]);
  if (!w.layout[tensor]) return g + w.first[unit];
  alignas(64) static thread_local Word<X> room[UNIT];
  gather(reinterpret_cast<const int64_t*>(w.layout[tensor]), g, w.first[unit], w.count[unit], room);
  return room;
}

// Calls each(from, to) in every thread, with the units that are its own.
template <class Each>
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
#ifdef _OPENMP
  if (w.threads > 1) {
#pragma omp parallel num_threads(static_cast<int>(w.threads))
    {
      const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
      each(part ? border(part, parts) : w.begin, part + 1 < parts ? border(part + 1, parts) : w.end);
    }
    return;
  }
#endif
  each(w.begin, w.end);
}

// One stage of the update of units from to to - 1, which are of one tensor.
using Stage = void (*)(const Work& w, int64_t from, int64_t to);

// All stages for all units whose tensor has a gradient. A tensor that is one thread's alone goes through them one after
// the other, while it is in the cache; for those that are cut, threads wait for each other between stages, which takes
// longer than what a cache would save if all threads shared every tensor. The last tensors come first: the finite check
// has left theirs in the cache.
template <int COUNT>
inline void update(const Work& w, const Stage (&stages)[COUNT]) {
  share(w, [&w, &stages](int64_t from, int64_t to) {
    int64_t low = from, high = to;  // between them lie whole tensors, if there is more than one stage
    if (COUNT > 1 && from < to) {
      const int64_t front = w.tensor[from], back = w.tensor[to - 1];
      if (w.border[front] < from) low = std::min(to, w.border[front + 1]);
      if (w.border[back + 1] > to) high = std::max(low, w.border[back]);
    }
    const auto run = [&w, &stages](int k, int64_t a, int64_t b) {
      if (a < b && w.gradient[w.tensor[a]]) stages[k](w, a, b);
    };
    run(0, high, to);
    run(0, from, low);
    for (int64_t b = high; b > low;) {
      const int64_t a = std::max(low, w.border[w.tensor[b - 1]]);
      for (int k = 0; k < COUNT; ++k) run(k, a, b);
      b = a;
    }
    for (int k = 1; k < COUNT; ++k) {
#ifdef _OPENMP
#pragma omp barrier
#endif
      run(k, high, to);
      run(k, from, low);
    }
  });
}

constexpr int64_t STRETCHES = 4, RUN = 4 * STRETCHES;  // units that are checked in one go

// Calls each(unit, next) in every thread for its own units, some of one tensor at a time, of those with a gradient.
template <class Each>
inline void for_runs(const Work& w, Each each) {
  share(w, [&w, each](int64_t from, int64_t to) {
    for (int64_t unit = from, next; unit < to; unit = next) {
      next = std::min({to, w.border[w.tensor[unit] + 1], unit + RUN});
      if (w.gradient[w.tensor[unit]]) each(unit, next);
    }
  });
}

// ---- the finite check, see engine/finite.py

// Bits that are all set in a NaN and in an infinity alone.
template <class X> struct Exponent;
template <> struct Exponent<double> { using Bits = uint64_t; static constexpr Bits ALL = 0x7ff0000000000000u; };
template <> struct Exponent<float> { using Bits = uint32_t; static constexpr Bits ALL = 0x7f800000u; };
template <> struct Exponent<bfloat16> { using Bits = uint16_t; static constexpr Bits ALL = 0x7f80u; };
template <> struct Exponent<float16> { using Bits = uint16_t; static constexpr Bits ALL = 0x7c00u; };

// Whether consecutive elements hold a NaN or an infinity. To wait for memory is all the work here, and the processor's
// own prefetching ends with each page of 4 KiB. So several long stretches are read side by side: in a single one, or in
// short ones, a core reads fewer bytes a second. What was found is kept by place in the line, which makes vectors of it;
// inlined into a loop, GCC 12 makes slower ones.
template <class Word>
__attribute__((noinline)) bool any_nonfinite(const Word* g, int64_t count, Word exponent) {
  constexpr int64_t LINE = 64 / sizeof(Word);
  const int64_t length = count / (STRETCHES * LINE) * LINE;
  Word bad[LINE] = {}, found = 0;
  for (int64_t i = 0; i < length; i += LINE)
    for (int64_t k = 0; k < STRETCHES; ++k) {
      const Word* line = g + k * length + i;
      for (int64_t j = 0; j < LINE; ++j) bad[j] |= static_cast<Word>((line[j] & exponent) == exponent);
    }
  for (int64_t j = 0; j < LINE; ++j) found |= bad[j];
  for (int64_t i = STRETCHES * length; i < count; ++i) found |= static_cast<Word>((g[i] & exponent) == exponent);
  return found;
}

// Whether any gradient holds a NaN or an infinity. Their elements are read as they lie.
template <class X>
inline int64_t nonfinite(const Work& w) {
  using Bits = typename Exponent<X>::Bits;
  int64_t found = 0;
  for_runs(w, [&w, &found](int64_t unit, int64_t next) {
    const Bits* g = reinterpret_cast<const Bits*>(w.gradient[w.tensor[unit]]) + w.first[unit];
    const int64_t count = w.first[next - 1] + w.count[next - 1] - w.first[unit];
    if (any_nonfinite(g, count, Exponent<X>::ALL)) __atomic_store_n(&found, 1, __ATOMIC_RELAXED);
  });
  return found;
}

extern "C" int64_t nonfinite_float64(const Work* w) { return nonfinite<double>(*w); }
extern "C" int64_t nonfinite_float32(const Work* w) { return nonfinite<float>(*w); }
extern "C" int64_t nonfinite_bfloat16(const Work* w) { return nonfinite<bfloat16>(*w); }
extern "C" int64_t nonfinite_float16(const Work* w) { return nonfinite<float16>(*w); }

// The same of `COUNT` units of as many elements, side by side; and of each the sums that are of gradients alone, to the
// same bits as a stage makes them.
template <class Sums, class X, int COUNT>
inline bool sum_units(const Work& w, int64_t unit, int64_t apart) {
  using Bits = typename Exponent<X>::Bits;
  const int64_t n = w.count[unit];
  const Word<X>* g[COUNT];
  double sums[COUNT][Sums::COUNT] = {}, s[Sums::COUNT];
  Bits bad[BLOCK] = {}, found = 0;
  for (int64_t k = 0; k < COUNT; ++k)
    g[k] = gradient_of<X>(w, unit + k * apart);
  const auto block = [&](int64_t k, int64_t at, int64_t length) {
    Sums::make(length, g[k] + at, s);
    for (int i = 0; i < Sums::COUNT; ++i) sums[k][i] += s[i];
    for (int64_t j = 0; j < length; ++j)
      bad[j] |= static_cast<Bits>((same_bits<Bits>(g[k][at + j]) & Exponent<X>::ALL) == Exponent<X>::ALL);
  };
  int64_t at = 0;
  for (; at + BLOCK <= n; at += BLOCK)
    for (int64_t k = 0; k < COUNT; ++k) block(k, at, BLOCK);
  for (int64_t k = 0; k < COUNT && at < n; ++k) block(k, at, n - at);
  for (int64_t k = 0; k < COUNT; ++k)
    for (int i = 0; i < Sums::COUNT; ++i) w.sums[Sums::ROWS[i] * w.units + unit + k * apart] = sums[k][i];
  for (int64_t j = 0; j < BLOCK; ++j) found |= bad[j];
  return found;
}

// Whether any gradient holds a NaN or an infinity, with the sums that are of gradients alone made on the way.
template <class Sums, class X>
inline int64_t check_and_sum(const Work& w) {
  int64_t found = 0;
  for_runs(w, [&w, &found](int64_t unit, int64_t next) {
    const int64_t whole = next - unit - (w.count[next - 1] != w.count[unit]);
    const int64_t apart = w.layout[w.tensor[unit]] ? 0 : whole / STRETCHES;
    bool bad = false;
    for (int64_t i = 0; i < apart; ++i) bad |= sum_units<Sums, X, STRETCHES>(w, unit + i, apart);
    for (int64_t i = unit + STRETCHES * apart; i < next; ++i) bad |= sum_units<Sums, X, 1>(w, i, 0);
    if (bad) __atomic_store_n(&found, 1, __ATOMIC_RELAXED);
  });
  return found;
}
