// Memory: address space, blocks, and the two allocators that hand them out.
#pragma once
#include <c10/core/Allocator.h>

#include <cstddef>
#include <map>
#include <set>
#include <vector>

#include "race_detector.h"
#include "streams.h"

namespace c10 {
struct DeviceAllocator;
}
namespace at {
struct HostAllocator;
}

namespace sim {

// An anonymous file mapped twice: the addresses handed out, whose protection says what the host
// may do, and an alias that stream threads use. Pages cost memory only once they are touched.
class Arena {
 public:
  void map(size_t bytes, bool host_may_touch);
  bool has(const void* p) const { return p >= base_ && p < base_ + bytes_; }
  void* alias(const void* p) const { return static_cast<char*>(const_cast<void*>(p)) + to_alias_; }
  size_t bytes() const { return bytes_; }
  char* carve(size_t bytes);  // first fit; nullptr where no extent is long enough
  void give_back(char* p, size_t bytes);

 private:
  char* base_ = nullptr;
  ptrdiff_t to_alias_ = 0;
  size_t bytes_ = 0;
  std::map<size_t, size_t> free_;  // offset -> length of the free extents
};

struct Block {
  char* begin = nullptr;
  size_t bytes = 0, requested = 0;
  Stream* owner = nullptr;      // the stream whose free list it returns to; none: page-locked
  std::set<Stream*> used_by;    // record_stream, or copies from and to page-locked memory
  std::vector<MarkPtr> in_use;  // recorded at the free on each of used_by
  VectorClock fence;            // what those had seen when the block became free
  std::vector<Record> history;
  int freed_site = 0;
  bool pinned() const { return owner == nullptr; }
};
using Blocks = std::map<const char*, Block*>;
Block* find_block(const Blocks& blocks, const void* p);
bool all_done(const std::vector<MarkPtr>& marks);

// Device or page-locked, whichever p lies in; nullptr for other memory. Runtime lock held.
Block* find_block(const void* p);
// The address at which stream threads may touch p; throws for memory that is not the simulator's.
void* stream_address(const void* p);
// record_stream for device memory; for page-locked memory, that a copy on the stream uses it.
void record_use(const void* p, Stream* stream);

// Device memory (device_memory.cpp).
void map_device_memory();
c10::DeviceAllocator* device_allocator();
Block* find_device_block(const void* p);
void* device_stream_address(const void* p);  // nullptr where p is no device address
int device_of(const void* p);                // -1 where p is no device address

// Page-locked memory (pinned_memory.cpp).
struct PinnedStatistics {
  size_t bytes = 0, peak_bytes = 0;                    // in use, as requested
  size_t reserved_bytes = 0, peak_reserved_bytes = 0;  // rounded, cached blocks included
  int64_t allocations = 0, total_allocations = 0;      // in use now; ever made
  int64_t total_reservations = 0;                      // of them, not served from the cache
};
void map_pinned_memory();
at::HostAllocator* pinned_allocator();
Block* find_pinned_block(const void* p);
const Arena& pinned_arena();
bool is_pinned(const void* p);
PinnedStatistics pinned_statistics(bool reset_peaks);

}  // namespace sim
