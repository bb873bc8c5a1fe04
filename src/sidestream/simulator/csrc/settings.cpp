#include "settings.h"

#include <c10/util/Exception.h>

#include <map>
#include <mutex>

namespace sim {

Settings& settings() {
  static auto* instance = new Settings;  // never destroyed: stream threads may outlive it
  return *instance;
}

std::atomic<double>& Settings::named(const std::string& name) {
  static const std::map<std::string, std::atomic<double> Settings::*> table{
      {"h2d_bytes_per_s", &Settings::h2d_bytes_per_s},
      {"d2h_bytes_per_s", &Settings::d2h_bytes_per_s},
      {"d2d_bytes_per_s", &Settings::d2d_bytes_per_s},
      {"copy_s", &Settings::copy_s},
      {"kernel_s", &Settings::kernel_s},
      {"memory_bytes", &Settings::memory_bytes},
      {"pinned_bytes", &Settings::pinned_bytes},
      {"detect_races", &Settings::detect_races},
      {"strict", &Settings::strict},
      {"raise_on_race", &Settings::raise_on_race},
      {"nan_on_race", &Settings::nan_on_race},
      {"python_lines", &Settings::python_lines},
      {"guard_host", &Settings::guard_host},
      {"poison_memory", &Settings::poison_memory},
      {"poison_copies", &Settings::poison_copies},
  };
  auto found = table.find(name);
  TORCH_CHECK(found != table.end(), "sidestream.simulator: no setting named ", name);
  return this->*found->second;
}

namespace {
std::mutex times_mutex;
std::map<std::string, double> times;
std::atomic<bool> any_time{false};  // the common case, no time set, takes no lock
}  // namespace

void set_operator_time(const std::string& name, double seconds) {
  std::lock_guard<std::mutex> lock(times_mutex);
  if (seconds < 0)
    times.erase(name);
  else
    times[name] = seconds;
  any_time = !times.empty();
}

double operator_time(const std::string& name) {
  if (!any_time) return -1;
  std::lock_guard<std::mutex> lock(times_mutex);
  auto found = times.find(name);
  return found == times.end() ? -1 : found->second;
}

}  // namespace sim
