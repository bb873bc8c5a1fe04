#include "race_detector.h"

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "memory.h"
#include "settings.h"

namespace sim {
namespace {

// A long history is pruned of what the host has synchronised with: whoever comes later has
// seen it, too. Where that does not help (a program that never synchronises and reads a block in
// thousands of different ranges) the oldest half goes: a race may be missed, none is invented.
constexpr size_t kPruneAt = 256, kForgetAt = 4096;  // arbitrary: the cost of one check stays ~us

struct Reports {
  std::mutex mutex;  // a leaf: nothing is called under it
  std::vector<Report> all;
};
Reports& reports() {
  static auto* instance = new Reports;
  return *instance;
}
thread_local std::optional<Report> unraised;

bool seen_by(const VectorClock& seen, const Record& r) {
  return r.stream < int(seen.size()) && r.time <= seen[r.stream];
}

bool covers(const ByteRange& a, const ByteRange& b) {
  if (a.begin > b.begin || b.end() > a.end()) return false;
  return a.period == 0 || (a.begin == b.begin && a.period == b.period && a.width >= b.width);
}

Kind classify(const Block& block, const Record& first, const Record& second, Judgement judgement) {
  if (judgement == Judgement::kReuse) return Kind::kReuseUnderUse;
  if (judgement == Judgement::kFree) return Kind::kUnorderedFree;
  if (!second.write) return first.copy ? Kind::kReadBeforeCopy : Kind::kReadBeforeWrite;
  if (first.write) return Kind::kUnorderedWrites;
  return block.pinned() ? Kind::kPinnedOverwritten : Kind::kOverwriteUnderRead;
}

void prune(std::vector<Record>& history) {
  auto known = [](const Record& r) { return seen_by(host_clock(), r); };
  history.erase(std::remove_if(history.begin(), history.end(), known), history.end());
  if (history.size() >= kForgetAt) history.erase(history.begin(), history.begin() + kForgetAt / 2);
}

}  // namespace

void join(VectorClock& into, const VectorClock& other) {
  if (into.size() < other.size()) into.resize(other.size());
  for (size_t i = 0; i < other.size(); i++) into[i] = std::max(into[i], other[i]);
}

VectorClock& host_clock() {
  static auto* clock = new VectorClock;
  return *clock;
}

bool overlap(const ByteRange& a, const ByteRange& b) {
  if (a.bytes == 0 || b.bytes == 0 || a.end() <= b.begin || b.end() <= a.begin) return false;
  size_t period = a.period ? a.period : b.period;
  if (period == 0 || (a.period && b.period && a.period != b.period)) return true;
  // A contiguous range that is shorter than the other's period is a single piece of it.
  size_t a_width = a.period ? a.width : a.bytes, b_width = b.period ? b.width : b.bytes;
  if (a_width >= period || b_width >= period) return true;
  // shift: from the start of a piece of a to the start of the next piece of b.
  auto length = ptrdiff_t(period);
  auto shift = size_t(((b.begin - a.begin) % length + length) % length);
  return shift < a_width || shift + b_width > period;
}

bool judge(Block& block, const VectorClock& seen, const Record& access, Judgement judgement) {
  auto& history = block.history;
  if (history.size() >= kPruneAt) prune(history);
  const Record* conflict = nullptr;
  for (const auto& r : history) {
    bool clash = (access.write || r.write) && r.stream != access.stream && !seen_by(seen, r);
    if (clash && overlap(r.range, access.range)) conflict = &r;
  }
  if (conflict) {
    Report found{classify(block, *conflict, access, judgement),
                 block.pinned(),
                 block.requested,
                 block.begin,
                 *conflict,
                 access,
                 judgement == Judgement::kReuse ? block.freed_site : 0};
    report(found);
  }
  if (judgement == Judgement::kFree) return conflict != nullptr;
  auto replaced = [&](const Record& r) {  // whoever conflicts with r conflicts with access, too
    return covers(access.range, r.range) &&
           (access.write || (!r.write && r.stream == access.stream));
  };
  bool found = conflict != nullptr;
  history.erase(std::remove_if(history.begin(), history.end(), replaced), history.end());
  history.push_back(access);
  return found;
}

void report(Report r) {
  std::lock_guard<std::mutex> lock(reports().mutex);
  reports().all.push_back(r);
  if (settings().raise_on_race != 0) unraised = r;
}

std::vector<Report> take_reports(bool clear) {
  std::lock_guard<std::mutex> lock(reports().mutex);
  auto result = reports().all;
  if (clear) {
    reports().all.clear();
    unraised.reset();
  }
  return result;
}

std::optional<Report> take_unraised() {
  auto taken = unraised;
  unraised.reset();
  return taken;
}

const char* intern(const std::string& text) {
  static auto* mutex = new std::mutex;
  static auto* texts = new std::unordered_set<std::string>;
  std::lock_guard<std::mutex> lock(*mutex);
  return texts->insert(text).first->c_str();
}

}  // namespace sim
