// Virtual time: what an operation costs and when it starts, free of the host's jitter.
//
// A stream thread sleeps until the virtual end of each operation, so virtual and real time agree
// within the jitter of the host's scheduler; but the next operation starts at the virtual end of
// the one before, not when the thread woke up. Jitter therefore does not add up.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sim {

enum class Link { kNone, kHostToDevice, kDeviceToHost, kOnDevice };

int64_t now_ns();
void sleep_until(int64_t time_ns);  // returns at once after end_of_time()
void end_of_time();                 // at shutdown: nobody waits for simulated durations any more

int64_t kernel_ns(double fixed_s);
int64_t transfer_ns(Link link, size_t bytes);  // fixed time per copy plus bytes over bandwidth

// One copy engine per device and direction: copies of one direction run one after the other.
class CopyEngines {
 public:
  int64_t start(Link link, int64_t earliest_ns, int64_t duration_ns);

 private:
  int64_t free_at_[2] = {0, 0};
};

}  // namespace sim
