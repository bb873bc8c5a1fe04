// The race detector: happens-before by vector clocks.
//
// Clocks advance when work is *enqueued*, not when it runs. The verdict on a program therefore
// depends on the order of its calls alone, never on how fast its threads happened to be.
// Edges: the order within a stream, event record and wait, host synchronisation and queries that
// answered "done", and what record_stream promises.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sim {

struct Block;

using VectorClock = std::vector<uint64_t>;  // one component per stream
void join(VectorClock& into, const VectorClock& other);

// Everything the host has synchronised with; each enqueue starts from here. Runtime lock held.
VectorClock& host_clock();

// Bytes touched. A strided tensor touches `width` bytes every `period` bytes within the range, so
// two streams may fill interleaved columns of one tensor. period 0: every byte of the range.
struct ByteRange {
  const char* begin = nullptr;
  size_t bytes = 0;
  size_t period = 0, width = 0;
  const char* end() const { return begin + bytes; }
};
bool overlap(const ByteRange& a, const ByteRange& b);

struct Access {
  ByteRange range;
  bool write = false;
};

struct Record {  // an access that later ones may conflict with
  ByteRange range;
  bool write = false, copy = false;  // copy: by a transfer between host and device
  int stream = 0;                    // component of the vector clock; -1 is the host
  uint64_t time = 0;                 // of the stream's component
  const char* operation = "";        // interned
  int site = 0;                      // the Python line, see python_seam.h
};

enum class Kind {  // the order is that of RaceKind in Python
  kReadBeforeCopy,
  kReadBeforeWrite,
  kOverwriteUnderRead,
  kUnorderedWrites,
  kReuseUnderUse,
  kPinnedOverwritten,
  kHostReadTooEarly,
  kUnorderedFree,
};

struct Report {
  Kind kind;
  bool pinned;
  size_t block_bytes;       // as requested
  const char* block_begin;  // byte ranges are told relative to it
  Record first, second;
  int freed_site;  // where reused memory had been freed
};

enum class Judgement { kAccess, kReuse, kFree };

// Judges `access`, made by someone who has seen `seen`, against the block's history; reports the
// latest conflict, if any, and adds the access to the history (a free is only judged).
// Returns whether it reported. Runtime lock held.
bool judge(Block& block, const VectorClock& seen, const Record& access, Judgement judgement);

void report(Report report);  // leaf lock; any thread
std::vector<Report> take_reports(bool clear);
// The latest report of the calling thread that raise_on_race asks for and nobody raised yet. A
// report made while memory is freed or a page fault is handled cannot be raised on the spot.
std::optional<Report> take_unraised();

const char* intern(const std::string& text);

}  // namespace sim
