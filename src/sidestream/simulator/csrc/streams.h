// Streams and events: a stream is a host thread with a queue, an event recording is a Mark.
#pragma once
#include <c10/core/Stream.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "race_detector.h"
#include "virtual_time.h"

namespace sim {

constexpr int kPoolStreams = 32;  // per device, handed out in turn, as CUDA does
constexpr int kStreamsPerDevice = kPoolStreams + 1;  // number 0 is the default stream

// One recording of an event: a place in a stream's queue.
class Mark {
 public:
  VectorClock clock;  // what the stream had seen there; written before the mark is shared
  void finish(int64_t time_ns);
  void wait();
  bool done();
  int64_t time_ns();  // virtual; call when done

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  int64_t time_ns_ = 0;
};
using MarkPtr = std::shared_ptr<Mark>;

// One entry of a stream's queue. A kernel's reads and writes happen at the end of its simulated
// duration; `at_start` is for what a running copy does to its destination meanwhile.
struct Work {
  const char* operation = "";  // interned
  int64_t duration_ns = 0;
  Link link = Link::kNone;       // the copy engine it holds
  std::vector<Access> accesses;  // judged by the race detector
  bool guard_host = false;       // keep the host off the page-locked ranges until it synchronises
  std::function<void()> at_start, at_end;
  MarkPtr record, wait;
  int64_t enqueued_ns = 0;
};

struct Stream {
  int device = 0, id = 0;
  int index = 0;      // component of the vector clock
  VectorClock clock;  // runtime lock

  void push(Work work);
  void drain();  // waits until everything enqueued before the call is done
  bool idle();
  void stop();  // after a drain: joins the thread
  bool started() const { return started_; }

 private:
  void run();
  void execute(Work& work);

  std::mutex mutex_;
  std::condition_variable arrived_, finished_;
  std::deque<Work> queue_;
  uint64_t pushed_ = 0, completed_ = 0;
  bool stop_ = false;
  std::atomic<bool> started_{false};
  std::thread thread_;
  int64_t last_end_ns_ = 0;  // virtual end of the work before
};

Stream* stream_at(int device, int id);
Stream* current_stream(int device);  // -1: of the current device
Stream* exchange_stream(Stream* stream);
Stream* next_pool_stream(int device);
c10::Stream wrap(const Stream* stream);
Stream* unwrap(const c10::Stream& stream);

void create_streams();
void stop_all_streams();

// A kernel that failed is told at the next call that synchronises. Any thread.
void note_asynchronous_error(const char* operation, const std::exception& error);

// Each takes the runtime lock.
void enqueue(Stream* stream, Work work);  // raises what raise_on_race asks for
MarkPtr record_mark(Stream* stream);
void wait_for_mark(Stream* stream, const MarkPtr& mark);
void wait_for_stream(Stream* waiter, Stream* other);

// The host waits, then raises a pending asynchronous error. host_learns=false: the host waits but
// may not rely on it, as for a pageable copy with non_blocking=True, whose blocking is an
// accident.
void synchronize(Stream* stream, bool host_learns = true);
void synchronize_device(int device);
void synchronize_mark(const MarkPtr& mark);
// Waits without raising, which may need the GIL: also allowed under the runtime lock.
void drain_device(int device);
int threads_waiting();       // in one of the synchronize functions
bool query(Stream* stream);  // a true answer is a synchronisation
bool query(const MarkPtr& mark);

// Moves the stream's clock on by one operation. Runtime lock held.
void tick(Stream* stream);

}  // namespace sim
