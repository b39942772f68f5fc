// What is refused, and in which words.
#pragma once

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "text.hpp"

namespace tcexport {

using Wide = __int128;

/// A refusal with a code (`tcexport explain TC301`). what() is the text that Python shows.
class Error : public std::runtime_error {
 public:
  Error(std::string code, std::string message, std::vector<std::string> notes,
        std::vector<std::string> tries, bool guard)
      : std::runtime_error(Render(code, message, notes, tries, guard)),
        code(std::move(code)), message(std::move(message)), notes(std::move(notes)),
        tries(std::move(tries)) {}
  const std::string code, message;
  const std::vector<std::string> notes, tries;

 private:
  static std::string Render(const std::string& code, const std::string& message,
                            const std::vector<std::string>& notes,
                            const std::vector<std::string>& tries, bool guard) {
    using detail::Printable;
    std::string text = Printable((guard ? "[" : "error[") + code + "] " + message);
    for (const auto& note : notes) text += "\n  " + Printable(note);
    for (const auto& attempt : tries) text += "\n  try: " + Printable(attempt);
    return text;
  }
};

/// The file cannot be trusted or run here (TC401 to TC410).
class BundleError : public Error {
 public:
  BundleError(std::string code, std::string message, std::vector<std::string> notes = {},
              std::vector<std::string> tries = {})
      : Error(std::move(code), std::move(message), std::move(notes), std::move(tries), false) {}
};

/// The condition that a call broke: argument and axis, what came, what is needed; and the guard in the
/// same words for every call, so that violations can be counted.
struct Broken {
  std::string where, got, needs, guard;
};

/// The call lies outside the contract (TC301 to TC320). Nothing was run, but for computed indices.
class GuardError : public Error {
 public:
  GuardError(std::string code, std::string message, std::vector<std::string> notes,
             std::vector<std::string> tries, Broken broken)
      : Error(std::move(code), std::move(message), std::move(notes), std::move(tries), true),
        broken(std::move(broken)) {}
  const Broken broken;
};

/// What was asked does not fit: state and sessions (TC321 to TC325), keys (TC011, TC014), and numbers
/// of threads (TC008).
class UsageError : public Error {
 public:
  UsageError(std::string code, std::string message, std::vector<std::string> notes = {},
             std::vector<std::string> tries = {})
      : Error(std::move(code), std::move(message), std::move(notes), std::move(tries), false) {}
};

/// The compiled code failed (TC601), or memory is short (TC602).
class InternalError : public Error {
 public:
  explicit InternalError(std::string message, std::string code = "TC601",
                         std::vector<std::string> tries = {})
      : Error(std::move(code), std::move(message), {}, std::move(tries), false) {}
};

namespace detail {

[[noreturn]] inline void NotABundle(const std::string& path, const std::string& reason) {
  throw BundleError("TC401", path + " is not a bundle: " + reason, {},
                    {"fetch or export it again"});
}

inline std::string Join(const std::vector<std::string>& parts, const std::string& with) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) text += (i ? with : "") + parts[i];
  return text;
}

inline std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char each) { return static_cast<char>(std::tolower(each)); });
  return text;
}

inline std::string Text(Wide value) {
  if (value == 0) return "0";
  bool negative = value < 0;
  std::string digits;
  while (value != 0) {
    int digit = static_cast<int>(value % 10);
    digits += static_cast<char>('0' + (digit < 0 ? -digit : digit));
    value /= 10;
  }
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

}  // namespace detail

}  // namespace tcexport
