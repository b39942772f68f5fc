// What is refused, and in which words.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tcexport {

using Wide = __int128;

namespace detail {

/// Text of a file as it can be shown: what would move the cursor, end the line or turn the direction
/// is spelled out (artifacts/names.py).
inline std::string Printable(const std::string& text) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    auto byte = [&](size_t ahead) {
      return at + ahead < text.size() ? static_cast<unsigned char>(text[at + ahead]) : 0u;
    };
    unsigned head = byte(0), code = head;
    size_t length = 1;
    if (head >= 0xC2 && head < 0xE0 && byte(1) >> 6 == 2)
      code = (head & 31) << 6 | (byte(1) & 63), length = 2;
    if (head >= 0xE0 && head < 0xF0 && byte(1) >> 6 == 2 && byte(2) >> 6 == 2)
      code = (head & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63), length = 3;
    bool control = (code < 32 && code != '\t') || (code >= 0x7F && code < 0xA0) || code == 0xAD;
    bool turning = (code >= 0x200B && code <= 0x200F) || (code >= 0x2028 && code <= 0x202E) ||
                   (code >= 0x2060 && code <= 0x206F) || code == 0xFEFF;
    if (code == '\n' || code == '\r') {
      shown += code == '\n' ? "\\n" : "\\r";
    } else if (control || turning) {
      char spelled[8];
      std::snprintf(spelled, sizeof spelled, code < 256 ? "\\x%02x" : "\\u%04x", code);
      shown += spelled;
    } else {
      shown += text.substr(at, length);
    }
    at += length;
  }
  return shown;
}

}  // namespace detail

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

/// The condition that a call broke: argument and axis, what came, what is needed.
struct Broken {
  std::string where, got, needs;
};

/// The call lies outside the contract (TC301 to TC320). Nothing was run, but for computed indices.
class GuardError : public Error {
 public:
  GuardError(std::string code, std::string message, std::vector<std::string> notes = {},
             std::vector<std::string> tries = {}, Broken broken = {})
      : Error(std::move(code), std::move(message), std::move(notes), std::move(tries), true),
        broken(std::move(broken)) {}
  const Broken broken;
};

/// What was asked does not fit: state and sessions (TC321 to TC324), keys (TC011, TC014), and numbers
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
