#include <Python.h>
// Python.h comes first, as it asks.
#include <pybind11/pybind11.h>
#if __has_include(<torch/csrc/autograd/node.h>)
#include <torch/csrc/autograd/node.h>
#else  // before torch 2.13
#include <torch/csrc/autograd/function.h>
#endif

#include <exception>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "controls.h"
#include "python_seam.h"
#include "runtime.h"
#include "settings.h"

namespace py = pybind11;

namespace sim {
namespace {

struct Site {
  PyCodeObject* code;  // owned for ever: the table is bounded by the size of the program
  int position;        // offset of the instruction, or the line before Python 3.11
  std::string text;    // where there is no code
};
struct Key {
  const void* where;
  int position;
  bool operator==(const Key& other) const {
    return where == other.where && position == other.position;
  }
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    return std::hash<const void*>()(key.where) * 31 + size_t(key.position);
  }
};
struct Sites {
  std::mutex mutex;  // a leaf: no Python call is made under it
  std::vector<Site> all{Site{nullptr, 0, ""}};
  std::unordered_map<Key, int, KeyHash> numbers;
  // GIL:
  std::unordered_map<PyCodeObject*, bool> internal;
  std::vector<std::string> internal_prefixes;
};
Sites& sites() {
  static auto* instance = new Sites;
  return *instance;
}

int number_of(const Key& key, Site site) {
  std::lock_guard<std::mutex> lock(sites().mutex);
  auto [entry, inserted] = sites().numbers.emplace(key, int(sites().all.size()));
  if (inserted) {
    Py_XINCREF(site.code);
    sites().all.push_back(std::move(site));
  }
  return entry->second;
}

bool is_internal(PyCodeObject* code) {
  auto known = sites().internal.find(code);
  if (known != sites().internal.end()) return known->second;
  auto file =
      py::cast<std::string>(py::handle(reinterpret_cast<PyObject*>(code)).attr("co_filename"));
  bool internal = false;
  for (const auto& prefix : sites().internal_prefixes)
    internal |= file.compare(0, prefix.size(), prefix) == 0;
  Py_INCREF(code);  // an address in the table must not come to mean another code object
  return sites().internal[code] = internal;
}

int position_in(PyFrameObject* frame) {
#if PY_VERSION_HEX >= 0x030B0000
  return PyFrame_GetLasti(frame);
#else
  return PyFrame_GetLineNumber(frame);
#endif
}

int site_of_frames() {  // GIL held
  int innermost = 0;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    bool internal = is_internal(code);
    int number = 0;
    if (!internal || !innermost)
      number = number_of({code, position_in(frame)}, {code, position_in(frame), ""});
    Py_DECREF(code);
    if (!innermost) innermost = number;
    PyFrameObject* back = internal ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    if (!internal) return number;
    frame = back;
  }
  return innermost;  // torch's own threads, such as the one that fills page-locked memory
}

int site_of_backward(const torch::autograd::Node& node) {
  const char* name = intern("backward of " + node.name());
  return number_of({name, 0}, {nullptr, 0, name});
}

thread_local int scope_site = -1;  // -1: no scope

int look_up_site() {
  // A backward pass holds locks of the autograd engine: the GIL must not be acquired there.
  if (auto node = torch::autograd::get_current_node()) return site_of_backward(*node);
  if (!PyGILState_GetThisThreadState()) return 0;  // not a thread of Python's
  auto gil = PyGILState_Ensure();
  int site = site_of_frames();
  PyGILState_Release(gil);
  return site;
}

}  // namespace

int current_site() {
  if (scope_site >= 0) return scope_site;
  if (settings().python_lines == 0 || is_down()) return 0;
  return look_up_site();
}

SiteScope::SiteScope() : outermost_(scope_site < 0) {
  if (outermost_) scope_site = current_site();
}
SiteScope::~SiteScope() {
  if (outermost_) scope_site = -1;
}

std::string site_text(int number) {
  Site site;
  {
    std::lock_guard<std::mutex> lock(sites().mutex);
    site = sites().all.at(number);
  }
  if (!site.code) return site.text;
#if PY_VERSION_HEX >= 0x030B0000
  int line = PyCode_Addr2Line(site.code, site.position);
#else
  int line = site.position;
#endif
  auto code = py::handle(reinterpret_cast<PyObject*>(site.code));
  return py::cast<std::string>(code.attr("co_filename")) + ":" + std::to_string(line);
}

void set_internal_paths(const std::vector<std::string>& prefixes) {
  sites().internal_prefixes = prefixes;
}

// torch's bindings and pybind11's both hand this exception on to Python as it is, also from the
// threads of a backward pass.
void throw_race_error(const Report& report) {
  py::gil_scoped_acquire gil;
  py::module_::import("sidestream.simulator._races").attr("raise_error")(to_python(report));
  std::terminate();  // raise_error has thrown py::error_already_set
}

}  // namespace sim
