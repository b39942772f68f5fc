// Counts of calls (runtime/worker.py, runtime/told.py).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"
#include "expr.hpp"

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

namespace detail {

/// How many calls had which sizes.
class Seen {
 public:
  /// `names`: of the dims, in the contract's order.
  explicit Seen(std::vector<std::string> names) : names_(std::move(names)) {}

  void Count(const Dims& dims) {
    std::vector<Wide> sizes;
    for (const auto& name : names_) sizes.push_back(dims.at(name));
    auto [found, is_new] = places_.emplace(sizes, rows_.size());
    if (is_new) rows_.emplace_back(std::move(sizes), 0);
    ++rows_[found->second].second;
  }

  /// As JSON, the sizes of most calls first: `[{"batch": 1, "seq": 128, "calls": 12}]`.
  std::string Shown() const {
    auto rows = rows_;
    std::stable_sort(rows.begin(), rows.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    std::string text;
    for (const auto& [sizes, calls] : rows) {
      text += text.empty() ? "{" : ", {";
      for (size_t at = 0; at < sizes.size(); ++at)
        text += Key(names_[at]) + Text(sizes[at]) + ", ";
      text += Key("calls") + std::to_string(calls) + "}";
    }
    return "[" + text + "]";
  }

 private:
  /// A name, which can be shown, as the key of a field.
  static std::string Key(const std::string& name) {
    std::string text = "\"";
    for (char each : name) text += (each == '"' || each == '\\' ? "\\" : "") + std::string(1, each);
    return text + "\": ";
  }

  std::vector<std::string> names_;
  std::vector<std::pair<std::vector<Wide>, int64_t>> rows_;
  std::map<std::vector<Wide>, size_t> places_;
};

}  // namespace detail
}  // namespace tcexport
