// What is refused, and in which words.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

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
    std::string text = (guard ? "[" : "error[") + code + "] " + message;
    for (const auto& note : notes) text += "\n  " + note;
    for (const auto& attempt : tries) text += "\n  try: " + attempt;
    return text;
  }
};

/// The file cannot be trusted or run here (TC401 to TC407).
class BundleError : public Error {
 public:
  BundleError(std::string code, std::string message, std::vector<std::string> notes = {},
              std::vector<std::string> tries = {})
      : Error(std::move(code), std::move(message), std::move(notes), std::move(tries), false) {}
};

/// The call lies outside the contract (TC302 to TC312). Nothing was run, but for computed indices.
class GuardError : public Error {
 public:
  GuardError(std::string code, std::string message, std::vector<std::string> notes = {},
             std::vector<std::string> tries = {})
      : Error(std::move(code), std::move(message), std::move(notes), std::move(tries), true) {}
};

/// The compiled code failed (TC601).
class InternalError : public Error {
 public:
  explicit InternalError(std::string message) : Error("TC601", std::move(message), {}, {}, false) {}
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
