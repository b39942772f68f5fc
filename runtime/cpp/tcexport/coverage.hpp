// Does a bundle serve the ranges that a deployer promises? Proved at load, or answered with a call that
// would be refused (runtime/coverage.py, artifacts/parts.py).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "contract.hpp"
#include "error.hpp"
#include "prove.hpp"

namespace tcexport {

using Serves = std::vector<std::pair<std::string, Range>>;  // by dim

namespace detail {

inline Box BoxOf(const Terms& terms) {
  Box box;
  for (const Dim& dim : terms.dims) box[dim.name] = {dim.lo, dim.hi, dim.step};
  return box;
}

inline Expr Made(const std::string& op, std::vector<Expr> operands) {
  Expr made;
  made.op = op;
  made.operands = std::move(operands);
  return made;
}

inline Expr Number(Wide value) {
  Expr made;
  made.number = value;
  return made;
}

inline Expr Named(const std::string& dim) {
  Expr made;
  made.op = "name", made.name = dim;
  return made;
}

/// The ranges and guards of a contract, as far as the sizes of a box do not meet them anyway. (Values of
/// tensors are not sizes.)
inline Expr Takes(const Terms& terms, const Box& box) {
  std::vector<Expr> conditions;
  for (const Dim& dim : terms.dims) {
    conditions.push_back(Made(">=", {Named(dim.name), Number(dim.lo)}));
    if (dim.hi) conditions.push_back(Made("<=", {Named(dim.name), Number(*dim.hi)}));
    if (dim.step != 1) {
      Expr above = Made("-", {Named(dim.name), Number(dim.lo)});
      conditions.push_back(Made("==", {Made("%", {above, Number(dim.step)}), Number(0)}));
    }
  }
  for (const Guard& guard : terms.guards) conditions.push_back(guard.expr);
  std::vector<Expr> needed = {Made("==", {Number(0), Number(0)})};
  for (const Expr& each : conditions)
    if (!ProvedByIntervals(each, box)) needed.push_back(each);
  return Made("and", needed);
}

/// Why a bundle does not serve what is asked of it: a line for each condition that is not proved.
class Coverage {
 public:
  /// Throws UsageError: TC006, a dim that is not there; TC008, a range that holds no size.
  Coverage(const Terms& terms, const std::vector<Terms>& routes, const Serves& serves)
      : box_(BoxOf(terms)) {
    Box asked;
    for (const auto& [name, range] : serves) {
      CheckAsked(terms, name, range);
      if (!asked.emplace(name, range).second)
        throw UsageError("TC008", "serves[" + Quoted(name) + "] is there twice");
      box_[name] = range;
    }
    for (const auto& [name, range] : serves)
      for (const Dim& dim : terms.dims)
        if (dim.name == name) Ranges(dim, range);
    for (const Guard& guard : terms.guards) {
      std::vector<std::string> names;
      guard.expr.Names(&names);
      if (std::any_of(names.begin(), names.end(), [&](const auto& name) { return asked.count(name); }))
        Judge(guard.expr.Render(), guard.origin, HoldsOn(guard.expr, box_));
    }
    if (!routes.back().whole) Variants(terms, routes);
  }

  const std::vector<std::string>& failures() const { return failures_; }

 private:
  static void CheckAsked(const Terms& terms, const std::string& name, const Range& range) {
    std::vector<std::string> known;
    for (const Dim& dim : terms.dims) known.push_back(dim.name);
    if (!std::count(known.begin(), known.end(), name))
      throw UsageError("TC006", "serves=" + Quoted(name) + ": no such dim",
                       {"dims: " + (known.empty() ? "none: every axis is fixed" : Join(known, ", "))});
    if (range.step < 1 || range.Count() == Wide(0)) {
      std::string shown = std::to_string(range.lo) + ", " +
                          (range.hi ? std::to_string(*range.hi) : "None") +
                          (range.step == 1 ? "" : ", " + std::to_string(range.step));
      throw UsageError("TC008", "serves[" + Quoted(name) + "]=(" + shown + "): holds no size");
    }
  }

  void Judge(const std::string& needs, const Origin& origin, const Verdict& verdict) {
    if (verdict.status == Verdict::kProved) return;
    std::vector<std::string> point;
    for (const auto& [name, size] : verdict.counterexample)
      point.push_back(name + "=" + detail::Text(size));
    bool refuted = verdict.status == Verdict::kRefuted;
    failures_.push_back((refuted ? Join(point, ", ") : "not decided") + ": " + needs + ", from " +
                        origin.text);
  }

  /// Both ends and the steps of a dim's own range, held against the sizes asked for.
  void Ranges(const Dim& dim, const Range& asked) {
    const Wide lo = asked.lo, step = asked.step;
    std::optional<Wide> count = asked.Count();
    auto judge = [&](const std::string& needs, const Origin& origin, std::optional<Wide> first) {
      if (first) Judge(dim.name + " " + needs, origin, {Verdict::kRefuted, {{dim.name, *first}}});
    };
    if (lo < dim.lo) judge(">= " + std::to_string(dim.lo), dim.lo_from, lo);
    if (dim.hi) {
      Wide inside = lo > *dim.hi ? 0 : (*dim.hi - lo) / step + 1;
      std::optional<Wide> first;
      if (!count || *count > inside) first = lo + inside * step;
      judge("<= " + std::to_string(*dim.hi), dim.hi_from, first);
    }
    if (dim.step == 1) return;
    std::optional<Wide> off;  // two neighbours tell: if both lie on the dim's steps, all do
    for (Wide place = 0; !off && place < 2 && (!count || place < *count); ++place)
      if ((lo + place * step - dim.lo) % dim.step) off = lo + place * step;
    judge("in " + dim.Range(), dim.step_from ? *dim.step_from : dim.lo_from, off);
  }

  /// Where there is no code for all that the bundle serves: one of the variants takes each size.
  void Variants(const Terms& terms, const std::vector<Terms>& routes) {
    std::vector<Expr> each;
    for (const Terms& route : routes) each.push_back(Takes(route, box_));
    Expr one = each.size() == 1 ? each[0] : Made("or", each);
    for (const Guard& guard : terms.guards)  // what does not hold there is refused by the whole
      one = Made("or", {Made("not", {guard.expr}), one});
    static const Origin origin{"its variants, of which no one takes all sizes"};
    Judge("a variant takes the call", origin, HoldsOn(one, box_));
  }

  Box box_;
  std::vector<std::string> failures_;
};

/// Throws BundleError: TC406, a size that is asked for is not served, or that cannot be decided;
/// UsageError: as `Coverage`.
inline void CheckServes(const Terms& terms, const std::vector<Terms>& routes, const Serves& serves,
                        const std::string& path) {
  std::vector<std::string> notes = Coverage(terms, routes, serves).failures();
  if (notes.empty()) return;
  std::vector<std::string> wanted, held;
  for (const auto& [name, range] : serves) wanted.push_back(name + "=" + range.Text());
  for (const Dim& dim : terms.dims) held.push_back(dim.name + "=" + dim.Range());
  notes.push_back("the bundle serves: " + Join(held, ", "));
  throw BundleError("TC406", path + " does not serve " + Join(wanted, ", "), notes,
                    {"ask for less, or export with a wider --dynamic"});
}

}  // namespace detail
}  // namespace tcexport
