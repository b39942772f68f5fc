// Expressions over dims (artifacts/expr.py).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"
#include "json.hpp"

namespace tcexport {
namespace detail {

using Dims = std::map<std::string, Wide>;

/// An expression has no value: a divisor is not positive, or 128 bits are too few.
struct NoValue : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A number, the name of a dim, or an operator and its operands (artifacts/expr.py).
struct Expr {
  std::string op;  // "" for a number, "name" for a dim
  Wide number = 0;
  std::string name;
  std::vector<Expr> operands;

  bool constant() const { return op.empty(); }
  bool dim() const { return op == "name"; }
  bool logic() const { return !constant() && !dim() && Level(op) <= 4 && op != "min" && op != "max"; }

  static Expr From(const Json& data, const std::set<std::string>& names) {
    int budget = 512;
    return Build(data, names, 0, &budget);
  }

  Wide Value(const Dims& dims) const {
    if (constant()) return number;
    if (dim()) return dims.at(name);
    std::vector<Wide> v;
    for (const Expr& operand : operands) v.push_back(operand.Value(dims));
    Wide total = v[0];
    auto fold = [&](auto step) {
      for (size_t i = 1; i < v.size(); ++i) total = step(total, v[i]);
      return total;
    };
    bool over = false;
    if (op == "+") fold([&](Wide a, Wide b) { return over |= __builtin_add_overflow(a, b, &a), a; });
    if (op == "*") fold([&](Wide a, Wide b) { return over |= __builtin_mul_overflow(a, b, &a), a; });
    if (op == "-") over = __builtin_sub_overflow(v[0], v[1], &total);
    if (over) throw NoValue("a number beyond 128 bits");
    if (op == "+" || op == "*" || op == "-") return total;
    if (op == "min") return *std::min_element(v.begin(), v.end());
    if (op == "max") return *std::max_element(v.begin(), v.end());
    if (op == "//" || op == "%") {
      if (v[1] <= 0)
        throw NoValue(op == "//" ? "division by a number that is not positive"
                                 : "modulus by a number that is not positive");
      Wide quotient = v[0] / v[1] - (v[0] % v[1] < 0 ? 1 : 0);
      return op == "//" ? quotient : v[0] - quotient * v[1];
    }
    if (op == "==") return v[0] == v[1];
    if (op == "!=") return v[0] != v[1];
    if (op == "<") return v[0] < v[1];
    if (op == "<=") return v[0] <= v[1];
    if (op == ">") return v[0] > v[1];
    if (op == ">=") return v[0] >= v[1];
    if (op == "and") return std::all_of(v.begin(), v.end(), [](Wide each) { return each != 0; });
    if (op == "or") return std::any_of(v.begin(), v.end(), [](Wide each) { return each != 0; });
    return !v[0];
  }

  bool Holds(const Dims& dims) const {
    try {
      return Value(dims) != 0;
    } catch (const NoValue&) {
      return false;
    }
  }

  /// The names in the order in which a person reads them.
  void Names(std::vector<std::string>* into) const {
    if (dim()) into->push_back(name);
    for (const Expr& operand : operands) operand.Names(into);
  }

  std::string Render() const { return Rendered().first; }

 private:
  static int Level(const std::string& op) {
    static const std::map<std::string, int> levels = {
        {"or", 1}, {"and", 2}, {"not", 3}, {"==", 4}, {"!=", 4}, {"<", 4},  {"<=", 4}, {">", 4},
        {">=", 4}, {"+", 5},   {"-", 5},   {"*", 6},  {"//", 6}, {"%", 6},  {"min", 9}, {"max", 9}};
    auto found = levels.find(op);
    return found == levels.end() ? 0 : found->second;
  }

  static Expr Build(const Json& data, const std::set<std::string>& names, int depth, int* budget) {
    if (depth > 48 || --*budget < 0) throw Malformed("expression too large");
    Expr made;
    if (data.integer()) {
      made.number = data.Int();
      if (data.Int() == std::numeric_limits<int64_t>::min())
        throw Malformed("number out of range: " + Text(made.number));
      return made;
    }
    if (data.text()) {
      made.op = "name";
      made.name = data.String();
      if (!names.count(made.name)) throw Malformed("unknown dim " + Quoted(made.name));
      return made;
    }
    if (!data.list() || data.Items().empty() || !data.Items()[0].text())
      throw Malformed("not an expression: " + data.Repr(80));
    const List& items = data.Items();
    made.op = items[0].String();
    int level = Level(made.op);
    if (!level) throw Malformed("unknown operator " + Quoted(made.op, 20));
    size_t count = items.size() - 1;
    bool many = made.op == "+" || made.op == "*" || level == 9 || level <= 2;
    size_t low = made.op == "not" ? 1 : 2, high = made.op == "not" ? 1 : many ? 64 : 2;
    if (count < low || count > high)
      throw Malformed("operator '" + made.op + "' with " + std::to_string(count) + " operands");
    for (size_t i = 1; i < items.size(); ++i) {
      made.operands.push_back(Build(items[i], names, depth + 1, budget));
      if (made.operands.back().logic() != (level <= 3))
        throw Malformed("operator '" + made.op + "' mixes numbers and conditions");
    }
    return made;
  }

  std::pair<std::string, int> Rendered() const {
    if (constant()) return {Text(number), number >= 0 ? 9 : 5};
    if (dim()) return {name, 9};
    int level = Level(op);
    std::vector<std::string> parts;
    if (level == 9) {
      for (const Expr& operand : operands) parts.push_back(operand.Render());
      return {op + "(" + Join(parts, ", ") + ")", 9};
    }
    if (op == "not") {
      auto [text, inner] = operands[0].Rendered();
      return {inner > level ? "not " + text : "not (" + text + ")", level};
    }
    for (size_t i = 0; i < operands.size(); ++i) {
      auto [text, inner] = operands[i].Rendered();
      bool tight = inner > level || (inner == level && i == 0 && level >= 5);
      parts.push_back(tight ? text : "(" + text + ")");
    }
    return {Join(parts, op == "*" ? "*" : " " + op + " "), level};
  }
};

}  // namespace detail
}  // namespace tcexport
