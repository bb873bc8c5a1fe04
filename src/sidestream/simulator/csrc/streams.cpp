// The threads behind streams, events' recordings, and which stream is current.
#include "streams.h"

#include <algorithm>
#include <array>

#include "runtime.h"

namespace sim {
namespace {

struct Device {
  std::array<Stream, kStreamsPerDevice> streams;
  CopyEngines engines;
  int next = 0;
};
std::vector<std::unique_ptr<Device>>& devices() {
  static auto* instance = new std::vector<std::unique_ptr<Device>>;
  return *instance;
}
thread_local std::vector<Stream*> current_streams;

}  // namespace

void Mark::finish(int64_t time_ns) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    time_ns_ = time_ns;
  }
  changed_.notify_all();
}
void Mark::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return done_; });
}
bool Mark::done() {
  std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}
int64_t Mark::time_ns() {
  std::lock_guard<std::mutex> lock(mutex_);
  return time_ns_;
}

// ---- the stream's thread

void Stream::execute(Work& work) {
  int64_t time = std::max(work.enqueued_ns, last_end_ns_);
  if (work.wait) {
    work.wait->wait();
    time = std::max(time, work.wait->time_ns());
  }
  time = devices()[device]->engines.start(work.link, time, work.duration_ns);
  try {
    if (work.at_start) {
      sleep_until(time);
      work.at_start();
    }
    time += work.duration_ns;
    sleep_until(time);
    if (work.at_end) work.at_end();
  } catch (const std::exception& error) {
    note_asynchronous_error(work.operation, error);
  }
  last_end_ns_ = time;
  if (work.record) work.record->finish(time);
}

void Stream::run() {
  for (;;) {
    Work work;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      arrived_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    execute(work);
    work = Work();  // what it captured goes before completion is told
    {
      std::lock_guard<std::mutex> lock(mutex_);
      completed_++;
    }
    finished_.notify_all();
  }
}

void Stream::push(Work work) {
  work.enqueued_ns = now_ns();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!started_) {
      thread_ = std::thread([this] { run(); });
      started_ = true;
    }
    queue_.push_back(std::move(work));
    pushed_++;
  }
  arrived_.notify_one();
}

void Stream::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  uint64_t target = pushed_;
  finished_.wait(lock, [&] { return completed_ >= target; });
}

bool Stream::idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return completed_ == pushed_;
}

void Stream::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  arrived_.notify_all();
  thread_.join();
  started_ = false;
}

// ---- which stream

void create_streams() {
  for (int d = 0; d < device_count(); d++) {
    devices().push_back(std::make_unique<Device>());
    for (int id = 0; id < kStreamsPerDevice; id++) {
      auto& stream = devices().back()->streams[id];
      stream.device = d;
      stream.id = id;
      stream.index = d * kStreamsPerDevice + id;
    }
  }
}

void stop_all_streams() {
  for (auto& device : devices())
    for (auto& stream : device->streams)
      if (stream.started()) stream.drain();
  for (auto& device : devices())
    for (auto& stream : device->streams)
      if (stream.started()) stream.stop();
}

Stream* stream_at(int device, int id) { return &devices().at(device)->streams.at(id); }

Stream* current_stream(int device) {
  device = checked_device(device);
  if (current_streams.empty()) current_streams.resize(device_count());
  auto& current = current_streams[device];
  if (!current) current = stream_at(device, 0);
  return current;
}

Stream* exchange_stream(Stream* stream) {
  Stream* before = current_stream(stream->device);
  current_streams[stream->device] = stream;
  return before;
}

Stream* next_pool_stream(int device) {
  device = checked_device(device);
  RuntimeLock lock(runtime_mutex());
  int& next = devices()[device]->next;
  next = next % kPoolStreams + 1;
  return stream_at(device, next);
}

c10::Stream wrap(const Stream* stream) {
  c10::Device device(c10::kPrivateUse1, c10::DeviceIndex(stream->device));
  return c10::Stream(c10::Stream::UNSAFE, device, stream->id);
}

Stream* unwrap(const c10::Stream& stream) {
  TORCH_CHECK(stream.device_type() == c10::kPrivateUse1 && stream.id() >= 0 &&
                  stream.id() < kStreamsPerDevice,
              "sidestream.simulator: not a stream of device sim: ", stream);
  return stream_at(checked_device(stream.device_index()), int(stream.id()));
}

}  // namespace sim
