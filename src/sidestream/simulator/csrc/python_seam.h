// The seam to Python: which line of the program is running, and raising RaceError there.
#pragma once
#include <string>

#include "race_detector.h"

namespace sim {

// The number of the calling thread's Python line: the innermost frame outside torch and this
// package; in a backward pass, the node that runs. 0: unknown, or python_lines is off.
// Acquires the GIL for a moment: never call it with the runtime lock held.
int current_site();

// Operators are made of operators: the site is looked up once, in the outermost.
class SiteScope {
 public:
  SiteScope();
  ~SiteScope();
  SiteScope(const SiteScope&) = delete;
  SiteScope& operator=(const SiteScope&) = delete;

 private:
  bool outermost_;
};

std::string site_text(int site);  // "file.py:12", "backward of MulBackward0", ""; GIL held
void set_internal_paths(const std::vector<std::string>& prefixes);  // frames not to be named

[[noreturn]] void throw_race_error(const Report& report);

}  // namespace sim
