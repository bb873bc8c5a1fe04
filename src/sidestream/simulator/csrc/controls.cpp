// The Python module: thin functions, documented where sidestream.simulator wraps them.
#include <Python.h>
// Python.h comes first, as it asks.
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>

#include "backend.h"
#include "controls.h"
#include "counters.h"
#include "memory.h"
#include "python_seam.h"
#include "runtime.h"
#include "settings.h"
#include "streams.h"

namespace py = pybind11;

namespace sim {
namespace {

// (operation, stream or None, begin, end, writes, line), bytes relative to the block.
py::tuple access_to_python(const Record& r, const char* block_begin) {
  py::object stream = py::none();
  if (r.stream >= 0)
    stream = py::make_tuple(r.stream / kStreamsPerDevice, r.stream % kStreamsPerDevice);
  auto begin = r.range.begin - block_begin;
  return py::make_tuple(r.operation, stream, begin, begin + ptrdiff_t(r.range.bytes), r.write,
                        site_text(r.site));
}

py::list races(bool clear) {
  py::list result;
  for (const auto& report : take_reports(clear)) result.append(to_python(report));
  return result;
}

void delay(double seconds, int device) {
  check_usable();
  Work work;
  work.operation = "delay";
  work.duration_ns = kernel_ns(seconds);
  enqueue(current_stream(device), std::move(work));
}

py::tuple pinned_memory(bool reset_peaks) {
  auto s = pinned_statistics(reset_peaks);
  return py::make_tuple(s.bytes, s.peak_bytes, s.reserved_bytes, s.peak_reserved_bytes,
                        s.allocations, s.total_allocations, s.total_reservations);
}

py::bytes rng_state(int device) {
  auto generator = default_generator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  auto state = generator.get_state();
  return py::bytes(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
}

void set_rng_state(int device, const std::string& bytes) {
  auto generator = default_generator(device);
  auto state = at::empty({int64_t(bytes.size())}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(state.mutable_data_ptr(), bytes.data(), bytes.size());
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

void seed(int device, uint64_t value) {
  auto generator = default_generator(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(value);
}

}  // namespace

py::tuple to_python(const Report& r) {
  return py::make_tuple(int(r.kind), r.pinned, r.block_bytes,
                        access_to_python(r.first, r.block_begin),
                        access_to_python(r.second, r.block_begin), site_text(r.freed_site));
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using release = py::call_guard<py::gil_scoped_release>;
  m.def("configure", [](int devices, size_t memory_bytes, size_t pinned_bytes) {
    configure({devices, memory_bytes, pinned_bytes});
    register_hooks();
  });
  m.def("sizes", [] {
    return py::make_tuple(sizes().devices, sizes().memory_bytes, sizes().pinned_bytes);
  });
  m.def("set_internal_paths", set_internal_paths);
  m.def("shutdown", shutdown, release());
  m.def("in_forked_child", in_forked_child);

  m.def("set_setting",
        [](const std::string& name, double value) { settings().named(name) = value; });
  m.def("get_setting", [](const std::string& name) { return settings().named(name).load(); });
  m.def("set_operator_time", set_operator_time);

  m.def("races", races);
  m.def("operation_counts", operation_counts);
  m.def("pinned_memory", pinned_memory);
  m.def("delay", delay, release());
  m.def("event_time_ns",
        [](uintptr_t event) { return event_time_ns(reinterpret_cast<void*>(event)); });

  m.def("device_count", device_count);
  m.def("current_device", current_device);
  m.def("set_device", exchange_device);
  m.def("rng_state", rng_state, py::arg("device"));
  m.def("set_rng_state", set_rng_state);
  m.def("seed", seed);
}

}  // namespace sim
