#include "counters.h"

#include <mutex>
#include <unordered_map>

namespace sim {
namespace {
std::mutex mutex;
std::unordered_map<const void*, std::pair<const char*, int64_t>> counts;
}  // namespace

void count(const char* operation) {
  std::lock_guard<std::mutex> lock(mutex);
  auto& entry = counts[operation];
  entry.first = operation;
  entry.second++;
}

std::map<std::string, int64_t> operation_counts(bool clear) {
  std::lock_guard<std::mutex> lock(mutex);
  std::map<std::string, int64_t> result;
  for (const auto& [key, entry] : counts) result[entry.first] += entry.second;
  if (clear) counts.clear();
  return result;
}

}  // namespace sim
