// The variants of a bundle: which one takes a call, and why not another (runtime/variants.py).
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "checks.hpp"
#include "contract.hpp"
#include "error.hpp"
#include "expr.hpp"
#include "manifest.hpp"

namespace tcexport {
namespace detail {

/// Makes one of a bundle's variants all that there is of it. Throws UsageError: TC006, there is none.
inline void Pin(Manifest* manifest, const std::string& name, const std::string& path) {
  std::vector<std::string> names;
  for (const Terms& route : manifest->routes)
    if (manifest->variants) names.push_back(route.name);
  auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    throw UsageError("TC006", "variant=" + Quoted(name) + ": " + path + " has no such variant",
                     {"variants: " + (names.empty() ? "none" : Join(names, ", "))});
  size_t number = static_cast<size_t>(found - names.begin());
  auto alone = [number](const std::vector<Terms>& routes) {
    std::vector<Terms> kept = {routes[number]};
    kept[0].whole = true;
    return kept;
  };
  std::vector<Target> targets;
  for (Target& target : manifest->targets) {
    if (target.one) continue;  // its function is that of no variant
    if (!target.own.empty()) target.own = alone(target.own);
    targets.push_back(std::move(target));
  }
  manifest->targets = std::move(targets);
  manifest->routes = alone(manifest->routes);
  manifest->terms = manifest->routes[0];
}

/// The route that takes a call: its number, and the values of its dims and of the bundle's.
struct Chosen {
  size_t number;
  Dims dims, all;
};

/// The route that takes a call.
///
/// Throws GuardError: the first condition of `whole` that is not met; TC320, all are, and each of the
/// routes needs another thing.
inline Chosen Choice(const std::vector<Terms>& routes, const Terms& whole,
                     const Checks::Tensors& leaves) {
  Dims dims = Checks(whole).Explain(leaves);
  std::vector<GuardError> reasons;
  for (size_t number = 0; number < routes.size(); ++number) {
    Checks checks(routes[number]);
    try {
      Dims here = routes[number].whole ? dims : checks.Explain(leaves);
      checks.CheckSizes(here, leaves);
      return {number, here, dims};
    } catch (const GuardError& error) {
      reasons.push_back(error);
    }
  }
  if (routes.back().whole) throw reasons.back();
  std::vector<std::string> needs, notes;
  for (size_t number = 0; number < routes.size(); ++number) {
    const GuardError& error = reasons[number];
    if (!std::count(needs.begin(), needs.end(), error.broken.needs))
      needs.push_back(error.broken.needs);
    std::string told = error.message;
    for (const std::string& note : error.notes)
      if (note.rfind("from: ", 0) == 0) told += "; " + note;
    notes.push_back("variant " + routes[number].name + ": " + told);
  }
  const Broken& first = reasons[0].broken;
  std::string needed = Join(needs, "; or ");
  throw GuardError("TC320",
                   first.where + ": got " + first.got + ", which no variant takes: it needs " + needed,
                   notes, {}, {first.where, first.got, needed, first.where + ": " + needed});
}

}  // namespace detail
}  // namespace tcexport
