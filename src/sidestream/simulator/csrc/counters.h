// How often each operation was enqueued.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace sim {

void count(const char* operation);  // interned
std::map<std::string, int64_t> operation_counts(bool clear);

}  // namespace sim
