// Counts of calls (runtime/worker.py, runtime/told.py).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "error.hpp"

namespace tcexport {

/// Counts since a model was loaded, its sessions' calls among them. `copies` are inputs that had to be
/// copied (strided or unaligned), `copied_bytes` their size; `violations` counts refused calls by code,
/// and `guards` by the guard that refused; `seconds` were spent in compiled code; `variants` counts the
/// calls that each variant served, where there are several.
struct Metrics {
  int64_t calls = 0, copies = 0, copied_bytes = 0;
  double seconds = 0;
  std::map<std::string, int64_t> violations, guards, variants;

  void Refused(const GuardError& error) {
    ++violations[error.code];
    ++guards[error.broken.guard];
  }
};

}  // namespace tcexport
