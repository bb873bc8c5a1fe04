#include "shapes.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/DefaultDtype.h>

#include <mutex>
#include <sstream>
#include <unordered_map>

#include "operators.h"

namespace sim {
namespace {

using at::Tensor;
using torch::jit::Stack;

// Some Meta kernels are written in Python and cost 0.1 to 0.7 ms a call: hence the memory.
constexpr size_t kRemembered = 20000;  // arbitrary: about 20 MB; then it starts afresh
std::mutex shapes_mutex;
std::unordered_map<std::string, Shapes> remembered;

class Key {
 public:
  Key(const c10::OperatorHandle& op, const Stack& arguments) {
    add(&op.schema());
    add(c10::get_default_dtype_as_scalartype());
    for (const auto& argument : arguments) add_value(argument);
  }
  std::string text;

 private:
  template <class T>
  void add(const T& value) {
    text.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add_tensor(const Tensor& t) {
    if (!t.defined()) return add('-');
    add(t.scalar_type());
    add(on_device(t));
    add(t.is_conj());
    add(t.unsafeGetTensorImpl()->is_wrapped_number());
    add(t.dim());
    for (auto size : t.sizes()) add(size);
    for (auto stride : t.strides()) add(stride);
  }
  void add_value(const c10::IValue& v) {
    add('|');
    if (v.isTensor()) {
      add_tensor(v.toTensor());
    } else if (v.isTensorList()) {
      for (const auto& t : v.toTensorVector()) add_tensor(t);
    } else if (v.isOptionalTensorList()) {
      for (const auto& t : v.toOptionalTensorVector()) add_tensor(t ? *t : Tensor());
    } else if (v.isInt()) {
      add('i'), add(v.toInt());
    } else if (v.isDouble()) {
      add('d'), add(v.toDouble());
    } else if (v.isBool()) {
      add('b'), add(v.toBool());
    } else if (v.isIntList()) {
      add('l');
      for (auto i : v.toIntVector()) add(i);
    } else if (v.isGenerator()) {
      add('g');
    } else {
      std::ostringstream out;
      out << v;
      text += out.str();
    }
  }
};

Tensor meta_like(const Tensor& t) {
  if (!t.defined() || (t.is_cpu() && t.dim() == 0)) return t;
  return at::empty_strided(t.sizes(), t.strides(),
                           at::TensorOptions().dtype(t.dtype()).device(at::kMeta));
}

c10::IValue to_meta(const c10::IValue& v) {
  if (v.isGenerator()) return {};
  if (v.isDevice()) return c10::Device(at::kMeta);
  return map_tensors(v, meta_like);
}

Shapes ask_meta_kernel(const c10::OperatorHandle& op, const Stack& arguments) {
  Shapes shapes;
  for (const auto& argument : arguments) shapes.arguments.push_back(to_meta(argument));
  shapes.results = shapes.arguments;
  try {
    op.callBoxed(&shapes.results);
    shapes.known = true;
  } catch (const std::exception&) {
    // No Meta kernel, or a shape that depends on data. A wrong argument is found again, with the
    // right message, by the synchronous way that is taken then.
  }
  return shapes;
}

}  // namespace

Shapes shapes_of(const c10::OperatorHandle& op, const Stack& arguments) {
  Key key(op, arguments);
  {
    std::lock_guard<std::mutex> lock(shapes_mutex);
    auto known = remembered.find(key.text);
    if (known != remembered.end()) return known->second;
  }
  auto shapes = ask_meta_kernel(op, arguments);  // may need the GIL: not under the lock
  std::lock_guard<std::mutex> lock(shapes_mutex);
  if (remembered.size() >= kRemembered) remembered.clear();
  remembered[std::move(key.text)] = shapes;
  return shapes;
}

}  // namespace sim
