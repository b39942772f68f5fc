// Does an expression hold for every size of a box? By intervals, or by looking at every point
// (artifacts/prove.py). What neither settles is unknown.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"
#include "expr.hpp"

namespace tcexport {

/// Sizes `lo`, `lo + step`, … up to `hi` (none: without end).
struct Range {
  int64_t lo = 0;
  std::optional<int64_t> hi = std::nullopt;
  int64_t step = 1;

  std::string Text() const {
    std::string text = std::to_string(lo) + ".." + (hi ? std::to_string(*hi) : "");
    return step == 1 ? text : text + ":" + std::to_string(step);
  }
  /// How many sizes it holds; none without an end.
  std::optional<Wide> Count() const {
    if (!hi) return std::nullopt;
    return *hi < lo ? 0 : (Wide(*hi) - lo) / step + 1;
  }
};

namespace detail {

using Box = std::map<std::string, Range>;

/// A number, or infinity of either sign. What 128 bits cannot hold is infinite: as a bound, that is true.
struct Bound {
  Wide value = 0;
  int infinite = 0;  // its sign

  static Bound Infinity(int sign) { return {0, sign}; }
  int Sign() const { return infinite ? infinite : (value > 0) - (value < 0); }
  Bound operator-() const { return {-value, -infinite}; }
  Bound operator+(const Bound& other) const {
    if (infinite || other.infinite) return Infinity(infinite ? infinite : other.infinite);
    Wide sum = 0;
    bool over = __builtin_add_overflow(value, other.value, &sum);
    return over ? Infinity(value < 0 ? -1 : 1) : Bound{sum};
  }
  Bound operator*(const Bound& other) const {
    int sign = Sign() * other.Sign();
    if (!sign) return {};
    Wide product = 0;
    bool over = infinite || other.infinite ||
                __builtin_mul_overflow(value, other.value, &product);
    return over ? Infinity(sign) : Bound{product};
  }
  /// Divided by what is positive, rounded down.
  Bound Floor(const Bound& by) const {
    if (infinite) return *this;
    if (by.infinite) return {Sign() >= 0 ? 0 : -1};
    return {value / by.value - (value % by.value < 0 ? 1 : 0)};
  }
  bool operator<(const Bound& other) const {
    if (infinite != other.infinite) return infinite < other.infinite;
    return !infinite && value < other.value;
  }
  bool operator==(const Bound& other) const {
    return infinite == other.infinite && (infinite || value == other.value);
  }
  bool operator<=(const Bound& other) const { return !(other < *this); }
};

using Interval = std::pair<Bound, Bound>;

/// The least and the greatest that `join` makes of ends of two intervals.
template <typename F>
Interval Corners(const Interval& one, const Interval& other, F join) {
  std::vector<Bound> corners;
  for (const Bound& a : {one.first, one.second})
    for (const Bound& b : {other.first, other.second}) corners.push_back(join(a, b));
  auto [low, high] = std::minmax_element(corners.begin(), corners.end());
  return {*low, *high};
}

/// An interval that holds the value of an arithmetic expression; infinite where it is open.
inline Interval BoundsOf(const Expr& expr, const Box& box) {
  if (expr.constant()) return {{expr.number}, {expr.number}};
  if (expr.dim()) {
    const Range& range = box.at(expr.name);
    return {{range.lo}, range.hi ? Bound{*range.hi} : Bound::Infinity(1)};
  }
  const Bound zero{};
  Interval all = BoundsOf(expr.operands[0], box);
  for (size_t at = 1; at < expr.operands.size(); ++at) {
    Interval next = BoundsOf(expr.operands[at], box);
    auto& [low, high] = all;
    const auto& [a, b] = next;
    if (expr.op == "+") {
      all = {low + a, high + b};
    } else if (expr.op == "-") {
      all = {low + -b, high + -a};
    } else if (expr.op == "*") {
      all = Corners(all, next, [](const Bound& x, const Bound& y) { return x * y; });
    } else if (expr.op == "min") {
      all = {std::min(low, a), std::min(high, b)};
    } else if (expr.op == "max") {
      all = {std::max(low, a), std::max(high, b)};
    } else if (expr.op == "//" && zero < a) {
      all = Corners(all, next, [](const Bound& x, const Bound& y) { return x.Floor(y); });
    } else if (expr.op == "%" && zero < a) {
      if (!(zero <= low && high < a)) all = {zero, b + Bound{-1}};
    } else {
      return {Bound::Infinity(-1), Bound::Infinity(1)};
    }
  }
  return all;
}

inline bool DividesSafely(const Expr& expr, const Box& box) {
  if ((expr.op == "//" || expr.op == "%") && BoundsOf(expr.operands[1], box).first <= Bound{})
    return false;
  return std::all_of(expr.operands.begin(), expr.operands.end(),
                     [&](const Expr& operand) { return DividesSafely(operand, box); });
}

/// Whether interval arithmetic alone shows that a condition holds on a box.
inline bool ProvedByIntervals(const Expr& expr, const Box& box) {
  if (!expr.logic() || !DividesSafely(expr, box)) return false;
  auto proved = [&](const Expr& operand) { return ProvedByIntervals(operand, box); };
  const auto& operands = expr.operands;
  if (expr.op == "and") return std::all_of(operands.begin(), operands.end(), proved);
  if (expr.op == "or") return std::any_of(operands.begin(), operands.end(), proved);
  if (expr.op == "not") return false;
  auto [a, b] = BoundsOf(operands[0], box);
  auto [c, d] = BoundsOf(operands[1], box);
  if (expr.op == "==") return a == b && b == c && c == d && !a.infinite;
  if (expr.op == "!=") return b < c || d < a;
  if (expr.op == "<") return b < c;
  if (expr.op == "<=") return b <= c && !b.infinite;
  if (expr.op == ">") return d < a;
  return d <= a && !a.infinite;
}

/// A bound on every number on the way to an expression's value, whatever the divisors are.
inline Bound Magnitude(const Expr& expr, const Box& box) {
  auto size = [](const Bound& bound) { return std::max(bound, -bound); };
  if (expr.constant()) return size({expr.number});
  if (expr.dim()) {
    const Range& range = box.at(expr.name);
    return range.hi ? std::max(size({range.lo}), size({*range.hi})) : Bound::Infinity(1);
  }
  Bound all{expr.op == "*"};
  for (const Expr& operand : expr.operands) {
    Bound side = Magnitude(operand, box);
    if (expr.op == "+" || expr.op == "-")
      all = all + side;
    else
      all = expr.op == "*" ? all * std::max(side, Bound{1}) : std::max(all, side);
  }
  return all;
}

/// An expression over numbered dims, whose numbers all fit into 64 bits: for millions of points.
class Compiled {
 public:
  Compiled(const Expr& expr, const std::vector<std::string>& names)
      : op_(OpOf(expr)), number_(static_cast<int64_t>(expr.number)) {
    if (expr.dim())
      number_ = std::find(names.begin(), names.end(), expr.name) - names.begin();
    for (const Expr& operand : expr.operands) operands_.emplace_back(operand, names);
  }

  /// Sets `*valid` to false where a divisor is not positive.
  int64_t Value(const int64_t* sizes, bool* valid) const {
    if (op_ == kNumber) return number_;
    if (op_ == kDim) return sizes[number_];
    int64_t value = operands_[0].Value(sizes, valid);
    if (op_ == kNot) return !value;
    for (size_t at = 1; at < operands_.size(); ++at)
      value = Step(value, operands_[at].Value(sizes, valid), valid);
    return value;
  }

 private:
  enum Op { kNumber, kDim, kNot, kAdd, kSubtract, kMultiply, kDivide, kModulo, kMin, kMax,
            kEqual, kUnequal, kLess, kAtMost, kMore, kAtLeast, kAnd, kOr };  // as in `OpOf`

  static Op OpOf(const Expr& expr) {
    static const char* const names[] = {"", "name", "not", "+", "-", "*", "//", "%", "min", "max",
                                        "==", "!=", "<", "<=", ">", ">=", "and", "or"};
    auto found = std::find(std::begin(names), std::end(names), expr.op);
    return static_cast<Op>(found - std::begin(names));
  }

  int64_t Step(int64_t a, int64_t b, bool* valid) const {
    switch (op_) {
      case kAdd: return a + b;
      case kSubtract: return a - b;
      case kMultiply: return a * b;
      case kDivide:
      case kModulo: {
        if (b <= 0) {
          *valid = false;
          return 0;
        }
        int64_t quotient = a / b - (a % b < 0 ? 1 : 0);
        return op_ == kDivide ? quotient : a - quotient * b;
      }
      case kMin: return std::min(a, b);
      case kMax: return std::max(a, b);
      case kEqual: return a == b;
      case kUnequal: return a != b;
      case kLess: return a < b;
      case kAtMost: return a <= b;
      case kMore: return a > b;
      case kAtLeast: return a >= b;
      case kAnd: return a && b;
      default: return a || b;
    }
  }

  Op op_;
  int64_t number_;
  std::vector<Compiled> operands_;
};

struct Verdict {
  enum { kProved, kRefuted, kUnknown } status = kUnknown;
  std::vector<std::pair<std::string, Wide>> counterexample = {};
};

/// Whether a condition holds at every point of a box. A division by what is not positive fails.
inline Verdict HoldsOn(const Expr& expr, const Box& box) {
  if (ProvedByIntervals(expr, box)) return {Verdict::kProved};
  std::vector<std::string> all;
  expr.Names(&all);
  std::set<std::string> sorted(all.begin(), all.end());
  std::vector<std::string> names(sorted.begin(), sorted.end());
  constexpr Wide kMostPoints = 20'000'000, kLimit = Wide(1) << 63;
  Wide points = 1;
  for (const auto& name : names) {
    std::optional<Wide> count = box.at(name).Count();
    if (!count || *count > kMostPoints || (points *= *count) > kMostPoints) return {};
  }
  if (!(Magnitude(expr, box) < Bound{kLimit})) return {};
  const Compiled compiled(expr, names);
  std::vector<int64_t> sizes;
  for (const auto& name : names) sizes.push_back(box.at(name).lo);
  for (Wide point = 0; point < points; ++point) {
    bool valid = true;
    if (!compiled.Value(sizes.data(), &valid) || !valid) {
      Verdict found{Verdict::kRefuted};
      for (size_t at = 0; at < names.size(); ++at)
        found.counterexample.emplace_back(names[at], sizes[at]);
      return found;
    }
    for (size_t at = names.size(); at-- > 0;) {
      const Range& range = box.at(names[at]);
      Wide next = Wide(sizes[at]) + range.step;
      sizes[at] = next <= *range.hi ? static_cast<int64_t>(next) : range.lo;
      if (next <= *range.hi) break;
    }
  }
  return {Verdict::kProved};
}

}  // namespace detail
}  // namespace tcexport
