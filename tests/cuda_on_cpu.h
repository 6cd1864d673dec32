// CUDA's words for a C++ compiler, so that a processor runs the kernels that a GPU would: block after block, and within
// a block a fiber a thread, so that __syncthreads is a place where all fibers of a block wait for each other.
#include <ucontext.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#define __device__
#define __global__ static
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(n)

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

static unsigned bits_of(float x) {
  unsigned word;
  std::memcpy(&word, &x, 4);
  return word;
}
static float float_of(unsigned word) {
  float x;
  std::memcpy(&x, &word, 4);
  return x;
}

namespace fibers {
constexpr std::size_t STACK = 64 * 1024;
static std::vector<ucontext_t> threads;
static std::vector<char> stacks, ended;
static ucontext_t caller;
static void (*body)(void*);
static void* given;

static void begin() {
  body(given);
  ended[threadIdx.x] = 1;
  swapcontext(&threads[threadIdx.x], &caller);
}

// One block: each thread until it waits or ends, in turn. A thread that ends while others wait is counted as waiting,
// as on devices of today.
static void run(unsigned count) {
  threads.resize(count);
  stacks.resize(count * STACK);
  ended.assign(count, 0);
  for (unsigned i = 0; i < count; ++i) {
    getcontext(&threads[i]);
    threads[i].uc_stack.ss_sp = stacks.data() + i * STACK;
    threads[i].uc_stack.ss_size = STACK;
    threads[i].uc_link = nullptr;
    makecontext(&threads[i], begin, 0);
  }
  for (unsigned left = count; left;) {
    left = 0;
    for (unsigned i = 0; i < count; ++i) {
      if (ended[i]) continue;
      threadIdx.x = i;
      swapcontext(&caller, &threads[i]);
      left += !ended[i];
    }
  }
}
}  // namespace fibers

static void __syncthreads() { swapcontext(&fibers::threads[threadIdx.x], &fibers::caller); }

template <class Work>
static void emulate(void (*kernel)(Work), unsigned grid, unsigned block, const Work& work) {
  static void (*called)(Work);
  static const Work* with;
  called = kernel;
  with = &work;
  fibers::body = [](void*) { called(*with); };
  gridDim.x = grid;
  blockDim.x = block;
  for (unsigned i = 0; i < grid; ++i) {
    blockIdx.x = i;
    fibers::run(block);
  }
}
