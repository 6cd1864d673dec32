// Many small matrices at a time, after matrix.h. A *pack* is PACK matrices of one tensor whose elements lie interleaved:
// each element of the first matrix beside the same element of all others. So what is done to one element of one matrix
// is done to whole vectors, whatever n and m are. Rows, columns and values of matrices lie in the same way.
//
// Values are summed over the elements of a matrix, one after the other; these sums over a pack by `fold`, and packs in
// order.

#include <utility>

constexpr int64_t PACK = BLOCK, SMALL = 64, SEVERAL = 16, GROUP_BYTES = 1 << 15;

inline bool is_packed(int64_t batch, int64_t n, int64_t m) { return batch >= SEVERAL && n * m <= SMALL; }

inline int64_t packs_of(int64_t batch) { return (batch + PACK - 1) / PACK; }

// How many matrices are computed together: whole packs, whose values have room in the first cache; so many of those of
// few values that operations which follow from each other need not wait.
inline int64_t lanes_of(int64_t bytes) {
  return PACK * std::clamp<int64_t>(GROUP_BYTES / PACK / bytes, 1, 8);
}

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

// Has values fetched into the cache, while something else is computed.
template <class X>
inline void ask_for(const X* x, int64_t count) {
  constexpr int64_t LINE = 64 / sizeof(X);
  for (int64_t i = 0; i < count; i += LINE) __builtin_prefetch(x + i);
}

// The elements of `count` matrices in lanes, with zeros where there are fewer than lanes: as they are where they lie in
// this order, else in `to`. Rows of all matrices are split first, as they follow each other, then what has become of a
// column. `spare` has room for as many elements.
template <class X>
inline const X* interleave(const X* from, int64_t count, int64_t n, int64_t m, X* to, int64_t lanes, X* spare) {
  if (count < lanes) {
    for (int64_t j = 0; j < n * m; ++j)
      for (int64_t k = 0; k < lanes; ++k) to[j * lanes + k] = k < count ? from[k * n * m + j] : X(0);
  } else if (n * m == 1) {
    return from;
  } else if (n == 1 || m == 1) {
    split(from, n * m, to, lanes, lanes);
  } else {
    split(from, m, spare, lanes * n, lanes * n);
    for (int64_t j = 0; j < m; ++j) split(spare + j * lanes * n, n, to + j * lanes, m * lanes, lanes);
  }
  return to;
}

// The reverse, for the first `count` matrices.
template <class X>
inline void separate(const X* from, int64_t lanes, int64_t count, int64_t n, int64_t m, X* to, X* spare) {
  if (count < lanes) {
    for (int64_t k = 0; k < count; ++k)
      for (int64_t j = 0; j < n * m; ++j) to[k * n * m + j] = from[j * lanes + k];
  } else if (n * m == 1) {
    std::copy_n(from, lanes, to);
  } else if (n == 1 || m == 1) {
    join(from, lanes, to, n * m, lanes);
  } else {
    for (int64_t j = 0; j < m; ++j) join(from + j * lanes, m * lanes, spare + j * lanes * n, n, lanes);
    join(spare, lanes * n, to, m, lanes * n);
  }
}

// Sums as means. To divide one of float32 is the same as to divide it in float64 and then to round.
template <class T>
inline void divide(T* sums, int64_t length, int64_t count) {
  if (count == 1) return;
  for (int64_t i = 0; i < length; ++i) sums[i] /= static_cast<T>(count);
}

// The means over rows or over columns, `count` of them, that are one value of each matrix.
template <class T>
inline void means_of(const T* x, int64_t count, int64_t lanes, T* means) {
  for (int64_t at = 0; at < lanes; at += PACK, x += PACK, means += PACK) {
    if (count == 1) {
      for (int64_t k = 0; k < PACK; ++k) means[k] = x[k] + T(0);  // a sum that begins with 0 has no negative zero
      continue;
    }
    double sums[PACK] = {};
    for (int64_t i = 0; i < count; ++i)
      for (int64_t k = 0; k < PACK; ++k) sums[k] += x[i * lanes + k];
    for (int64_t k = 0; k < PACK; ++k) means[k] = T(sums[k] / static_cast<double>(count));
  }
}

// The sum of each pack, of which the last may not be whole.
template <class T>
inline void fold_packs(T* sums, int64_t count, double* packs) {
  std::fill(sums + count, sums + packs_of(count) * PACK, T(0));
  for (int64_t at = 0; at < count; at += PACK) *packs++ = fold(sums + at);
}
