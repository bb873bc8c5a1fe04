// Page-locked memory: a caching host allocator, whole pages, rounded up to powers of two as CUDA's
// is. A freed block is handed out again only when the copies that used it are done.
#include <ATen/core/CachingHostAllocator.h>

#include <algorithm>
#include <cstring>

#include "host_guard.h"
#include "memory.h"
#include "runtime.h"
#include "settings.h"

namespace sim {
namespace {

struct PinnedMemory {
  Arena arena;
  Blocks blocks;
  std::multimap<size_t, Block*> free_list;
  std::vector<Block*> held_back;  // freed while a copy was under way
  at::HostStats torch_statistics;
  PinnedStatistics statistics;
};
PinnedMemory& memory() {
  static auto* instance = new PinnedMemory;
  return *instance;
}

void poison(Block* block) {
  if (settings().poison_memory != 0) std::memset(stream_address(block->begin), 0xFF, block->bytes);
}

void make_available(Block* block) {
  unguard(*block);
  poison(block);
  block->used_by.clear();
  block->in_use.clear();
  block->history.clear();  // ordered by the marks that held it back
  memory().free_list.emplace(block->bytes, block);
}

void poll_held_back() {
  std::vector<Block*> still;
  for (Block* block : memory().held_back) {
    if (all_done(block->in_use))
      make_available(block);
    else
      still.push_back(block);
  }
  memory().held_back.swap(still);
}

Block* reserve(size_t bytes) {
  auto& m = memory();
  bool allowed = m.statistics.reserved_bytes + bytes <= size_t(settings().pinned_bytes);
  char* begin = allowed ? m.arena.carve(bytes) : nullptr;
  if (!begin) return nullptr;
  auto* block = new Block;
  block->begin = begin;
  block->bytes = bytes;
  m.blocks[begin] = block;
  poison(block);
  m.torch_statistics.allocations.increase(1);
  m.torch_statistics.allocated_bytes.increase(bytes);
  m.torch_statistics.num_host_alloc++;
  auto& s = m.statistics;
  s.total_reservations++;
  s.reserved_bytes += bytes;
  s.peak_reserved_bytes = std::max(s.peak_reserved_bytes, s.reserved_bytes);
  return block;
}

void empty_cache() {
  auto& m = memory();
  poll_held_back();
  for (auto& [bytes, block] : m.free_list) {
    m.torch_statistics.allocations.decrease(1);
    m.torch_statistics.allocated_bytes.decrease(bytes);
    m.torch_statistics.num_host_free++;
    m.statistics.reserved_bytes -= bytes;
    m.arena.give_back(block->begin, bytes);
    m.blocks.erase(block->begin);
    delete block;
  }
  m.free_list.clear();
}

Block* allocate_block(size_t requested) {
  check_usable();
  RuntimeLock lock(runtime_mutex());
  auto& m = memory();
  poll_held_back();
  size_t bytes = page_bytes();
  while (bytes < requested) bytes *= 2;
  Block* block = nullptr;
  auto fit = m.free_list.find(bytes);
  if (fit != m.free_list.end()) {
    block = fit->second;
    m.free_list.erase(fit);
  } else if (!(block = reserve(bytes))) {
    empty_cache();
    block = reserve(bytes);
  }
  TORCH_CHECK_WITH(OutOfMemoryError, block,
                   "sidestream.simulator: out of page-locked memory: tried "
                   "to allocate ",
                   requested, " bytes (capacity ", size_t(settings().pinned_bytes), ", reserved ",
                   m.statistics.reserved_bytes, ")");
  block->requested = requested;
  m.torch_statistics.active_requests.increase(1);
  m.torch_statistics.active_bytes.increase(bytes);
  auto& s = m.statistics;
  s.allocations++;
  s.total_allocations++;
  s.bytes += requested;
  s.peak_bytes = std::max(s.peak_bytes, s.bytes);
  return block;
}

void free_block(void* p) {
  if (!p || in_forked_child() || is_down()) return;
  RuntimeLock lock(runtime_mutex());
  auto& m = memory();
  Block* block = m.blocks.at(static_cast<char*>(p));
  m.torch_statistics.active_requests.decrease(1);
  m.torch_statistics.active_bytes.decrease(block->bytes);
  m.statistics.allocations--;
  m.statistics.bytes -= block->requested;
  if (block->used_by.empty()) return make_available(block);
  for (Stream* stream : block->used_by) block->in_use.push_back(record_mark(stream));
  m.held_back.push_back(block);
}

class Allocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* p = bytes ? allocate_block(bytes)->begin : nullptr;
    return {p, p, &free_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool record_event(void* p, void*, c10::Stream stream) override {
    if (!is_pinned(p)) return false;
    record_use(p, unwrap(stream));
    return true;
  }
  void empty_cache() override {
    check_usable();
    RuntimeLock lock(runtime_mutex());
    sim::empty_cache();
  }
  at::HostStats get_stats() override {
    RuntimeLock lock(runtime_mutex());
    return memory().torch_statistics;
  }
  void reset_accumulated_stats() override {
    for_each_statistic([](auto& statistic) { statistic.reset_accumulated(); });
  }
  void reset_peak_stats() override {
    for_each_statistic([](auto& statistic) { statistic.reset_peak(); });
  }

 private:
  template <class F>
  void for_each_statistic(F f) {
    RuntimeLock lock(runtime_mutex());
    auto& s = memory().torch_statistics;
    for (auto* statistic :
         {&s.active_requests, &s.active_bytes, &s.allocations, &s.allocated_bytes})
      f(*statistic);
  }
};
Allocator allocator;
REGISTER_HOST_ALLOCATOR(c10::kPrivateUse1, &allocator);

}  // namespace

void map_pinned_memory() { memory().arena.map(sizes().pinned_bytes, true); }

at::HostAllocator* pinned_allocator() { return &allocator; }

Block* find_pinned_block(const void* p) { return find_block(memory().blocks, p); }

const Arena& pinned_arena() { return memory().arena; }

bool is_pinned(const void* p) {
  RuntimeLock lock(runtime_mutex());
  return p && pinned_arena().has(p) && find_pinned_block(p);
}

PinnedStatistics pinned_statistics(bool reset_peaks) {
  RuntimeLock lock(runtime_mutex());
  auto& s = memory().statistics;
  auto result = s;
  if (reset_peaks) {
    s.peak_bytes = s.bytes;
    s.peak_reserved_bytes = s.reserved_bytes;
  }
  return result;
}

}  // namespace sim
