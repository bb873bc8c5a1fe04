// The controls: numbers that may change while work is queued.
#pragma once
#include <atomic>
#include <limits>
#include <string>
#include <vector>

namespace sim {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// Booleans are 0 and 1, so that one table serves all. Their meaning: see Settings in Python.
struct Settings {
  std::atomic<double> h2d_bytes_per_s{kUnlimited}, d2h_bytes_per_s{kUnlimited},
      d2d_bytes_per_s{kUnlimited};
  std::atomic<double> copy_s{0}, kernel_s{0};
  std::atomic<double> memory_bytes{0}, pinned_bytes{0};
  std::atomic<double> detect_races{1}, strict{0}, raise_on_race{0}, nan_on_race{0};
  std::atomic<double> python_lines{1}, guard_host{1}, poison_memory{1}, poison_copies{1};

  std::atomic<double>& named(const std::string& name);
};
Settings& settings();

// Simulated time of one operator ("aten::mm") [s], in place of kernel_s; a negative one removes
// it.
void set_operator_time(const std::string& name, double seconds);
double operator_time(const std::string& name);  // negative where none is set

}  // namespace sim
