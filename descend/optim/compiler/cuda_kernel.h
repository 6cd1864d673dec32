// The part that all kernels for CUDA share. The source of a rule's update comes after it, as written by codegen_cuda.py.
// NVRTC compiles it without any header of CUDA's toolkit.
//
// One launch of a kernel serves all tensors of an arena. A block takes *units*, some thousand consecutive elements of
// one tensor each, in the order of the arena and as far apart as there are blocks. What a unit computes depends neither
// on the number of blocks nor on addresses, so a step gives the same bits on every device of one kind.

#ifdef __CUDACC_RTC__
namespace std {  // names that the expressions of codegen_cpp.py use
using ::abs; using ::acos; using ::asin; using ::asinh; using ::atan; using ::atan2; using ::ceil; using ::copysign;
using ::cos; using ::cosh; using ::erf; using ::erfc; using ::exp; using ::exp2; using ::expm1; using ::fabs;
using ::floor; using ::fmod; using ::hypot; using ::log; using ::log10; using ::log1p; using ::log2; using ::pow; using ::signbit;
using ::sin; using ::sinh; using ::sqrt; using ::tan; using ::tanh; using ::trunc;
template <class X> struct numeric_limits;
template <> struct numeric_limits<float> {
  static __device__ float infinity() { return __int_as_float(0x7f800000); }
  static __device__ float quiet_NaN() { return __int_as_float(0x7fc00000); }
};
template <> struct numeric_limits<double> {
  static __device__ double infinity() { return __longlong_as_double(0x7ff0000000000000ll); }
  static __device__ double quiet_NaN() { return __longlong_as_double(0x7ff8000000000000ll); }
};
}  // namespace std
static __device__ inline unsigned int bits_of(float x) { return __float_as_uint(x); }
static __device__ inline float float_of(unsigned int x) { return __uint_as_float(x); }
#endif

typedef unsigned short word16;
typedef unsigned int word32;
typedef unsigned long long word64;
typedef long long int64;

struct bfloat16 {  // rounded to nearest even, as torch does it
  word16 bits;
  bfloat16() = default;
  explicit __device__ bfloat16(float x) {
    const word32 word = bits_of(x);
    bits = x != x ? 0x7fc0 : (word16)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
  }
  __device__ operator float() const { return float_of((word32)bits << 16); }
};

struct float16 {
  word16 bits;
  float16() = default;
#ifdef __CUDACC_RTC__
  explicit __device__ float16(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  __device__ operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
#else
  explicit float16(float x);
  operator float() const;
#endif
};

struct Work {  // CudaLaunch in compiler/cuda.py, filled by engine/launch.py; all pointers are of the device
  int64 units, tensors, groups;
  const int64* unit_tensor;  // of each unit its tensor,
  const int64* unit_first;   // its first element within the tensor, a multiple of 4,
  const int64* unit_count;   // and its number of elements
  const int64* border;       // of each tensor its first unit, and after them all the number of units,
  const int64* start;        // its first element within the arena,
  const int64* group;        // its group,
  const word64* key;         // where its noise begins,
  const word64* weights;     // the address of what torch holds of it,
  const word64* gradient;    // and that of its gradient, 0 where it has none
  const word64* buffer;      // address of each buffer of the arena,
  const word64* column;      // and of each entry of state that is one number a tensor, float64
  const double* input;       // input i of group g stands at i * groups + g
  double* count;             // updates of each tensor so far
  double* table;             // number i of tensor t stands at i * tensors + t
  double* sums;              // reduction i of unit u stands at i * units + u
  int* bad;                  // whether a gradient is not finite: then nothing is written
  int* bad_tensor;           // the same of each tensor
  const float* found_inf;    // what torch's GradScaler has found, or null
  const float* grad_scale;   // the factor that it left in the gradients, or null
};

constexpr int THREADS = 256;  // of a block; a power of two

// The sum over a block, in an order that the number of threads alone decides. All threads get it.
static __device__ inline double block_sum(double x) {
  __shared__ double held[THREADS];
  held[threadIdx.x] = x;
  __syncthreads();
  for (int width = THREADS / 2; width; width /= 2) {
    if ((int)threadIdx.x < width) held[threadIdx.x] += held[threadIdx.x + width];
    __syncthreads();
  }
  const double sum = held[0];
  __syncthreads();  // held is written again by the next sum
  return sum;
}

// The sum of reduction i over a whole tensor.
static __device__ inline double tensor_sum(const Work& w, int64 i, int64 tensor) {
  double sum = 0;
  for (int64 unit = w.border[tensor] + threadIdx.x; unit < w.border[tensor + 1]; unit += THREADS)
    sum += w.sums[i * w.units + unit];
  return block_sum(sum);
}

// The remainder with the sign of the divisor, as torch has it.
static __device__ inline double remainder_of(double x, double y) {
  const double r = std::fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

// Four consecutive elements, moved at once where their address allows.
template <class X> struct alignas(sizeof(X) < 4 ? 4 * sizeof(X) : 16) Four { X x[4]; };

template <class X> static __device__ inline bool is_aligned(const X* at) { return (word64)at % alignof(Four<X>) == 0; }

template <class X> static __device__ inline Four<X> load(const X* at, bool aligned) {
  if (aligned) return *reinterpret_cast<const Four<X>*>(at);
  Four<X> found;
  for (int j = 0; j < 4; ++j) found.x[j] = at[j];
  return found;
}

template <class X> static __device__ inline void store(X* at, const Four<X>& value, bool aligned) {
  if (aligned) {
    *reinterpret_cast<Four<X>*>(at) = value;
  } else {
    for (int j = 0; j < 4; ++j) at[j] = value.x[j];
  }
}

// The finite check, see engine/finite.py: whether a gradient holds a NaN or an infinity, so that all bits of
// its exponent are set.
template <class Word> static __device__ inline void check(const Work& w, Word exponent) {
  for (int64 unit = blockIdx.x; unit < w.units; unit += gridDim.x) {
    const int64 tensor = w.unit_tensor[unit];
    if (!w.gradient[tensor]) continue;
    const Word* g = reinterpret_cast<const Word*>(w.gradient[tensor]) + w.unit_first[unit];
    const int64 n = w.unit_count[unit], fours = n / 4;
    const bool aligned = is_aligned(g);
    bool found = false;
#pragma unroll 4
    for (int64 q = threadIdx.x; q < fours; q += THREADS) {
      const Four<Word> x = load(g + 4 * q, aligned);
      for (int j = 0; j < 4; ++j) found |= (x.x[j] & exponent) == exponent;
    }
    for (int64 i = 4 * fours + threadIdx.x; i < n; i += THREADS) found |= (g[i] & exponent) == exponent;
    if (found) *w.bad = w.bad_tensor[tensor] = 1;  // other threads that write here write the same
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) check_float64(const Work w) { check<word64>(w, 0x7ff0000000000000ull); }
extern "C" __global__ void __launch_bounds__(THREADS) check_float32(const Work w) { check<word32>(w, 0x7f800000u); }
extern "C" __global__ void __launch_bounds__(THREADS) check_bfloat16(const Work w) { check<word16>(w, 0x7f80u); }
extern "C" __global__ void __launch_bounds__(THREADS) check_float16(const Work w) { check<word16>(w, 0x7c00u); }

// What a GradScaler has found instead.
extern "C" __global__ void __launch_bounds__(THREADS) adopt_found(const Work w) {
  if (!blockIdx.x && !threadIdx.x && *w.found_inf != 0) *w.bad = 1;
}

// The noise that engine/noise.py defines, to the bit: that of elements j, 16 + j, 32 + j and 48 + j of a block of 64
// comes from one counter.
static __device__ inline void normal_pair(float* z, word32 first, word32 second) {
  // log u for u in (0, 1]: u = 2^e m with m between sqrt(1/2) and sqrt(2), and a polynomial of m - 1.
  const float u = (float)(int)(first >> 1) * 4.656612873077393e-10f + 2.3283064365386963e-10f;
  int bits = (int)bits_of(u);
  const int e = (bits - 0x3f3504f3) >> 23;
  bits -= e * (1 << 23);
  const float f = float_of((word32)bits) - 1.0f;
  float l = 0.087004304f;
  l = l * f - 0.14267486f;
  l = l * f + 0.14914769f;
  l = l * f - 0.16577585f;
  l = l * f + 0.19963063f;
  l = l * f - 0.25001338f;
  l = l * f + 0.3333391f;
  l = (float)e * 0.6931472f + (f + (l * f - 0.5f) * (f * f));
  const float radius = std::sqrt(-l);
  // Sine and cosine of an angle within pi/4 of 0.
  const float r = (float)((int)(second & 0x3fffffffu) - 0x20000000) * 9.313225746154785e-10f, q = r * r;
  float s = -0.004602177f;
  s = s * q + 0.07968023f;
  s = s * q - 0.6459635f;
  s = (s * q + 1.5707964f) * r;
  float c = -0.020408353f;
  c = c * q + 0.25359863f;
  c = c * q - 1.2336971f;
  c = c * q + 1.0f;
  const float x = radius * (c - s), y = radius * (c + s);
  z[0] = second & 0x80000000u ? -x : x;
  z[1] = second & 0x40000000u ? -y : y;
}

static __device__ inline void normal(float* z, word64 counter, word64 key, word32 update, word32 call) {
  word32 c0 = (word32)counter, c1 = (word32)(counter >> 32), c2 = update, c3 = call;
  word32 k0 = (word32)key, k1 = (word32)(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {  // Philox 4x32-10
    const word64 x = (word64)0xD2511F53u * c0, y = (word64)0xCD9E8D57u * c2;
    c0 = (word32)(y >> 32) ^ c1 ^ k0;
    c2 = (word32)(x >> 32) ^ c3 ^ k1;
    c1 = (word32)y;
    c3 = (word32)x;
  }
  normal_pair(z, c0, c1);
  normal_pair(z + 2, c2, c3);
}
