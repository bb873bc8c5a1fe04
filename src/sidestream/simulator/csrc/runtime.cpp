#include "runtime.h"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "memory.h"
#include "settings.h"
#include "streams.h"

namespace sim {
namespace {
Sizes configured;
std::atomic<bool> forked{false}, down{false};
thread_local int device_of_thread = 0;
}  // namespace

std::recursive_mutex& runtime_mutex() {
  static auto* mutex = new std::recursive_mutex;
  return *mutex;
}

size_t page_bytes() {
  static const auto bytes = size_t(sysconf(_SC_PAGESIZE));
  return bytes;
}

void configure(const Sizes& wanted) {
  TORCH_CHECK(configured.devices == 0, "sidestream.simulator: configured twice");
  auto whole_pages = [](size_t bytes) { return (bytes + page_bytes() - 1) & ~(page_bytes() - 1); };
  configured = {wanted.devices, whole_pages(wanted.memory_bytes),
                whole_pages(wanted.pinned_bytes)};
  settings().memory_bytes = double(configured.memory_bytes);
  settings().pinned_bytes = double(configured.pinned_bytes);
  map_pinned_memory();
  map_device_memory();
  create_streams();
  // A forked child has none of the stream threads; it is told so at its first call.
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
}

const Sizes& sizes() { return configured; }

bool in_forked_child() { return forked; }
bool is_down() { return down; }

void check_usable() {
  TORCH_CHECK(
      !forked,
      "sidestream.simulator: device sim cannot be used in a forked subprocess: its streams "
      "are threads of the parent; use the 'spawn' start method");
  TORCH_CHECK(!down, "sidestream.simulator: was shut down: the interpreter is exiting");
}

// Daemon threads that waited for the device return to Python now. One that asks for the GIL after
// the interpreter has begun to finalize is ended by Python in the midst of torch's C++, which
// aborts the process. So they get a moment to come through; nothing tells when they have.
static void let_waiting_threads_return(bool any_waited) {
  using std::chrono::milliseconds;
  for (int i = 0; i < 1000 && threads_waiting() > 0; i++)
    std::this_thread::sleep_for(milliseconds(1));
  if (any_waited) std::this_thread::sleep_for(milliseconds(50));
}

void shutdown() {
  if (forked || down) return;
  bool any_waited = threads_waiting() > 0;
  end_of_time();  // work in flight ends now, whatever its simulated duration
  {
    RuntimeLock lock(runtime_mutex());
    down = true;
    stop_all_streams();
  }
  let_waiting_threads_return(any_waited);
}

int device_count() { return configured.devices; }
int current_device() { return device_of_thread; }

int exchange_device(int device) {
  int before = device_of_thread;
  if (device >= 0) device_of_thread = checked_device(device);
  return before;
}

int checked_device(int device) {
  if (device < 0) return device_of_thread;
  TORCH_CHECK(device < device_count(), "sidestream.simulator: no device sim:", device,
              "; there are ", device_count());
  return device;
}

}  // namespace sim
