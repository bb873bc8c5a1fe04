// Tensor operators: what the files that implement them share.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "race_detector.h"

namespace sim {

bool on_device(const at::Tensor& t);
Access access_to(const at::Tensor& t, bool write);

// A CPU tensor over the same bytes, at the addresses that stream threads may touch. It owns
// nothing, as a launched kernel owns nothing: memory freed too early is freed.
at::Tensor stream_view(const at::Tensor& t);

// Enqueues an operator on the current stream, or, where its output's shape depends on data,
// synchronises and runs it on the CPU (counted as "synchronous: NAME").
at::Tensor run_operator(const char* name, torch::jit::Stack arguments, size_t result);
torch::jit::Stack run_operator(const char* name, torch::jit::Stack arguments);

void resize(const at::Tensor& t, at::IntArrayRef size);
void copy_on_device(const at::Tensor& to, const at::Tensor& from);  // any layout and dtype
at::Scalar read_scalar(const at::Tensor& t);

int64_t operator_ns(const char* name);  // its simulated duration

}  // namespace sim
