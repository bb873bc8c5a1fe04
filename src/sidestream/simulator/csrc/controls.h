// What Python sees of the simulator, and the counters behind it.
#pragma once
#include <pybind11/pytypes.h>

#include "race_detector.h"

namespace sim {
pybind11::tuple to_python(const Report& report);  // GIL held
}  // namespace sim
