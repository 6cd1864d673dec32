// Many small matrices at a time, after matrix.h. A *pack* is PACK matrices of one tensor whose elements lie interleaved:
// each element of the first matrix beside the same element of all others. So what is done to one element of one matrix
// is done to whole vectors, whatever n and m are. Rows, columns and values of matrices lie in the same way.
//
// Values are summed over the elements of a matrix, one after the other; these sums over a pack by `fold`, and packs in
// order.

#include <utility>

constexpr int64_t PACK = BLOCK, SMALL = 64, SEVERAL = 16;  // as in engine/matrices.py

inline bool is_packed(int64_t batch, int64_t n, int64_t m) { return batch >= SEVERAL && n * m <= SMALL; }

inline int64_t packs_of(int64_t batch) { return (batch + PACK - 1) / PACK; }

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64;
#elif defined(__AVX2__)
constexpr int VECTOR_BYTES = 32;
#else
constexpr int VECTOR_BYTES = 16;
#endif

template <class X> constexpr int LANES = std::min<int>(VECTOR_BYTES / sizeof(X), 16);
template <class X> struct VectorOf { typedef X Type __attribute__((vector_size(LANES<X> * sizeof(X)))); };
template <class X> using Vector = typename VectorOf<X>::Type;
template <size_t BYTES> struct Index;
template <> struct Index<2> { using Type = int16_t; };
template <> struct Index<4> { using Type = int32_t; };
template <> struct Index<8> { using Type = int64_t; };

// Lane l of `a` or of `b`, whichever Choice::at<l> names: those of `b` come after those of `a`.
template <class X, class Choice, size_t... LANE>
inline __attribute__((always_inline)) Vector<X> chosen(Vector<X> a, Vector<X> b, std::index_sequence<LANE...>) {
#ifdef __clang__
  return __builtin_shufflevector(a, b, Choice::template at<LANE>...);
#else
  typedef typename Index<sizeof(X)>::Type Mask __attribute__((vector_size(sizeof(Vector<X>))));
  return __builtin_shuffle(a, b, Mask{Choice::template at<LANE>...});
#endif
}

// Vectors a[0] to a[WIDTH - 1] hold WIDTH * lanes values, those of a place side by side. Of them every one at TURN; and
// the reverse: vector TURN of the values in turn, the first of each vector, then the second of each.
template <int LANES, int WIDTH, int TURN, int FROM>
struct Apart {
  template <int LANE>
  static constexpr int at = (LANE * WIDTH + TURN) / LANES == FROM ? LANES + (LANE * WIDTH + TURN) % LANES
                            : FROM > 1 ? LANE : (LANE * WIDTH + TURN) % LANES;
};
template <int LANES, int WIDTH, int TURN, int FROM>
struct Joined {
  template <int LANE>
  static constexpr int at = (TURN * LANES + LANE) % WIDTH == FROM ? LANES + (TURN * LANES + LANE) / WIDTH
                            : FROM > 1 ? LANE : (TURN * LANES + LANE) / WIDTH;
};

template <template <int, int, int, int> class How, class X, int WIDTH, int TURN, int FROM = 1>
inline __attribute__((always_inline)) Vector<X> collected(const Vector<X>* a, Vector<X> before) {
  using Choice = How<LANES<X>, WIDTH, TURN, FROM>;
  const Vector<X> x = chosen<X, Choice>(before, a[FROM], std::make_index_sequence<LANES<X>>());
  if constexpr (FROM + 1 < WIDTH) return collected<How, X, WIDTH, TURN, FROM + 1>(a, x);
  else return x;
}

// WIDTH vectors that lie `from_apart` and `to_apart` apart, a group after the other.
template <template <int, int, int, int> class How, int WIDTH, class X, size_t... TURN>
inline void permuted(const X* from, int64_t from_step, int64_t from_apart, X* to, int64_t to_step, int64_t to_apart,
                     int64_t count, std::index_sequence<TURN...>) {
  for (int64_t i = 0; i < count; i += LANES<X>, from += from_step, to += to_step) {
    Vector<X> a[WIDTH];
    for (int64_t j = 0; j < WIDTH; ++j) std::memcpy(&a[j], from + j * from_apart, sizeof a[j]);
    const Vector<X> b[] = {collected<How, X, WIDTH, TURN>(a, a[0])...};
    for (int64_t j = 0; j < WIDTH; ++j) std::memcpy(to + j * to_apart, &b[j], sizeof b[j]);
  }
}

// From rows of `width` values to columns of `count` values that lie `apart`: count is a multiple of all LANES.
template <class X, int WIDTH = 2>
inline void split(const X* from, int64_t width, X* to, int64_t apart, int64_t count) {
  if constexpr (WIDTH <= 8) {
    if (width == WIDTH)
      permuted<Apart, WIDTH>(from, WIDTH * LANES<X>, LANES<X>, to, LANES<X>, apart, count,
                             std::make_index_sequence<WIDTH>());
    else split<X, WIDTH + 1>(from, width, to, apart, count);
  } else {
    for (int64_t j = 0; j < width; ++j)
      for (int64_t i = 0; i < count; ++i) to[j * apart + i] = from[i * width + j];
  }
}

// The reverse.
template <class X, int WIDTH = 2>
inline void join(const X* from, int64_t apart, X* to, int64_t width, int64_t count) {
  if constexpr (WIDTH <= 8) {
    if (width == WIDTH)
      permuted<Joined, WIDTH>(from, LANES<X>, apart, to, WIDTH * LANES<X>, LANES<X>, count,
                              std::make_index_sequence<WIDTH>());
    else join<X, WIDTH + 1>(from, apart, to, width, count);
  } else {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t j = 0; j < width; ++j) to[i * width + j] = from[j * apart + i];
  }
}

// The elements of `count` matrices as those of a pack; with zeros where there are fewer than PACK. Rows of all matrices
// are split first, as they all follow each other, then what has become of a column. `spare` has room for a pack.
template <class X>
inline void interleave(const X* from, int64_t count, int64_t n, int64_t m, X* to, X* spare) {
  X whole[SMALL * PACK];
  if (count < PACK) {
    std::fill(std::copy_n(from, count * n * m, whole), whole + PACK * n * m, X(0));
    from = whole;
  }
  if (n * m == 1) {
    std::copy_n(from, PACK, to);
  } else if (n == 1 || m == 1) {
    split(from, n * m, to, PACK, PACK);
  } else {
    split(from, m, spare, PACK * n, PACK * n);
    for (int64_t j = 0; j < m; ++j) split(spare + j * PACK * n, n, to + j * PACK, m * PACK, PACK);
  }
}

// The reverse, for the first `count` matrices of a pack.
template <class X>
inline void separate(const X* from, int64_t count, int64_t n, int64_t m, X* to, X* spare) {
  X whole[SMALL * PACK];
  X* const out = count < PACK ? whole : to;
  if (n * m == 1) {
    std::copy_n(from, PACK, out);
  } else if (n == 1 || m == 1) {
    join(from, PACK, out, n * m, PACK);
  } else {
    for (int64_t j = 0; j < m; ++j) join(from + j * PACK, m * PACK, spare + j * PACK * n, n, PACK);
    join(spare, PACK * n, out, m, PACK * n);
  }
  if (out != to) std::copy_n(whole, count * n * m, to);
}

// Sums over `count` values each, for `length` rows or columns of a pack, as means. Where a sum is of float32, to divide it
// is the same as to divide it in float64 and then to round.
template <class T>
inline void averaged(const T* sums, int64_t length, int64_t count, T* means) {
  const T by = static_cast<T>(count);
  if (count == 1 && sums == means) return;
  if (count == 1) std::copy_n(sums, length * PACK, means);
  else for (int64_t i = 0; i < length * PACK; ++i) means[i] = sums[i] / by;
}

// The means over rows or columns, `count` of them, that are of each matrix of a pack one value.
template <class T>
inline void means_of(const T* x, int64_t count, T* means) {
  double sums[PACK] = {};
  if (count == 1) {
    for (int64_t k = 0; k < PACK; ++k) means[k] = x[k] + T(0);  // as a sum from 0 has no negative zero
    return;
  }
  for (int64_t i = 0; i < count; ++i)
    for (int64_t k = 0; k < PACK; ++k) sums[k] += x[i * PACK + k];
  for (int64_t k = 0; k < PACK; ++k) means[k] = T(sums[k] / static_cast<double>(count));
}

template <class T>
inline double folded(T* sums, int64_t count) {
  std::fill(sums + count, sums + PACK, T(0));
  return fold(sums);
}
