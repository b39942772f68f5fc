// How weights were made of a model's parameters (artifacts/recipes.py): nothing that this host runs, and
// held to all the same, so that a file is sound for every reader or for none.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "json.hpp"
#include "text.hpp"

namespace tcexport {
namespace detail {

/// A recipe: the name of a parameter, or a step, what it takes, and numbers.
class RecipeReader {
 public:
  /// The parameters that a recipe takes. Throws Malformed: it is none.
  static std::vector<std::string> Names(const Json& recipe) {
    RecipeReader reader;
    reader.Read(recipe, 0);
    return reader.names_;
  }

 private:
  struct Step {
    size_t operands;            // how many recipes it takes; the rest are numbers
    std::set<size_t> optional;  // which of them may be missing
  };

  static const std::map<std::string, Step>& Steps() {
    static const std::map<std::string, Step> steps = {
        {"reshape", {1, {}}},     {"transpose", {1, {}}},        {"rows", {1, {}}},
        {"panels", {1, {}}},      {"gate_panels", {1, {}}},      {"cast", {1, {}}},
        {"norm_weight", {3, {2}}}, {"norm_bias", {5, {0, 3, 4}}}};
    return steps;
  }

  void Read(const Json& node, int depth) {
    constexpr int kDeepest = 16;
    if (node.text()) return names_.push_back(node.String());
    if (depth > kDeepest || !node.list() || node.Items().empty())
      throw Malformed("not a recipe: " + node.Repr(80));
    const List& items = node.Items();
    auto known = items[0].text() ? Steps().find(items[0].String()) : Steps().end();
    if (known == Steps().end()) throw Malformed("unknown step " + items[0].Repr(40));
    const auto& [name, step] = *known;
    const List given(items.begin() + 1, items.end());
    if (given.size() < step.operands ||
        !Fits(name, List(given.begin() + static_cast<std::ptrdiff_t>(step.operands), given.end()))) {
      Json rest;
      rest.value = std::make_shared<List>(given);
      throw Malformed("step '" + name + "' with " + rest.Repr(80));
    }
    for (size_t at = 0; at < step.operands; ++at)
      if (!given[at].null() || !step.optional.count(at)) Read(given[at], depth + 1);
  }

  static bool IsSize(const Json& each) {
    return each.integer() && 0 <= each.Int() && each.Int() < int64_t(1) << 62;
  }

  static bool Fits(const std::string& step, const List& given) {
    constexpr int64_t kWidest = 1024;
    constexpr size_t kMostAxes = 32;
    const bool sizes = std::all_of(given.begin(), given.end(), IsSize);
    if (step == "rows") return given.size() == 2 && sizes;
    if (step == "gate_panels") {
      if (given.size() != 3 || !sizes) return false;
      const __int128 both = static_cast<__int128>(given[0].Int()) * given[1].Int();
      return 0 < both && both <= given[2].Int() && given[2].Int() <= kWidest;
    }
    if (given.size() != 1) return false;
    const Json& value = given[0];
    if (step == "reshape" || step == "transpose") {
      if (!value.list() || value.Items().size() > kMostAxes ||
          !std::all_of(value.Items().begin(), value.Items().end(), IsSize))
        return false;
      std::vector<int64_t> axes;
      for (const Json& each : value.Items()) axes.push_back(each.Int());
      std::sort(axes.begin(), axes.end());
      for (size_t at = 0; step == "transpose" && at < axes.size(); ++at)
        if (axes[at] != static_cast<int64_t>(at)) return false;
      return true;
    }
    if (step == "panels") return sizes && 0 < value.Int() && value.Int() <= kWidest;
    if (step == "cast") {
      static const std::set<std::string> floats = {"float16", "bfloat16", "float32", "float64"};
      return value.text() && floats.count(value.String());
    }
    return value.integer() || (value.real() && std::isfinite(value.Real()));
  }

  std::vector<std::string> names_;
};

/// Throws Malformed unless `parameters` of a manifest make sense.
inline void CheckParameters(const Json& parameters) {
  if (parameters.null()) return;
  parameters.Only({"sources", "recipes"});
  std::set<std::string> known;
  size_t count = 0;
  for (const Json& each : parameters["sources"].Items()) {
    each.Only({"name", "dtype", "shape", "aliases", "frozen", "reason"});
    for (const char* text : {"name", "dtype"}) each[text].String();
    for (const char* text : {"frozen", "reason"})
      if (const Json* found = each.Find(text)) found->String();
    for (const Json& size : each["shape"].Items()) size.Int();
    known.insert(each["name"].String()), ++count;
    for (const Json& alias : each.ListOf("aliases")) known.insert(alias.String()), ++count;
  }
  const Object& recipes = parameters["recipes"].Fields();
  if (known.size() != count) throw Malformed("two parameters of one name");
  std::vector<std::string> taken;
  for (const auto& [stored, recipe] : recipes)
    for (const auto& name : RecipeReader::Names(recipe)) taken.push_back(name);
  for (const auto& name : taken)
    if (!known.count(name))
      throw Malformed("a recipe takes " + Quoted(name) + ", which is no parameter");
}

}  // namespace detail
}  // namespace tcexport
