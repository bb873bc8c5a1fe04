// What every room of the simulator shares: the runtime lock, the configured sizes, the life cycle.
#pragma once
#include <cstddef>
#include <mutex>

namespace sim {

// The runtime lock fixes the order of enqueues and guards vector clocks, allocators, host guard
// and race detector. Two rules keep it free of deadlocks:
//   1. A stream thread never takes it: emptying the cache waits for stream threads under it.
//   2. Nobody acquires Python's GIL under it: tensors are freed, thus the lock taken, under the
//      GIL. Whatever needs Python (current_site) runs before the lock is taken.
std::recursive_mutex& runtime_mutex();
using RuntimeLock = std::lock_guard<std::recursive_mutex>;

struct Sizes {
  int devices = 0;
  size_t memory_bytes = 0;  // of each device
  size_t pinned_bytes = 0;
};
// Creates devices, streams and memory. Once per process; throws when memory cannot be mapped.
void configure(const Sizes& sizes);
const Sizes& sizes();
size_t page_bytes();

void check_usable();  // throws in a forked child and after shutdown
bool in_forked_child();
bool is_down();
void shutdown();  // ends simulated time, lets the queues run empty and joins the threads

int device_count();
int current_device();
int exchange_device(int device);  // returns the device before; a negative one changes nothing
int checked_device(int device);   // -1 means the current one; throws for others out of range

}  // namespace sim
