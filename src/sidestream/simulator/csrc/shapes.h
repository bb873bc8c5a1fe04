// Output shapes of operators, from their Meta kernels, remembered by signature.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace sim {

struct Shapes {
  bool known = false;           // false: the shape depends on data
  torch::jit::Stack results;    // meta tensors
  torch::jit::Stack arguments;  // meta tensors, resized as the operator would resize its own
};
Shapes shapes_of(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);

// Applies f to each tensor in v and returns v rebuilt; other values are returned as they are.
template <class F>
c10::IValue map_tensors(const c10::IValue& v, F f) {
  if (v.isTensor()) return f(v.toTensor());
  if (v.isTensorList()) {
    std::vector<at::Tensor> result;
    for (const auto& t : v.toTensorVector()) result.push_back(f(t));
    return result;
  }
  if (v.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> result;
    for (const auto& t : v.toOptionalTensorVector())
      result.push_back(t && t->defined() ? std::optional<at::Tensor>(f(*t)) : t);
    return result;
  }
  return v;
}

}  // namespace sim
