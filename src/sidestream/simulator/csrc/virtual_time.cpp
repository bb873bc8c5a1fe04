#include "virtual_time.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>

#include "settings.h"

namespace sim {
namespace {

struct Sleepers {
  std::mutex mutex;
  std::condition_variable ended;
  bool over = false;
};
Sleepers& sleepers() {
  static auto* instance = new Sleepers;
  return *instance;
}

std::mutex engines_mutex;

}  // namespace

int64_t now_ns() {
  auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

void sleep_until(int64_t time_ns) {
  if (time_ns <= now_ns()) return;
  auto& s = sleepers();
  std::unique_lock<std::mutex> lock(s.mutex);
  s.ended.wait_until(lock,
                     std::chrono::steady_clock::time_point(std::chrono::nanoseconds(time_ns)),
                     [&] { return s.over; });
}

void end_of_time() {
  auto& s = sleepers();
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    s.over = true;
  }
  s.ended.notify_all();
}

int64_t kernel_ns(double fixed_s) { return std::llround(fixed_s * 1e9); }

int64_t transfer_ns(Link link, size_t bytes) {
  auto& c = settings();
  double bandwidth = link == Link::kHostToDevice   ? c.h2d_bytes_per_s
                     : link == Link::kDeviceToHost ? c.d2h_bytes_per_s
                                                   : c.d2d_bytes_per_s;
  return std::llround((c.copy_s + double(bytes) / bandwidth) * 1e9);
}

int64_t CopyEngines::start(Link link, int64_t earliest_ns, int64_t duration_ns) {
  if (link != Link::kHostToDevice && link != Link::kDeviceToHost) return earliest_ns;
  std::lock_guard<std::mutex> lock(engines_mutex);
  int64_t& free_at = free_at_[link == Link::kDeviceToHost];
  int64_t start = std::max(earliest_ns, free_at);
  free_at = start + duration_ns;
  return start;
}

}  // namespace sim
