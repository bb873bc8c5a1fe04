// Address space (Arena) and the look-ups that concern both kinds of memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "memory.h"
#include "runtime.h"

namespace sim {

void Arena::map(size_t bytes, bool host_may_touch) {
  int file = memfd_create("sidestream-simulator", MFD_CLOEXEC);
  TORCH_CHECK(file >= 0 && ftruncate(file, off_t(bytes)) == 0,
              "sidestream.simulator: cannot create ", bytes,
              " bytes of memory: ", std::strerror(errno));
  constexpr int kFlags = MAP_SHARED | MAP_NORESERVE;
  int protection = host_may_touch ? PROT_READ | PROT_WRITE : PROT_NONE;
  void* handed_out = mmap(nullptr, bytes, protection, kFlags, file, 0);
  void* alias = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, file, 0);
  int error = errno;
  close(file);
  TORCH_CHECK(handed_out != MAP_FAILED && alias != MAP_FAILED, "sidestream.simulator: cannot map ",
              bytes, " bytes of memory: ", std::strerror(error),
              "; enable() with less memory_bytes or pinned_bytes");
  base_ = static_cast<char*>(handed_out);
  to_alias_ = static_cast<char*>(alias) - base_;
  bytes_ = bytes;
  free_[0] = bytes;
}

char* Arena::carve(size_t bytes) {
  for (auto extent = free_.begin(); extent != free_.end(); ++extent) {
    auto [offset, length] = *extent;
    if (length < bytes) continue;
    free_.erase(extent);
    if (length > bytes) free_[offset + bytes] = length - bytes;
    return base_ + offset;
  }
  return nullptr;
}

void Arena::give_back(char* p, size_t bytes) {
  // The whole pages within go back to the system; they are zero when they are touched again.
  uintptr_t mask = page_bytes() - 1;
  auto first = (reinterpret_cast<uintptr_t>(alias(p)) + mask) & ~mask;
  auto last = (reinterpret_cast<uintptr_t>(alias(p)) + bytes) & ~mask;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_REMOVE);
  size_t offset = size_t(p - base_);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

Block* find_block(const Blocks& blocks, const void* p) {
  auto after = blocks.upper_bound(static_cast<const char*>(p));
  if (after == blocks.begin()) return nullptr;
  Block* block = std::prev(after)->second;
  return p < block->begin + block->bytes ? block : nullptr;
}

bool all_done(const std::vector<MarkPtr>& marks) {
  for (const auto& mark : marks)
    if (!mark->done()) return false;
  return true;
}

Block* find_block(const void* p) {
  Block* block = find_device_block(p);
  return block ? block : find_pinned_block(p);
}

void* stream_address(const void* p) {
  if (!p) return nullptr;
  if (pinned_arena().has(p)) return pinned_arena().alias(p);
  void* address = device_stream_address(p);
  TORCH_CHECK(address, "sidestream.simulator: ", p,
              " is not an address of device or page-locked "
              "memory");
  return address;
}

void record_use(const void* p, Stream* stream) {
  RuntimeLock lock(runtime_mutex());
  Block* block = find_block(p);
  if (block && block->owner != stream) block->used_by.insert(stream);
}

}  // namespace sim
