// The fallback for all operators: each becomes one asynchronous task on the current stream.
//
// Shapes come from the operator's Meta kernel; the task runs the operator's CPU kernel on views of
// the device's memory. Inputs are not kept alive by the task, as a launched kernel keeps nothing.
#include "operators.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>

#include "counters.h"
#include "memory.h"
#include "python_seam.h"
#include "settings.h"
#include "shapes.h"

namespace sim {
namespace {

using at::Tensor;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

bool writes(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

bool returns_tensors_only(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    auto kind = result.type()->kind();
    bool list = kind == c10::TypeKind::ListType &&
                result.type()->containedType(0)->kind() == c10::TypeKind::TensorType;
    if (kind != c10::TypeKind::TensorType && !list) return false;
  }
  return true;
}

// `out` variants, as structured kernels call them, come with outputs of the right size.
bool has_sized_outputs(const c10::FunctionSchema& schema, const Stack& arguments) {
  if (schema.overload_name().find("out") == std::string::npos || schema.returns().empty())
    return false;
  for (const auto& result : schema.returns())
    if (!writes(result)) return false;
  for (size_t i = 0; i < arguments.size(); i++) {
    if (!writes(schema.arguments()[i])) continue;
    if (!arguments[i].isTensor() || arguments[i].toTensor().numel() == 0) return false;
  }
  return true;
}

bool is_view(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns())
    if (!result.alias_info() || result.alias_info()->isWrite()) return false;
  return !schema.returns().empty();
}

// A view as the Meta kernel describes it, over the storage of the real base.
Tensor view_like(const Tensor& base, const Tensor& meta) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), meta.dtype());
  int64_t offset_bytes = base.storage_offset() * int64_t(base.element_size());
  int64_t offset = offset_bytes / int64_t(meta.element_size()) + meta.storage_offset();
  view.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides(), offset);
  return view;
}

// A seed per launch, drawn when it is enqueued: results do not depend on the timing of threads.
at::Generator generator_for(const IValue& argument, c10::Device device) {
  auto generator = argument.isGenerator() ? argument.toGenerator()
                                          : at::globalContext().defaultGenerator(device);
  auto* implementation = dynamic_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(implementation, "sidestream.simulator: needs a generator of device sim");
  std::lock_guard<std::mutex> lock(generator.mutex());
  return at::detail::createCPUGenerator(implementation->random64());
}

void put(const Tensor& to, const Tensor& from) {
  if (!to.defined()) return;
  TORCH_CHECK(to.sizes() == from.sizes(), "output of shape ", from.sizes(),
              " where its Meta kernel said ", to.sizes());
  Tensor(to).copy_(from);
}

void put(const IValue& to, const IValue& from) {
  if (to.isTensor()) return put(to.toTensor(), from.toTensor());
  if (!to.isTensorList()) return;  // an argument that the operator has written itself
  auto targets = to.toTensorVector(), sources = from.toTensorVector();
  for (size_t i = 0; i < targets.size(); i++) put(targets[i], sources[i]);
}

// One operator on its way into a stream's queue.
class Launch {
 public:
  Launch(const OperatorHandle& op, const Stack& arguments, c10::Device device)
      : op_(op), schema_(op.schema()), arguments_(arguments), device_(device) {
    work_.operation = intern(schema_.name());
    work_.duration_ns = operator_ns(work_.operation);
  }

  void take_arguments() {
    for (size_t i = 0; i < arguments_.size(); i++) {
      const auto& declared = schema_.arguments()[i];
      const auto& argument = arguments_[i];
      map_tensors(argument, [&](const Tensor& t) {
        if (on_device(t)) work_.accesses.push_back(access_to(t, writes(declared)));
        return t;
      });
      if (argument.isGenerator() || declared.type()->str() == "Generator?")
        on_cpu_.emplace_back(generator_for(argument, device_));
      else if (argument.isDevice())
        on_cpu_.emplace_back(c10::Device(at::kCPU));
      else
        on_cpu_.push_back(map_tensors(argument, stream_view));
    }
  }

  void allocate_results(const Stack& meta) {
    for (size_t r = 0; r < schema_.returns().size(); r++) {
      if (const auto* alias = schema_.returns()[r].alias_info()) {
        results_.push_back(aliased_argument(*alias));
        results_on_cpu_.emplace_back();
        continue;
      }
      results_.push_back(map_tensors(meta[r], [&](const Tensor& m) {
        if (!m.defined()) return m;
        auto options = at::TensorOptions().dtype(m.dtype()).device(device_);
        Tensor t = at::empty_strided(m.sizes(), m.strides(), options);
        work_.accesses.push_back(access_to(t, true));
        return t;
      }));
      results_on_cpu_.push_back(map_tensors(results_.back(), stream_view));
    }
  }

  Stack enqueue() {
    work_.at_end = [op = op_, on_cpu = std::move(on_cpu_),
                    results = std::move(results_on_cpu_)]() mutable {
      at::AutoDispatchBelowADInplaceOrView guard;
      op.callBoxed(&on_cpu);
      for (size_t r = 0; r < results.size(); r++) put(results[r], on_cpu[r]);
    };
    sim::enqueue(current_stream(device_.index()), std::move(work_));
    return std::move(results_);
  }

 private:
  const IValue& aliased_argument(const c10::AliasInfo& alias) const {
    for (size_t i = 0; i < arguments_.size(); i++) {
      const auto* own = schema_.arguments()[i].alias_info();
      if (own && *own == alias) return arguments_[i];
    }
    TORCH_CHECK(false, "sidestream.simulator: ", schema_.name(), " returns an unknown alias");
  }

  const OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  const Stack& arguments_;
  c10::Device device_;
  Work work_;
  Stack on_cpu_, results_, results_on_cpu_;
};

std::optional<c10::Device> device_among(const Stack& arguments) {
  std::optional<c10::Device> device;
  for (const auto& argument : arguments)
    map_tensors(argument, [&](const Tensor& t) {
      if (on_device(t) && !device) device = t.device();
      return t;
    });
  return device;
}

// Returns false where output shapes cannot be known without the data (nonzero, unique, ...).
bool launch(const OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  Stack arguments(stack->end() - int64_t(count), stack->end());
  auto device = device_among(arguments);
  if (!device || !returns_tensors_only(schema)) return false;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::DeviceGuard device_guard(*device);
  bool sized = has_sized_outputs(schema, arguments);
  Shapes shapes;
  if (!sized) {
    shapes = shapes_of(op, arguments);
    if (!shapes.known) return false;
  }
  auto reply = [&](Stack results) {
    torch::jit::drop(*stack, count);
    for (auto& result : results) stack->push_back(std::move(result));
    return true;
  };
  if (is_view(schema)) {
    const Tensor& base = arguments[0].toTensor();
    for (auto& result : shapes.results)
      result = map_tensors(result, [&](const Tensor& m) { return view_like(base, m); });
    return reply(std::move(shapes.results));
  }
  for (size_t i = 0; i < count && !sized; i++) {
    if (!writes(schema.arguments()[i]) || !arguments[i].isTensor()) continue;
    const Tensor& t = arguments[i].toTensor();
    auto wanted = shapes.arguments[i].toTensor().sizes();
    if (on_device(t) && wanted != t.sizes()) resize(t, wanted);
  }
  Launch launch(op, arguments, *device);
  launch.take_arguments();
  launch.allocate_results(shapes.results);
  return reply(launch.enqueue());
}

void fallback(const OperatorHandle& op, Stack* stack) {
  SiteScope site;
  if (launch(op, stack)) return;
  count(intern("synchronous: " + op.schema().name()));
  at::native::cpu_fallback(op, stack, false);
}

// Bytes per piece and distance of pieces of a strided tensor, 0 and 0 where it is one piece.
std::pair<size_t, size_t> pieces(const Tensor& t) {
  std::vector<std::pair<int64_t, int64_t>> by_stride;  // stride, size
  for (int64_t d = 0; d < t.dim(); d++)
    if (t.size(d) > 1) by_stride.emplace_back(t.stride(d), t.size(d));
  std::sort(by_stride.begin(), by_stride.end());
  int64_t width = 1, period = 0;
  for (auto [stride, size] : by_stride) {
    if (period == 0 && stride <= width)
      width = stride * (size - 1) + width;  // still one piece, possibly overlapping itself
    else if (period == 0)
      period = stride;
    else if (stride % period != 0)
      return {0, 0};  // no single period: its bounding range stands for it
  }
  return {size_t(width) * t.element_size(), size_t(period) * t.element_size()};
}

}  // namespace

bool on_device(const Tensor& t) { return t.defined() && t.is_privateuseone(); }

Access access_to(const Tensor& t, bool write) {
  if (!t.defined() || t.numel() == 0) return {{}, write};
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); d++) last += (t.size(d) - 1) * t.stride(d);
  ByteRange range{static_cast<const char*>(t.const_data_ptr()),
                  size_t(last + 1) * t.element_size()};
  if (!t.is_contiguous()) {
    auto [width, period] = pieces(t);
    if (period > width) range.width = width, range.period = period;
  }
  return {range, write};
}

Tensor stream_view(const Tensor& t) {
  if (!t.defined()) return t;
  // Wrapped numbers must reach the CPU kernel as they are: a clone would take part in promotion.
  if (!on_device(t)) return t.unsafeGetTensorImpl()->is_wrapped_number() ? t : t.clone();
  auto options = at::TensorOptions().dtype(t.dtype()).device(at::kCPU);
  if (t.numel() == 0) return at::empty_strided(t.sizes(), t.strides(), options);
  Tensor view = at::from_blob(stream_address(t.const_data_ptr()), t.sizes(), t.strides(), options);
  if (t.is_conj()) view._set_conj(true);
  if (t.is_neg()) view._set_neg(true);
  return view;
}

int64_t operator_ns(const char* name) {
  double own = operator_time(name);
  return kernel_ns(own >= 0 ? own : settings().kernel_s.load());
}

Stack run_operator(const char* name, Stack arguments) {
  auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  fallback(op, &arguments);
  return arguments;
}
Tensor run_operator(const char* name, Stack arguments, size_t result) {
  return run_operator(name, std::move(arguments)).at(result).toTensor();
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace sim
