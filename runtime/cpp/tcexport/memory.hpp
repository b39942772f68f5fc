// A limit of memory, which is held before calls run (runtime/memory.py).
#pragma once

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "coverage.hpp"
#include "error.hpp"
#include "manifest.hpp"
#include "prove.hpp"

namespace tcexport {
namespace detail {

/// As Python shows a number of bytes that may be a bound: `{:.0f}`.
inline std::string Bytes(const Bound& bound) {
  return bound.infinite ? bound.infinite < 0 ? "-inf" : "inf" : Text(bound.value);
}

/// Holds calls of a target within `limit` bytes, by guards like the others. Where there are variants,
/// each has its own.
///
/// Throws UsageError: TC008, the limit is no positive number, or the bundle does not say what it needs;
/// BundleError: TC406, no call at all is within the limit.
inline void LimitMemory(Manifest* manifest, const Target& target, int64_t limit,
                        const std::string& path) {
  const std::string asked = "memory_limit=" + std::to_string(limit);
  if (limit < 1) throw UsageError("TC008", asked + ": needs a number of bytes from 1");
  std::string reason =
      "sizes within the model depend on data or are too many, or an older tcexport made it";
  if (!target.own.empty())
    reason = "what it says is of other functions than those of " + target.name;
  std::optional<Bound> least;
  for (Terms& route : manifest->routes) {
    if (!route.memory || !target.own.empty())
      throw UsageError("TC008", asked + ": " + path + " does not say what a call needs", {reason},
                       {"a limit of the process: ulimit -v, MemoryMax="});
    Bound most = route.memory->empty() ? Bound{} : Bound::Infinity(-1);
    for (const Expr& bytes : *route.memory) {
      most = std::max(most, BoundsOf(bytes, BoxOf(route)).first);
      Guard guard{Made("<=", {bytes, Number(limit)}), {"load(" + asked + ")"}};
      route.guards.push_back(guard);
      if (!manifest->variants) manifest->terms.guards.push_back(guard);
    }
    least = least ? std::min(*least, most) : most;
    if (manifest->variants) route.whole = false;
  }
  if (Bound{limit} < *least)
    throw BundleError("TC406",
                      path + ": a call needs " + Bytes(*least) + " bytes at the least, " + asked, {},
                      {"memory_limit=" + Bytes(*least)});
}

/// Bytes of memory that the process has in use; none where the system does not tell.
inline std::optional<int64_t> Resident() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, pages = 0;
  if (!(file >> size >> pages)) return std::nullopt;
  return pages * sysconf(_SC_PAGESIZE);
}

/// Lets go of what `drop` drops, and of what the C library keeps of memory that was used. By how many
/// bytes the process became smaller; none where the system does not tell.
template <typename F>
std::optional<int64_t> GiveBack(F drop) {
  std::optional<int64_t> before = Resident();
  drop();
  malloc_trim(0);
  std::optional<int64_t> after = Resident();
  if (!before || !after) return std::nullopt;
  return std::max<int64_t>(0, *before - *after);
}

}  // namespace detail
}  // namespace tcexport
