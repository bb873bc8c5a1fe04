// Device memory: a caching allocator with CUDA's rules for streams.
//
// A freed block returns to the free list of the stream it was allocated on and may be handed out
// there at once. record_stream keeps it back until the work queued so far on the other stream is
// done. Unlike CUDA's, this allocator does not split blocks: reserved bytes are comparable in
// batches, not byte by byte.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <cstring>
#include <initializer_list>

#include "memory.h"
#include "python_seam.h"
#include "runtime.h"
#include "settings.h"

namespace sim {
namespace {

constexpr size_t kRounding = 512;  // as CUDA's

struct DeviceMemory {
  Arena arena;  // PROT_NONE where it is handed out: a host dereference faults
  std::map<Stream*, std::multimap<size_t, Block*>> free_lists;
  std::vector<Block*> held_back;  // freed, but record_stream's marks are not all done
  c10::CachingDeviceAllocator::DeviceStats statistics;
};
struct Memory {
  std::vector<std::unique_ptr<DeviceMemory>> devices;
  Blocks blocks;
};
Memory& memory() {
  static auto* instance = new Memory;
  return *instance;
}

// The block's content is lost, in the order of its stream: whatever was done to it before is
// history, and whoever reads it without having written it sees NaN.
void discard_content(Block* block, const char* why, int site) {
  Stream* stream = block->owner;
  tick(stream);
  ByteRange all{block->begin, block->bytes};
  block->history.clear();
  block->history.push_back(
      {all, true, false, stream->index, stream->clock[stream->index], why, site});
  if (settings().poison_memory == 0) return;
  Work work;
  work.operation = why;
  work.at_end = [address = stream_address(block->begin), bytes = block->bytes] {
    std::memset(address, 0xFF, bytes);
  };
  stream->push(std::move(work));
}

void make_available(DeviceMemory& device, Block* block) {
  block->fence.clear();
  for (const auto& mark : block->in_use) join(block->fence, mark->clock);
  block->used_by.clear();
  block->in_use.clear();
  device.statistics.active_bytes[0].decrease(block->bytes);
  device.statistics.active[0].decrease(1);
  device.free_lists[block->owner].emplace(block->bytes, block);
}

void poll_held_back(DeviceMemory& device) {
  std::vector<Block*> still;
  for (Block* block : device.held_back) {
    if (all_done(block->in_use))
      make_available(device, block);
    else
      still.push_back(block);
  }
  device.held_back.swap(still);
}

void empty_cache(int index) {  // runtime lock held: stream threads never take it
  drain_device(index);
  auto& device = *memory().devices[index];
  poll_held_back(device);
  for (auto& [stream, free_list] : device.free_lists) {
    for (auto& [bytes, block] : free_list) {
      device.statistics.reserved_bytes[0].decrease(bytes);
      device.statistics.segment[0].decrease(1);
      device.statistics.num_device_free++;
      device.arena.give_back(block->begin, bytes);
      memory().blocks.erase(block->begin);
      delete block;
    }
  }
  device.free_lists.clear();
}

// The free block that the stream would get: an exact or near fit, of its size the one freed last.
Block* take_free(DeviceMemory& device, Stream* stream, size_t bytes) {
  auto& free_list = device.free_lists[stream];
  auto fit = free_list.lower_bound(bytes);
  if (fit == free_list.end() || fit->first > bytes + bytes / 4) return nullptr;
  auto last = std::prev(free_list.upper_bound(fit->first));
  Block* block = last->second;
  free_list.erase(last);
  return block;
}

void judge_reuse(Block* block, int site) {
  static const char* const kOperation = intern("reuse of freed memory");
  Stream* stream = block->owner;
  tick(stream);
  if (settings().detect_races != 0) {
    auto seen = stream->clock;
    join(seen, block->fence);
    Record record{{block->begin, block->bytes}, true,       false, stream->index,
                  stream->clock[stream->index], kOperation, site};
    judge(*block, seen, record, Judgement::kReuse);
  }
  discard_content(block, kOperation, site);
}

Block* reserve(DeviceMemory& device, Stream* stream, size_t bytes, int site) {
  static const char* const kOperation = intern("allocation");
  auto limit = size_t(settings().memory_bytes);
  if (size_t(device.statistics.reserved_bytes[0].current) + bytes > limit) return nullptr;
  char* begin = device.arena.carve(bytes);
  if (!begin) return nullptr;
  auto* block = new Block;
  block->begin = begin;
  block->bytes = bytes;
  block->owner = stream;
  memory().blocks[begin] = block;
  device.statistics.reserved_bytes[0].increase(bytes);
  device.statistics.segment[0].increase(1);
  device.statistics.num_device_alloc++;
  discard_content(block, kOperation, site);
  return block;
}

Block* allocate_block(size_t requested) {
  check_usable();
  int site = current_site();
  RuntimeLock lock(runtime_mutex());
  int index = current_device();
  auto& device = *memory().devices[index];
  auto& statistics = device.statistics;
  Stream* stream = current_stream(index);
  poll_held_back(device);
  size_t bytes = (requested + kRounding - 1) / kRounding * kRounding;
  Block* block = take_free(device, stream, bytes);
  if (block) {
    judge_reuse(block, site);
  } else if (!(block = reserve(device, stream, bytes, site))) {
    statistics.num_alloc_retries++;
    empty_cache(index);
    block = reserve(device, stream, bytes, site);
  }
  if (!block) {
    statistics.num_ooms++;
    TORCH_CHECK_WITH(OutOfMemoryError, false,
                     "sidestream.simulator: out of memory: tried to allocate ", requested,
                     " bytes on sim:", index, " (capacity ", size_t(settings().memory_bytes),
                     ", allocated ", statistics.allocated_bytes[0].current, ", reserved ",
                     statistics.reserved_bytes[0].current, ")");
  }
  block->requested = requested;
  block->freed_site = 0;
  statistics.allocation[0].increase(1);
  statistics.active[0].increase(1);
  statistics.allocated_bytes[0].increase(block->bytes);
  statistics.active_bytes[0].increase(block->bytes);
  statistics.requested_bytes[0].increase(requested);
  return block;
}

// Freed memory is judged when it is reused: a fence queued between the two is honest. strict
// asks for more, that every use be ordered before the free itself, and says so under its own name.
void judge_free(Block* block) {
  static const char* const kOperation = intern("free");
  Stream* stream = block->owner;
  tick(stream);
  auto seen = stream->clock;
  for (const auto& mark : block->in_use) join(seen, mark->clock);
  Record record{{block->begin, block->bytes},
                true,
                false,
                stream->index,
                stream->clock[stream->index],
                kOperation,
                block->freed_site};
  judge(*block, seen, record, Judgement::kFree);
}

void free_block(void* p) {
  if (!p || in_forked_child() || is_down()) return;
  int site = current_site();
  RuntimeLock lock(runtime_mutex());
  Block* block = memory().blocks.at(static_cast<char*>(p));
  auto& device = *memory().devices[block->owner->device];
  block->freed_site = site;
  device.statistics.allocation[0].decrease(1);
  device.statistics.allocated_bytes[0].decrease(block->bytes);
  device.statistics.requested_bytes[0].decrease(block->requested);
  for (Stream* stream : block->used_by) block->in_use.push_back(record_mark(stream));
  if (settings().detect_races != 0 && settings().strict != 0) judge_free(block);
  if (block->used_by.empty())
    make_available(device, block);
  else
    device.held_back.push_back(block);
}

DeviceMemory& checked(int device) { return *memory().devices[checked_device(device)]; }

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* p = bytes ? allocate_block(bytes)->begin : nullptr;
    return {p, p, &free_block, c10::Device(c10::kPrivateUse1, c10::DeviceIndex(current_device()))};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    Work work;
    work.operation = intern("copy_data");
    work.duration_ns = transfer_ns(Link::kOnDevice, bytes);
    work.link = Link::kOnDevice;
    work.accesses = {{{static_cast<const char*>(from), bytes}, false},
                     {{static_cast<char*>(to), bytes}, true}};
    work.at_end = [to = stream_address(to), from = stream_address(from), bytes] {
      std::memcpy(to, from, bytes);
    };
    enqueue(current_stream(-1), std::move(work));
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    check_usable();
    RuntimeLock lock(runtime_mutex());
    for (int d = 0; d < device_count(); d++) empty_cache(d);
  }
  void recordStream(const c10::DataPtr& p, c10::Stream stream) override {
    record_use(p.get(), unwrap(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex d) override {
    RuntimeLock lock(runtime_mutex());
    return checked(d).statistics;
  }
  void resetAccumulatedStats(c10::DeviceIndex d) override {
    for_each_statistic(d, [](auto& statistic) { statistic.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex d) override {
    for_each_statistic(d, [](auto& statistic) { statistic.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex d) override {
    RuntimeLock lock(runtime_mutex());
    auto capacity = size_t(settings().memory_bytes);
    auto reserved = size_t(checked(d).statistics.reserved_bytes[0].current);
    return {capacity > reserved ? capacity - reserved : 0, capacity};
  }

 private:
  template <class F>
  void for_each_statistic(int device, F f) {
    RuntimeLock lock(runtime_mutex());
    auto& s = checked(device).statistics;
    for (auto* statistic : {&s.allocation, &s.segment, &s.active, &s.allocated_bytes,
                            &s.reserved_bytes, &s.active_bytes, &s.requested_bytes})
      f((*statistic)[0]);
  }
};
Allocator allocator;
REGISTER_ALLOCATOR(c10::kPrivateUse1, &allocator);

}  // namespace

void map_device_memory() {
  for (int d = 0; d < device_count(); d++) {
    auto device = std::make_unique<DeviceMemory>();
    device->arena.map(sizes().memory_bytes, false);
    memory().devices.push_back(std::move(device));
  }
}

c10::DeviceAllocator* device_allocator() { return &allocator; }

Block* find_device_block(const void* p) { return find_block(memory().blocks, p); }

void* device_stream_address(const void* p) {
  int device = device_of(p);
  return device < 0 ? nullptr : memory().devices[device]->arena.alias(p);
}

int device_of(const void* p) {
  for (size_t d = 0; d < memory().devices.size(); d++)
    if (memory().devices[d]->arena.has(p)) return int(d);
  return -1;
}

}  // namespace sim
