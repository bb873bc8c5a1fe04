// Mixed precision: the same operators run in low or in full precision as on CUDA. layer_norm in
// particular runs in full precision, so that its backward never meets two dtypes.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace sim {

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {  // the macros want this name
#define LOW_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define FULL_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define FULL_PRECISION_RESULT(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define WIDEST(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(LOW_PRECISION)
  AT_FORALL_FP32(FULL_PRECISION)
  AT_FORALL_FP32_SET_OPT_DTYPE(FULL_PRECISION_RESULT)
  AT_FORALL_PROMOTE(WIDEST)
#undef LOW_PRECISION
#undef FULL_PRECISION
#undef FULL_PRECISION_RESULT
#undef WIDEST
}

}  // namespace sim
