// Finds the gradients of many tensors in a microsecond each hundred, which Python needs for each. Compiled once for a version of torch.
//
// A tensor is given as the address of its Python object, in which torch keeps a pointer to the tensor behind a header;
// gradient_scan.py makes sure of that, and of where a list keeps its items, before it calls anything here.
//
// What is read of a tensor lies all over memory, and waiting for it is most of the work. So it is asked for some tensors
// ahead, and threads share the tensors: always the same ones, which then remain in the cache of the same core.

#include <ATen/core/TensorBase.h>

#include <cstring>

#ifdef _OPENMP
#include <omp.h>
#endif

constexpr int64_t ABSENT = 1, ODD = 2, MOVED = 4;  // as in gradient_scan.py
constexpr int64_t FAR = 16, NEAR = 8, NEXT = 4;  // how many tensors ahead something is asked for

struct Given {  // tensors, as gradient_scan.py fills it
  int64_t count;
  const int64_t* objects;    // of each the address of its Python object,
  const int64_t* addresses;  // and of its elements, when it was last known
  int64_t* gradients;        // address of each gradient, 0 where there is none and -1 where it lies otherwise
  int64_t header;

  const c10::TensorImpl* operator[](int64_t i) const {
    return *reinterpret_cast<c10::TensorImpl* const*>(objects[i] + header);
  }
};

static const at::TensorBase& gradient_of(const c10::TensorImpl* p) {
  return reinterpret_cast<const at::TensorBase&>(p->grad());
}

static void ask_for(int64_t address) { __builtin_prefetch(reinterpret_cast<const void*>(address)); }

static void ask_for_all_of(const c10::TensorImpl* x) {
  for (int64_t offset = 0; offset < static_cast<int64_t>(sizeof(*x)); offset += 64)
    ask_for(reinterpret_cast<int64_t>(x) + offset);
}

static int64_t address_of(const c10::TensorImpl* x) {
  const c10::StorageImpl* storage = x->unsafe_storage().unsafeGetStorageImpl();
  const int64_t bytes = x->storage_offset() * static_cast<int64_t>(x->itemsize());
  return storage ? reinterpret_cast<int64_t>(storage->data()) + bytes : 0;
}

// Whether strides agree in the dimensions that have more than one element.
static bool strides_alike(const c10::TensorImpl* g, const c10::TensorImpl* p) {
  if (g->strides() == p->strides()) return true;
  for (size_t i = 0; i < p->sizes().size(); ++i)
    if (p->sizes()[i] != 1 && g->strides()[i] != p->strides()[i]) return false;
  return true;
}

// Whether a gradient can be read as it lies: of the kind of the weights, and in their order.
static bool lies_alike(const c10::TensorImpl* g, const c10::TensorImpl* p) {
  // The keys say on which kind of device a tensor lies, that it is dense, and that it is not a subclass.
  return g->key_set() == p->key_set() && g->dtype() == p->dtype() && g->sizes() == p->sizes() &&
         strides_alike(g, p);
}

// All that each(i) says of any tensor of one of several equal parts.
template <class Each>
static int64_t walk(const Given& x, int64_t part, int64_t parts, Each each) try {
  int64_t seen = 0;
  for (int64_t i = x.count * part / parts; i < x.count * (part + 1) / parts; ++i) seen |= each(i);
  return seen;
} catch (...) {
  return MOVED;
}

static int64_t walk_to_see_moves(const Given& x, int64_t part, int64_t parts) {
  return walk(x, part, parts, [&x](int64_t i) -> int64_t {
    if (i + FAR < x.count) {
      ask_for(x.objects[i + FAR] + x.header);
      ask_for_all_of(x[i + NEAR]);
    }
    return address_of(x[i]) == x.addresses[i] ? 0 : MOVED;
  });
}

static int64_t walk_to_find_gradients(const Given& x, int64_t part, int64_t parts) {
  return walk(x, part, parts, [&x](int64_t i) -> int64_t {
    if (i + FAR < x.count) {
      ask_for(x.objects[i + FAR] + x.header);
      ask_for_all_of(x[i + NEAR]);
      ask_for(reinterpret_cast<int64_t>(x[i + NEXT]->unsafe_storage().unsafeGetStorageImpl()));
      ask_for_all_of(gradient_of(x[i + NEXT]).unsafeGetTensorImpl());
    }
    const c10::TensorImpl* p = x[i];
    if (address_of(p) != x.addresses[i]) return MOVED;
    const at::TensorBase& grad = gradient_of(p);
    x.gradients[i] = 0;
    if (!grad.defined() || !p->requires_grad()) return ABSENT;
    const bool alike = lies_alike(grad.unsafeGetTensorImpl(), p);
    x.gradients[i] = alike ? address_of(grad.unsafeGetTensorImpl()) : -1;
    return alike ? 0 : ODD;
  });
}

// Writes the address of each gradient, and sees that neither the tensors nor others beside them moved. After MOVED the
// addresses mean nothing.
extern "C" int64_t find(const Given* tensors, const Given* beside, int64_t threads) {
  const auto walk_both = [tensors, beside](int64_t part, int64_t parts) {
    return walk_to_find_gradients(*tensors, part, parts) | walk_to_see_moves(*beside, part, parts);
  };
  int64_t seen = 0;
#ifdef _OPENMP
#pragma omp parallel num_threads(static_cast<int>(threads)) reduction(| : seen) if (threads > 1)
  seen |= walk_both(omp_get_thread_num(), omp_get_num_threads());
#else
  seen = walk_both(0, 1);
#endif
  return seen & MOVED ? MOVED : seen;
}

// Whether all tensors lie where they were put.
extern "C" int64_t stayed(const Given* tensors) { return !walk_to_see_moves(*tensors, 0, 1); }

// Tells autograd of those with a gradient that they were written, as torch does for what it writes itself.
extern "C" void written(const Given* tensors) {
  const Given& x = *tensors;
  walk(x, 0, 1, [&x](int64_t i) -> int64_t {
    c10::TensorImpl* p = const_cast<c10::TensorImpl*>(x[i]);
    if (x.gradients[i] && !p->is_inference()) p->bump_version();
    return 0;
  });
}

// Whether a list holds these objects and no others, given the address of the list's number of items; behind that stands
// the address of the items.
extern "C" int64_t same(const Given* tensors, const int64_t* list) {
  const int64_t count = tensors->count;
  const void* items = reinterpret_cast<const void*>(list[1]);
  return list[0] == count && (!count || !std::memcmp(items, tensors->objects, sizeof(int64_t) * count));
}
