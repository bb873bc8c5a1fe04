// Putting work into queues, and the host waiting for it. Here the vector clocks move.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "counters.h"
#include "host_guard.h"
#include "memory.h"
#include "python_seam.h"
#include "runtime.h"
#include "settings.h"
#include "streams.h"

namespace sim {
namespace {

struct AsynchronousError {  // of the first kernel that failed since the last one was raised
  std::mutex mutex;         // a leaf
  std::string text;
};
AsynchronousError& asynchronous_error() {
  static auto* instance = new AsynchronousError;
  return *instance;
}

void raise_pending() {
  std::string text;
  {
    std::lock_guard<std::mutex> lock(asynchronous_error().mutex);
    text.swap(asynchronous_error().text);
  }
  TORCH_CHECK(text.empty(), "sidestream.simulator: asynchronous error in ", text);
  if (settings().raise_on_race != 0)
    if (auto race = take_unraised()) throw_race_error(*race);
}

}  // namespace

void note_asynchronous_error(const char* operation, const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::lock_guard<std::mutex> lock(asynchronous_error().mutex);
  auto& text = asynchronous_error().text;
  if (!text.empty()) return;
  text = std::string(operation) + ": " +
         (torch_error ? torch_error->what_without_backtrace() : error.what());
}

// ---- enqueueing

void tick(Stream* stream) {
  join(stream->clock, host_clock());
  stream->clock.resize(size_t(device_count()) * kStreamsPerDevice);
  stream->clock[stream->index]++;
}

static bool judge_accesses(Stream* stream, const Work& work, int site) {
  bool race = false;
  bool between_host_and_device =
      work.link == Link::kHostToDevice || work.link == Link::kDeviceToHost;
  for (const auto& access : work.accesses) {
    if (access.range.bytes == 0) continue;
    Record record{access.range,
                  access.write,
                  between_host_and_device,
                  stream->index,
                  stream->clock[stream->index],
                  work.operation,
                  site};
    if (work.guard_host && settings().guard_host != 0 && pinned_arena().has(access.range.begin))
      guard_host(record);
    if (Block* block = find_block(access.range.begin))
      race |= judge(*block, stream->clock, record, Judgement::kAccess);
  }
  return race;
}

// Makes what a racy operation wrote certainly wrong: 0xFF bytes, NaN in every floating type.
static void spoil(const ByteRange& range) {
  if (range.bytes == 0) return;
  auto* begin = static_cast<char*>(stream_address(range.begin));
  size_t period = range.period ? range.period : range.bytes;
  size_t width = range.period ? range.width : range.bytes;
  for (size_t at = 0; at < range.bytes; at += period)
    std::memset(begin + at, 0xFF, std::min(width, range.bytes - at));
}

static void spoil_result(Work& work) {
  work.at_end = [compute = std::move(work.at_end), accesses = work.accesses] {
    if (compute) compute();
    for (const auto& access : accesses)
      if (access.write) spoil(access.range);
  };
}

void enqueue(Stream* stream, Work work) {
  check_usable();
  count(work.operation);
  int site = current_site();
  {
    RuntimeLock lock(runtime_mutex());
    tick(stream);
    bool race = settings().detect_races != 0 && judge_accesses(stream, work, site);
    if (race && settings().nan_on_race != 0) spoil_result(work);
    stream->push(std::move(work));
  }
  if (settings().raise_on_race != 0)
    if (auto race = take_unraised()) throw_race_error(*race);
}

MarkPtr record_mark(Stream* stream) {
  RuntimeLock lock(runtime_mutex());
  tick(stream);
  auto mark = std::make_shared<Mark>();
  mark->clock = stream->clock;
  Work work;
  work.operation = "event record";
  count(work.operation);
  work.record = mark;
  stream->push(std::move(work));
  return mark;
}

void wait_for_mark(Stream* stream, const MarkPtr& mark) {
  RuntimeLock lock(runtime_mutex());
  tick(stream);
  join(stream->clock, mark->clock);
  Work work;
  work.operation = "event wait";
  count(work.operation);
  work.wait = mark;
  stream->push(std::move(work));
}

void wait_for_stream(Stream* waiter, Stream* other) {
  check_usable();
  RuntimeLock lock(runtime_mutex());
  wait_for_mark(waiter, record_mark(other));
}

// ---- the host waits

static void learn(const VectorClock& clock) {
  RuntimeLock lock(runtime_mutex());
  host_learns(clock);
}

static VectorClock clock_of(Stream* stream) {
  RuntimeLock lock(runtime_mutex());
  return stream->clock;
}

static std::atomic<int> waiting{0};
int threads_waiting() { return waiting; }

namespace {
struct Waiting {
  Waiting() { waiting++; }
  ~Waiting() { waiting--; }
};
}  // namespace

void synchronize(Stream* stream, bool host_learns) {
  if (in_forked_child() || is_down()) return;
  Waiting scope;
  auto clock = clock_of(stream);
  if (stream->started()) stream->drain();
  if (host_learns) learn(clock);
  raise_pending();
}

void drain_device(int device) {
  for (int id = 0; id < kStreamsPerDevice; id++) {
    Stream& stream = *stream_at(checked_device(device), id);
    if (!stream.started()) continue;
    auto clock = clock_of(&stream);
    stream.drain();
    learn(clock);
  }
}

void synchronize_device(int device) {
  if (in_forked_child() || is_down()) return;
  Waiting scope;
  drain_device(device);
  raise_pending();
}

void synchronize_mark(const MarkPtr& mark) {
  if (in_forked_child() || is_down()) return;
  Waiting scope;
  mark->wait();
  learn(mark->clock);
  raise_pending();
}

bool query(Stream* stream) {
  auto clock = clock_of(stream);
  if (!stream->idle()) return false;
  learn(clock);
  return true;
}

bool query(const MarkPtr& mark) {
  if (!mark->done()) return false;
  learn(mark->clock);
  return true;
}

}  // namespace sim
