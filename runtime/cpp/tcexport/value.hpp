// What goes into a call and comes out of it: tensors, and values that are none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tvm/ffi/container/tensor.h>

#include "text.hpp"

namespace tcexport {

/// A value that is no tensor, as the contract spells it: by type and text.
struct Plain {
  std::string type, text;
  static Plain None() { return {"none", "None"}; }
  static Plain Of(bool value) { return {"bool", value ? "True" : "False"}; }
  static Plain Of(int64_t value) { return {"int", std::to_string(value)}; }
  static Plain Of(int value) { return {"int", std::to_string(value)}; }
  static Plain Of(double value) { return {"float", detail::FloatText(value)}; }
  static Plain Of(std::string value) { return {"str", std::move(value)}; }
  static Plain Of(const char* value) { return {"str", value}; }
  bool operator==(const Plain& other) const { return type == other.type && text == other.text; }
  /// As Python shows it: `3 (int)`, `'mean' (str)`, `None`; no more than `most` characters of it.
  std::string Shown(size_t most = std::string::npos) const {
    if (type == "none") return "None";
    return (type == "str" ? detail::Quoted(text, most) : text.substr(0, most)) + " (" + type + ")";
  }

};

using Argument = std::variant<tvm::ffi::Tensor, Plain>;
using Arguments = std::map<std::string, Argument>;  // by path
using Result = std::variant<tvm::ffi::Tensor, Plain>;
/// By path, in the contract's order. `variant` is the one that served, where the bundle has variants.
struct Results : std::vector<std::pair<std::string, Result>> {
  std::string variant = {};
};
using State = std::map<std::string, tvm::ffi::Tensor>;        // by name

}  // namespace tcexport
