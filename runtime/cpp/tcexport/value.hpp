// What goes into a call and comes out of it: tensors, and values that are none.
#pragma once

#include <charconv>
#include <cmath>
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
  static Plain Of(double value) { return {"float", Repr(value)}; }
  static Plain Of(std::string value) { return {"str", std::move(value)}; }
  static Plain Of(const char* value) { return {"str", value}; }
  bool operator==(const Plain& other) const { return type == other.type && text == other.text; }
  /// As Python shows it: `3 (int)`, `'mean' (str)`, `None`; no more than `most` characters of it.
  std::string Shown(size_t most = std::string::npos) const {
    if (type == "none") return "None";
    return (type == "str" ? detail::Quoted(text, most) : text.substr(0, most)) + " (" + type + ")";
  }

 private:
  /// Python's repr of a float, which a contract holds: the fewest digits that read back as the number,
  /// with an exponent below 1e-4 and from 1e16 on (PyOS_double_to_string, format 'r').
  static std::string Repr(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
    char digits[64];
    auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::scientific);
    std::string text(digits, end.ptr);
    int exponent = std::stoi(text.substr(text.find('e') + 1));
    if (exponent < -4 || exponent >= 16) return text;
    end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed);
    text.assign(digits, end.ptr);
    return text.find('.') == std::string::npos ? text + ".0" : text;
  }
};

using Argument = std::variant<tvm::ffi::Tensor, Plain>;
using Arguments = std::map<std::string, Argument>;  // by path
using Result = std::variant<tvm::ffi::Tensor, Plain>;
using Results = std::vector<std::pair<std::string, Result>>;  // by path, in the contract's order
using State = std::map<std::string, tvm::ffi::Tensor>;        // by name

}  // namespace tcexport
