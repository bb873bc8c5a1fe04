#include "host_guard.h"

#include <c10/util/Exception.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "memory.h"
#include "python_seam.h"
#include "runtime.h"

namespace sim {
namespace {

std::vector<Record>& in_flight() {  // copies the host does not know to be complete
  static auto* instance = new std::vector<Record>;
  return *instance;
}

struct Pages {
  uintptr_t begin, end;
};

Pages pages_of(const ByteRange& range) {
  uintptr_t mask = page_bytes() - 1;
  auto begin = reinterpret_cast<uintptr_t>(range.begin);
  return {begin & ~mask, (begin + range.bytes + mask) & ~mask};
}

void protect(const Pages& pages, int protection) {
  mprotect(reinterpret_cast<void*>(pages.begin), pages.end - pages.begin, protection);
}

void protect_for(const Record& copy) {
  protect(pages_of(copy.range), copy.write ? PROT_NONE : PROT_READ);
}

// Lifts the protection for the copies that `over` selects. Other copies may use the same pages
// (slices of one tensor): theirs is put back, the stricter one last.
template <class Predicate>
void lift(Predicate over) {
  auto& flights = in_flight();
  auto first_over = std::stable_partition(flights.begin(), flights.end(),
                                          [&](const Record& copy) { return !over(copy); });
  if (first_over == flights.end()) return;
  std::vector<Pages> lifted;
  for (auto copy = first_over; copy != flights.end(); ++copy)
    lifted.push_back(pages_of(copy->range));
  flights.erase(first_over, flights.end());
  for (const auto& pages : lifted) protect(pages, PROT_READ | PROT_WRITE);
  auto shares_a_page = [&](const Record& copy) {
    auto own = pages_of(copy.range);
    return std::any_of(lifted.begin(), lifted.end(), [&](const Pages& other) {
      return own.begin < other.end && other.begin < own.end;
    });
  };
  for (bool write : {false, true})
    for (const auto& copy : flights)
      if (copy.write == write && shares_a_page(copy)) protect_for(copy);
}

void report_touch(const Record& copy, const char* address, int site) {
  Block* block = find_pinned_block(address);
  Record touch;
  touch.range = {address, 1};
  touch.write = !copy.write;  // where the copy writes, the host may have read or written
  touch.stream = -1;
  touch.operation = copy.write ? "host access" : "host write";
  touch.site = site;
  report({copy.write ? Kind::kHostReadTooEarly : Kind::kPinnedOverwritten, true,
          block ? block->requested : 0, block ? block->begin : address, copy, touch, 0});
}

struct sigaction handler_before;
volatile sig_atomic_t has_passed_on = 0;

// Puts the handler before this one back; the access is executed again and meets that one. Where it
// passes the fault on to this one (each was installed over the other), the process ends.
void pass_on(siginfo_t* info) {
  if (has_passed_on)
    signal(SIGSEGV, SIG_DFL);
  else
    sigaction(SIGSEGV, &handler_before, nullptr);
  has_passed_on = 1;
  if (info->si_code <= 0) raise(SIGSEGV);  // sent by a process: there is no access to repeat
}

void on_page_fault(int, siginfo_t* info, void*) {
  const char* address = static_cast<const char*>(info->si_addr);
  if (info->si_code <= 0 || !pinned_arena().has(address)) return pass_on(info);
  Pages page = pages_of({address, 1});
  if (in_forked_child()) return protect(page, PROT_READ | PROT_WRITE);
  int site = current_site();
  RuntimeLock lock(runtime_mutex());
  bool touched = false;
  lift([&](const Record& copy) {
    if (address < copy.range.begin || address >= copy.range.end()) return false;
    report_touch(copy, address, site);
    return touched = true;
  });
  // Another slice of a protected page, or a fault that another thread has just settled.
  if (!touched) protect(page, PROT_READ | PROT_WRITE);
}

// Not once: what saves and restores all signal handlers, as Lightning's trainer does, takes this
// one for the default, which it looks like from Python, and restores that.
bool install_handler() {
  struct sigaction now{};
  if (sigaction(SIGSEGV, nullptr, &now) != 0) return false;
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_page_fault) return true;
  struct sigaction action{};
  action.sa_sigaction = on_page_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;  // the handler itself may meet a guarded page
  handler_before = now;
  has_passed_on = 0;
  return sigaction(SIGSEGV, &action, nullptr) == 0;
}

}  // namespace

void guard_host(const Record& copy) {
  TORCH_CHECK(install_handler(), "sidestream.simulator: cannot install the page-fault handler");
  in_flight().push_back(copy);
  protect_for(copy);
}

void host_learns(const VectorClock& clock) {
  auto& host = host_clock();
  join(host, clock);
  lift([&](const Record& copy) {
    return copy.stream < int(host.size()) && copy.time <= host[copy.stream];
  });
}

void unguard(const Block& block) {
  lift([&](const Record& copy) {
    return copy.range.begin >= block.begin && copy.range.begin < block.begin + block.bytes;
  });
}

}  // namespace sim
