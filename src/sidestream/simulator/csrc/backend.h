// What torch asks of a device.
#pragma once
#include <ATen/core/Generator.h>

#include <cstdint>

namespace sim {

void register_hooks();  // from here on torch knows an accelerator
const at::Generator& default_generator(int device);
int64_t event_time_ns(void* event);  // virtual time at which the event's latest recording was done

}  // namespace sim
