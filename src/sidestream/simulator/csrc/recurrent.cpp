// The fused cells that torch takes for LSTM and GRU on every device but the CPU. They have no CPU
// kernel; here they are made of plain operators, each an asynchronous task of its own.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "operators.h"
#include "python_seam.h"

namespace sim {
namespace {

using at::Tensor;
using std::optional;

// Gradients of the activations, from their outputs.
Tensor through_sigmoid(const Tensor& grad, const Tensor& y) { return grad * y * (1 - y); }
Tensor through_tanh(const Tensor& grad, const Tensor& y) { return grad * (1 - y * y); }

Tensor with_bias(const Tensor& gates, const optional<Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

// The workspace holds the activated gates: input, forget, cell, output.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const optional<Tensor>& input_bias,
                                             const optional<Tensor>& hidden_bias) {
  SiteScope site;
  c10::DeviceGuard guard(cx.device());
  auto gates = (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias))
                   .chunk(4, /*dim=*/1);
  Tensor input = at::sigmoid(gates[0]), forget = at::sigmoid(gates[1]);
  Tensor cell = at::tanh(gates[2]), output = at::sigmoid(gates[3]);
  Tensor cy = forget * cx + input * cell;
  Tensor hy = output * at::tanh(cy);
  return {hy, cy, at::cat({input, forget, cell, output}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const optional<Tensor>& grad_hy,
                                                      const optional<Tensor>& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  SiteScope site;
  c10::DeviceGuard guard(cx.device());
  auto gates = workspace.chunk(4, 1);
  const auto &input = gates[0], &forget = gates[1], &cell = gates[2], &output = gates[3];
  auto or_zero = [](const optional<Tensor>& grad, const Tensor& like) {
    return grad && grad->defined() ? *grad : at::zeros_like(like);
  };
  Tensor of_hy = or_zero(grad_hy, cx), squashed = at::tanh(cy);
  Tensor of_cy = or_zero(grad_cy, cx) + through_tanh(of_hy * output, squashed);
  Tensor of_gates =
      at::cat({through_sigmoid(of_cy * cell, input), through_sigmoid(of_cy * cx, forget),
               through_tanh(of_cy * input, cell), through_sigmoid(of_hy * squashed, output)},
              1);
  return {of_gates, of_cy * forget, has_bias ? of_gates.sum(0) : Tensor()};
}

// The workspace holds reset, update and new gates, the state before, and what the reset gate
// scaled.
std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const optional<Tensor>& input_bias,
                                    const optional<Tensor>& hidden_bias) {
  SiteScope site;
  c10::DeviceGuard guard(hx.device());
  auto of_input = with_bias(input_gates, input_bias).chunk(3, 1);
  auto of_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  Tensor reset = at::sigmoid(of_input[0] + of_hidden[0]);
  Tensor update = at::sigmoid(of_input[1] + of_hidden[1]);
  Tensor fresh = at::tanh(of_input[2] + reset * of_hidden[2]);
  Tensor hy = fresh + update * (hx - fresh);
  return {hy, at::cat({reset, update, fresh, hx, of_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  SiteScope site;
  c10::DeviceGuard guard(grad_hy.device());
  auto saved = workspace.chunk(5, 1);
  const auto &reset = saved[0], &update = saved[1], &fresh = saved[2], &hx = saved[3],
             &scaled = saved[4];
  Tensor of_fresh = through_tanh(grad_hy * (1 - update), fresh);
  Tensor of_update = through_sigmoid(grad_hy * (hx - fresh), update);
  Tensor of_reset = through_sigmoid(of_fresh * scaled, reset);
  Tensor of_input = at::cat({of_reset, of_update, of_fresh}, 1);
  Tensor of_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1);
  return {of_input, of_hidden, grad_hy * update, has_bias ? of_input.sum(0) : Tensor(),
          has_bias ? of_hidden.sum(0) : Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_thnn_fused_lstm_cell", lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  library.impl("_thnn_fused_gru_cell", gru_cell);
  library.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace sim
