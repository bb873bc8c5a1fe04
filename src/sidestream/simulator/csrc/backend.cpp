// What torch asks of a device: guard (devices, streams, events), hooks and random generators.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>

#include "backend.h"
#include "memory.h"
#include "runtime.h"
#include "streams.h"

namespace sim {
namespace {

c10::Device as_device(int index) {
  return c10::Device(c10::kPrivateUse1, c10::DeviceIndex(index));
}

struct Event {
  MarkPtr latest;  // runtime lock
  bool timing;
};
Event* as_event(void* event) { return static_cast<Event*>(event); }

MarkPtr latest_mark(void* event) {
  RuntimeLock lock(runtime_mutex());
  return event ? as_event(event)->latest : nullptr;
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device d) const override {
    return as_device(exchange_device(d.index()));
  }
  c10::Device getDevice() const override { return as_device(current_device()); }
  void setDevice(c10::Device d) const override { exchange_device(d.index()); }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    if (d.index() < device_count()) exchange_device(d.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return c10::DeviceIndex(device_count());
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device d) const override { return wrap(current_stream(d.index())); }
  c10::Stream getDefaultStream(c10::Device d) const override {
    return wrap(stream_at(checked_device(d.index()), 0));
  }
  c10::Stream getNewStream(c10::Device d, int) const override {
    return wrap(next_pool_stream(d.index()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override {
    return wrap(next_pool_stream(d.index()));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return wrap(exchange_stream(unwrap(stream)));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return unwrap(stream); }
  bool queryStream(const c10::Stream& stream) const override { return query(unwrap(stream)); }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(unwrap(stream)); }
  void synchronizeDevice(const c10::DeviceIndex d) const override { synchronize_device(d); }
  void recordDataPtrOnStream(const c10::DataPtr& p, const c10::Stream& stream) const override {
    record_use(p.get(), unwrap(stream));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex d,
              const c10::EventFlag flag) const override {
    TORCH_CHECK(d == -1 || d == stream.device_index(), "sidestream.simulator: event of device ",
                int(d), " recorded on a stream of device ", int(stream.device_index()));
    check_usable();
    RuntimeLock lock(runtime_mutex());
    if (!*event) *event = new Event{nullptr, flag == c10::EventFlag::BACKEND_DEFAULT};
    as_event(*event)->latest = record_mark(unwrap(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    check_usable();
    if (auto mark = latest_mark(event)) wait_for_mark(unwrap(stream), mark);
  }
  bool queryEvent(void* event) const override {
    auto mark = latest_mark(event);
    return !mark || query(mark);
  }
  void synchronizeEvent(void* event) const override {
    if (auto mark = latest_mark(event)) synchronize_mark(mark);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete as_event(event);
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    auto start = latest_mark(from), end = latest_mark(to);
    TORCH_CHECK(start && end,
                "sidestream.simulator: both events must be recorded before elapsed_time");
    TORCH_CHECK(as_event(from)->timing && as_event(to)->timing,
                "sidestream.simulator: both events must be created with enable_timing=True");
    TORCH_CHECK(start->done() && end->done(),
                "sidestream.simulator: both events must be completed before elapsed_time");
    return double(end->time_ns() - start->time_ns()) / 1e6;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(int index) {
    device_ = as_device(index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return c10::DeviceIndex(device_count()); }
  void setCurrentDevice(c10::DeviceIndex d) const override { exchange_device(d); }
  c10::DeviceIndex getCurrentDevice() const override { return c10::DeviceIndex(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override {
    return c10::DeviceIndex(exchange_device(d));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override {
    return d < device_count() ? exchangeDevice(d) : getCurrentDevice();
  }
  bool isPinnedPtr(const void* p) const override { return is_pinned(p); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  at::Device getDeviceFromPtr(void* p) const override {
    int device = device_of(p);
    TORCH_CHECK(device >= 0, "sidestream.simulator: ", p, " is not an address of device memory");
    return as_device(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex d) const override {
    return default_generator(d);
  }
  at::Generator getNewGenerator(c10::DeviceIndex d) const override {
    return at::make_generator<Generator>(checked_device(d));
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DeviceGuard guard(storage.device());
    auto data = device_allocator()->allocate(bytes);
    size_t kept = std::min(bytes, storage.nbytes());
    if (kept) device_allocator()->copy_data(data.get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

}  // namespace

const at::Generator& default_generator(int device) {
  static const auto* generators = [] {
    auto* all = new std::vector<at::Generator>;
    for (int d = 0; d < device_count(); d++) all->push_back(at::make_generator<Generator>(d));
    return all;
  }();
  return generators->at(checked_device(device));
}

int64_t event_time_ns(void* event) {
  auto mark = latest_mark(event);
  TORCH_CHECK(mark && mark->done(),
              "sidestream.simulator: the event must be recorded and completed to have a time");
  return mark->time_ns();
}

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

}  // namespace sim
