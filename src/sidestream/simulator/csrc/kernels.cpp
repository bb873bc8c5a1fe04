// The kernels that a backend must provide itself: factories, views, and what torch keeps apart for
// other devices' libraries (convolution, dropout, attention).
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "memory.h"
#include "operators.h"
#include "python_seam.h"

namespace sim {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;
using torch::jit::Stack;

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// torch's own code resizes storages on the host, with memcpy; so they are long enough before.
void grow(const c10::Storage& storage, size_t bytes) {
  if (storage.nbytes() < bytes)
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(storage, bytes);
}

void check_not_pinned(optional<bool> pin) {
  TORCH_CHECK(!c10::pinned_memory_or_default(pin), "only dense CPU tensors can be pinned");
}

Tensor empty(IntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout>,
             optional<at::Device> device, optional<bool> pin,
             optional<at::MemoryFormat> memory_format) {
  check_not_pinned(pin);
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(size, device_allocator(), kKeys, c10::dtype_or_default(dtype),
                                   memory_format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype,
                     optional<at::Layout>, optional<at::Device> device, optional<bool> pin) {
  check_not_pinned(pin);
  c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(size, stride, device_allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

Tensor as_strided(const Tensor& t, IntArrayRef size, IntArrayRef stride,
                  optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(t, size, stride, offset);
}
Tensor view(const Tensor& t, IntArrayRef size) { return at::native::view(t, size); }
Tensor reshape_alias(const Tensor& t, IntArrayRef size, IntArrayRef stride) {
  return at::native::_reshape_alias(t, size, stride);
}
const Tensor& resize_(const Tensor& t, IntArrayRef size, optional<at::MemoryFormat> format) {
  resize(t, size);
  return at::native::resize_(t, size, format);
}
Tensor& set_tensor(Tensor& t, const Tensor& source) { return at::native::set_tensor_(t, source); }
Tensor& set_storage(Tensor& t, at::Storage source) { return at::native::set_(t, source); }
Tensor& set_storage_at(Tensor& t, at::Storage source, int64_t offset, IntArrayRef size,
                       IntArrayRef stride) {
  if (source.device_type() == c10::kPrivateUse1) {
    size_t item = t.element_size();
    bool contiguous = stride.data() == nullptr;
    grow(source, contiguous ? at::detail::computeStorageNbytesContiguous(size, item, offset)
                            : at::detail::computeStorageNbytes(size, stride, item, offset));
  }
  return at::native::set_storage_cpu_(t, source, offset, size, stride);
}

// With it `parameter.data = tensor_of_the_other_device` works, and Module.to keeps the identity
// of its parameters, as on CUDA.
bool has_compatible_type(const Tensor& a, const Tensor& b) {
  auto ours = [](const Tensor& t) { return t.is_cpu() || on_device(t); };
  return ours(a) && ours(b) && a.layout() == b.layout();
}

void record_stream(Tensor& t, c10::Stream stream) {
  if (t.storage().data()) record_use(t.storage().data(), unwrap(stream));
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& x, double p, optional<bool> train) {
  SiteScope site;
  auto as_mask = x.options().dtype(at::kBool);
  if (p == 0 || (train && !*train) || x.numel() == 0)
    return {x.clone(), at::ones_like(x, as_mask)};
  Tensor mask = at::empty_like(x, as_mask).bernoulli_(1 - p);
  return {p == 1 ? at::zeros_like(x) : x.mul(mask).mul_(1 / (1 - p)), mask};
}

Tensor convolution(const Tensor& x, const Tensor& weight, const optional<Tensor>& bias,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  return run_operator("aten::convolution",
                      {x, weight, bias, stride.vec(), padding.vec(), dilation.vec(), transposed,
                       output_padding.vec(), groups},
                      0);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& x,
                                                        const Tensor& weight, IntArrayRef stride,
                                                        IntArrayRef padding, IntArrayRef dilation,
                                                        bool transposed,
                                                        IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> wanted) {
  c10::IValue bias_sizes;
  if (wanted[2])
    bias_sizes = std::vector<int64_t>{transposed ? weight.size(1) * groups : weight.size(0)};
  auto results = run_operator(
      "aten::convolution_backward",
      {grad, x, weight, bias_sizes, stride.vec(), padding.vec(), dilation.vec(), transposed,
       output_padding.vec(), groups, c10::List<bool>({wanted[0], wanted[1], wanted[2]})});
  return {results[0].toTensor(), results[1].toTensor(), results[2].toTensor()};
}

}  // namespace

void resize(const Tensor& t, IntArrayRef size) {
  grow(t.storage(),
       at::detail::computeStorageNbytesContiguous(size, t.element_size(), t.storage_offset()));
  at::native::resize_(t, size);
}

// Attention by plain operators: the fused kernels have no counterpart here.
int64_t fused_sdp_choice(const Tensor&, const Tensor&, const Tensor&, const optional<Tensor>&,
                         double, bool, optional<double>, bool) {
  return 0;  // sdp::SDPBackend::math
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", as_strided);
  library.impl("view", view);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("resize_", resize_);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("set_.source_Storage", set_storage);
  library.impl("set_.source_Storage_storage_offset", set_storage_at);
  library.impl("_has_compatible_shallow_copy_type", has_compatible_type);
  library.impl("record_stream", record_stream);
  library.impl("native_dropout", native_dropout);
  library.impl("convolution_overrideable", convolution);
  library.impl("convolution_backward_overrideable", convolution_backward);
  library.impl("_fused_sdp_choice", fused_sdp_choice);
}

}  // namespace sim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &sim::fused_sdp_choice);
}
