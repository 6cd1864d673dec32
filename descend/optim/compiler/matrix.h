// What kernels for rules with means over rows and columns share, after kernel.h. The C++ of a rule's update comes after
// it, as written by codegen_matrix.py: a function `tensor` that updates one tensor, and `scratch`, the memory it needs.
//
// A tensor is `batch` matrices of n rows and m columns. Its rows are taken in *tiles* of at most TILE rows of one matrix;
// sums over columns and over all elements are added up tile after tile, so no sum depends on the number of threads.

constexpr int64_t TILE = 64;
constexpr int64_t LARGE = int64_t(1) << 17;  // elements of a tensor that all threads update together

struct Tensors {  // MatrixLaunch in compiler/native.py
  int64_t count, threads;
  const int64_t* batch;    // of each tensor how many matrices,
  const int64_t* n;        // their rows
  const int64_t* m;        // and columns
  const int64_t* address;  // of buffer i of tensor t at i * count + t
  const double* table;     // number i of tensor t at i * stride + t * step
  int64_t stride, step;
  char* memory;            // of `size` bytes
};

struct Team {  // the threads that update a tensor, and which of them this one is
  int64_t part, parts;
  void wait() const {
    if (parts > 1) {
#ifdef _OPENMP
#pragma omp barrier
#endif
    }
  }
  int64_t first(int64_t of) const { return of * part / parts; }
  int64_t last(int64_t of) const { return of * (part + 1) / parts; }
};

inline int64_t tiles_of(int64_t n) { return (n + TILE - 1) / TILE; }

// Memory for `count` values at the place that `at` points to, which moves on; in whole cache lines.
template <class T>
inline T* room(char*& at, int64_t count) {
  T* const found = reinterpret_cast<T*>(at);
  at += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
  return found;
}

inline double in_order(const double* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += x[i];
  return sum;
}

// The means of the columns of one matrix from the sums of its tiles.
template <class T>
inline void column_means(T* __restrict mean, const T* __restrict sums, int64_t n, int64_t m) {
  for (int64_t at = 0; at < m; at += BLOCK) {
    const int64_t width = std::min(BLOCK, m - at);
    double sum[BLOCK] = {};
    for (int64_t tile = 0; tile < tiles_of(n); ++tile)
      for (int64_t j = 0; j < width; ++j) sum[j] += sums[tile * m + at + j];
    for (int64_t j = 0; j < width; ++j) mean[at + j] = T(sum[j] / static_cast<double>(n));
  }
}

template <class T>
inline T mean_of(const T* x, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += x[i];
  return T(sum / static_cast<double>(count));
}

static int64_t scratch(int64_t batch, int64_t n, int64_t m, int64_t parts);  // for a team of so many
static void tensor(const Tensors& w, int64_t t, const Team& team, char* memory);

inline bool is_large(const Tensors& w, int64_t t) { return w.threads > 1 && w.batch[t] * w.n[t] * w.m[t] >= LARGE; }

// Most memory that a large tensor needs, and a small one.
inline void most(const Tensors& w, int64_t& large, int64_t& small) {
  large = small = 0;
  for (int64_t t = 0; t < w.count; ++t) {
    int64_t& found = is_large(w, t) ? large : small;
    found = std::max(found, scratch(w.batch[t], w.n[t], w.m[t], is_large(w, t) ? w.threads : 1));
  }
}

extern "C" int64_t size(const Tensors* w) {
  int64_t large, small;
  most(*w, large, small);
  return large + small * w->threads;
}

extern "C" void call(const Tensors* given) {
  const Tensors& w = *given;
  int64_t large, small, all = 0;
  most(w, large, small);
  for (int64_t t = 0; t < w.count; ++t) all += is_large(w, t) ? 0 : w.batch[t] * w.n[t] * w.m[t];
  const auto work = [&w, large, small, all](int64_t part, int64_t parts) {
    for (int64_t t = 0; t < w.count; ++t)
      if (is_large(w, t)) tensor(w, t, Team{part, parts}, w.memory);
    int64_t before = 0;
    for (int64_t t = 0; t < w.count; ++t) {
      if (is_large(w, t)) continue;
      if (std::min(parts - 1, before * parts / std::max<int64_t>(all, 1)) == part)
        tensor(w, t, Team{0, 1}, w.memory + large + part * small);
      before += w.batch[t] * w.n[t] * w.m[t];
    }
  };
#ifdef _OPENMP
  if (w.threads > 1) {
#pragma omp parallel num_threads(static_cast<int>(w.threads))
    work(omp_get_thread_num(), omp_get_num_threads());
    return;
  }
#endif
  work(0, 1);
}
