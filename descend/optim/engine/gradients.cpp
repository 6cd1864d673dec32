// Looks at many tensors in a microsecond each hundred, which Python needs for each. Compiled once for a version of torch.
//
// A tensor is given as the address of its Python object, in which torch keeps a pointer to the tensor behind a header;
// reader.py makes sure of that before it calls anything here.

#include <ATen/core/TensorBase.h>

struct _object;
extern "C" _object* PyList_GetItem(_object*, ssize_t);  // of Python's stable interface, which needs no header
extern "C" ssize_t PyList_Size(_object*);

constexpr int64_t ABSENT = 1, ODD = 2, MOVED = 4;  // as in reader.py

static const c10::TensorImpl* behind(int64_t object, int64_t header) {
  return *reinterpret_cast<c10::TensorImpl* const*>(object + header);
}

static int64_t address_of(const c10::TensorImpl* x) {
  const c10::StorageImpl* storage = x->unsafe_storage().unsafeGetStorageImpl();
  const int64_t bytes = x->storage_offset() * static_cast<int64_t>(x->itemsize());
  return storage ? reinterpret_cast<int64_t>(storage->data()) + bytes : 0;
}

// Whether a gradient can be read as it lies: of the kind of the weights, and in their order.
static bool lies_alike(const c10::TensorImpl* g, const c10::TensorImpl* p) {
  // The keys say on which kind of device a tensor lies, that it is dense, and that it is no subclass.
  return g->key_set() == p->key_set() && g->dtype() == p->dtype() && g->sizes() == p->sizes() &&
         g->strides() == p->strides();
}

// Writes the address of each gradient, 0 where there is none and -1 where it lies otherwise than the weights.
extern "C" int64_t look(int64_t count, const int64_t* objects, const int64_t* addresses, int64_t header,
                        int64_t* gradients) try {
  int64_t seen = 0;
  for (int64_t i = 0; i < count; ++i) {
    const c10::TensorImpl* p = behind(objects[i], header);
    if (address_of(p) != addresses[i]) return MOVED;
    const at::TensorBase& grad = reinterpret_cast<const at::TensorBase&>(p->grad());
    gradients[i] = 0;
    if (!grad.defined() || !p->requires_grad()) {
      seen |= ABSENT;
    } else if (lies_alike(grad.unsafeGetTensorImpl(), p)) {
      gradients[i] = address_of(grad.unsafeGetTensorImpl());
    } else {
      gradients[i] = -1;
      seen |= ODD;
    }
  }
  return seen;
} catch (...) {
  return MOVED;
}

// Whether all tensors lie where they were put.
extern "C" int64_t stayed(int64_t count, const int64_t* objects, const int64_t* addresses, int64_t header) try {
  for (int64_t i = 0; i < count; ++i)
    if (address_of(behind(objects[i], header)) != addresses[i]) return 0;
  return 1;
} catch (...) {
  return 0;
}

// Tells autograd of those with a gradient that they were written, as torch does for what it writes itself.
extern "C" void written(int64_t count, const int64_t* objects, int64_t header, const int64_t* gradients) try {
  for (int64_t i = 0; i < count; ++i) {
    c10::TensorImpl* p = const_cast<c10::TensorImpl*>(behind(objects[i], header));
    if (gradients[i] && !p->is_inference()) p->bump_version();
  }
} catch (...) {
}

// Whether a list holds these objects and no others.
extern "C" int64_t same(_object* list, int64_t count, const int64_t* objects) {
  if (PyList_Size(list) != count) return 0;
  for (int64_t i = 0; i < count; ++i)
    if (reinterpret_cast<int64_t>(PyList_GetItem(list, i)) != objects[i]) return 0;
  return 1;
}
