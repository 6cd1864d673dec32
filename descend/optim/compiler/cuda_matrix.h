// What kernels for CUDA share for rules with means over rows and columns, after cuda_kernel.h. The kernels come after it,
// as written by codegen_cuda_matrix.py.
//
// A tensor is `batch` matrices of n rows and m columns. One launch serves all tensors: a block takes units of some
// thousand elements, rows, columns, matrices, or parts of columns of at most TILE rows. Sums are made in an order that
// the shape of a tensor alone decides.

constexpr int64 TILE = 64;

struct Walk {  // over all elements of all tensors, or over all rows, ...
  int64 units;
  const int64* tensor;  // of each unit its tensor,
  const int64* first;   // its first element within the tensor,
  const int64* size;    // and how many it has
  const int64* start;   // of each tensor its first element among those of all tensors
};

struct Matrices {  // DeviceMatrixLaunch in compiler/cuda.py, filled by engine/device_matrices.py
  int64 tensors;
  Walk elements, rows, columns, matrices, parts;
  const int64* n;
  const int64* m;
  const int64* border;      // of each tensor its first unit of elements, and after them all the number of units
  const word64* address;    // of buffer i of tensor t at i * tensors + t
  const double* given;      // number i of tensor t, which the host has computed, at i * tensors + t
  double* computed;         // the same of numbers that follow from sums
  double* sums;             // reduction i of unit u of elements at i * elements.units + u
  const int64* offset;      // of each array of values of rows, columns, matrices and parts, in bytes
  char* memory;             // from here
  const int* bad;           // whether a gradient is not finite: then nothing is written; or null
  const float* grad_scale;  // the factor that torch's GradScaler left in the gradients, or null
};

static __device__ inline int64 tiles_of(int64 n) { return (n + TILE - 1) / TILE; }

struct Split { int64 quotient, rest; };

static __device__ __forceinline__ Split split(int64 x, int64 by) {
  if (!((x | by) >> 32)) {  // four times as fast
    const word32 quotient = (word32)x / (word32)by;
    return {quotient, (word32)x - quotient * (word32)by};
  }
  return {x / by, x % by};
}

// How many threads add up so many numbers in a row: a power of two, and few enough that each has some.
static __device__ inline int lanes_of(int64 count) {
  int lanes = 1;
  while (lanes < (count < 4096 ? 32 : THREADS) && 4 * lanes < count) lanes *= 2;
  return lanes;
}

// Sums over groups of `lanes` threads, for the first of each. All threads of a block have to call it.
static __device__ inline double lanes_sum(double x, int lanes) {
  if (lanes == 1) return x;
  __shared__ double held[THREADS];
  held[threadIdx.x] = x;
  __syncthreads();
  for (int width = lanes / 2; width; width /= 2) {
    if ((int)threadIdx.x % lanes < width) held[threadIdx.x] += held[threadIdx.x + width];
    __syncthreads();
  }
  const double sum = held[threadIdx.x];
  __syncthreads();  // held is written again by the next sum
  return sum;
}

// The sum of reduction i over a whole tensor.
static __device__ inline double tensor_sum(const Matrices& w, int64 i, int64 tensor) {
  double sum = 0;
  for (int64 unit = w.border[tensor] + threadIdx.x; unit < w.border[tensor + 1]; unit += THREADS)
    sum += w.sums[i * w.elements.units + unit];
  return block_sum(sum);
}

// The mean of a column from the sums of its parts, m apart.
static __device__ inline double mean_of_parts(const double* part, int64 tiles, int64 m, int64 n) {
  double sum = 0;
  for (int64 tile = 0; tile < tiles; ++tile) sum += part[tile * m];
  return sum / (double)n;
}
