// Text of a file: what is UTF-8, what can be shown, what is a name (artifacts/names.py).
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace tcexport {
namespace detail {

/// The code point at `*at`, which is then behind it; none where the bytes there are not UTF-8.
inline std::optional<char32_t> NextCode(std::string_view text, size_t* at) {
  auto byte = [&](size_t ahead) -> unsigned {
    return *at + ahead < text.size() ? static_cast<unsigned char>(text[*at + ahead]) : 0u;
  };
  static const char32_t least[] = {0, 0x80, 0x800, 0x10000};
  unsigned head = byte(0);
  if ((head >= 0x80 && head < 0xC2) || head >= 0xF5) return std::nullopt;
  size_t more = head < 0x80 ? 0 : head < 0xE0 ? 1 : head < 0xF0 ? 2 : 3;
  char32_t code = more ? head & (0x3Fu >> more) : head;
  for (size_t ahead = 1; ahead <= more; ++ahead) {
    if (byte(ahead) >> 6 != 2) return std::nullopt;
    code = code << 6 | (byte(ahead) & 63);
  }
  if (code < least[more] || code >> 11 == 0x1B || code > 0x10FFFF) return std::nullopt;
  *at += more + 1;
  return code;
}

inline bool IsUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();)
    if (!NextCode(text, &at)) return false;
  return true;
}

/// Whether a code point shows itself and nothing else: as str.isprintable of Python, where those that
/// Unicode has not given to anything count as printable, too.
inline bool IsPrintable(char32_t code) {
  static const std::pair<char32_t, char32_t> others[] = {
      {0x0, 0x1F}, {0x7F, 0xA0}, {0xAD, 0xAD}, {0x600, 0x605}, {0x61C, 0x61C}, {0x6DD, 0x6DD},
      {0x70F, 0x70F}, {0x890, 0x891}, {0x8E2, 0x8E2}, {0x1680, 0x1680}, {0x180E, 0x180E},
      {0x2000, 0x200F}, {0x2028, 0x202F}, {0x205F, 0x206F}, {0x3000, 0x3000}, {0xD800, 0xF8FF},
      {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0x110BD, 0x110BD}, {0x110CD, 0x110CD},
      {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0001, 0xE0001},
      {0xE0020, 0xE007F}, {0xF0000, 0x10FFFF}};
  return std::none_of(std::begin(others), std::end(others), [&](const auto& range) {
    return range.first <= code && code <= range.second;
  });
}

/// As Python's `unicode_escape` spells a code point.
inline std::string Spelled(char32_t code) {
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  char spelled[12];
  const char* form = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
  std::snprintf(spelled, sizeof spelled, form, static_cast<unsigned>(code));
  return spelled;
}

/// Text with each code point as `show` has it; bytes that are no text as `\xff`.
template <typename F>
std::string Shown(const std::string& text, F show) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    size_t begin = at;
    auto code = NextCode(text, &at);
    if (!code) ++at;
    shown += code ? show(*code, text.substr(begin, at - begin))
                  : Spelled(static_cast<unsigned char>(text[begin]));
  }
  return shown;
}

/// Text as it can be shown: what would move the cursor, end the line or turn the direction is spelled
/// out.
inline std::string Printable(const std::string& text) {
  return Shown(text, [](char32_t code, const std::string& as_is) {
    return IsPrintable(code) || code == '\t' ? as_is : Spelled(code);
  });
}

/// The first `most` characters of text.
inline std::string Head(const std::string& text, size_t most) {
  size_t at = 0;
  for (size_t count = 0; count < most && at < text.size(); ++count)
    if (!NextCode(text, &at)) ++at;
  return text.substr(0, at);
}

/// As Python's repr shows text, the first `most` characters of it.
inline std::string Quoted(const std::string& text, size_t most = 80) {
  bool plain = text.find('\'') == std::string::npos || text.find('"') != std::string::npos;
  const char32_t quote = plain ? '\'' : '"';
  std::string shown = Shown(text, [&](char32_t code, const std::string& as_is) {
    if (code == quote || code == '\\') return "\\" + as_is;
    return IsPrintable(code) ? as_is : Spelled(code);
  });
  return Head(static_cast<char>(quote) + shown + static_cast<char>(quote), most);
}

/// Python's repr of a float, which a contract holds: the fewest digits that read back as the number, with
/// an exponent below 1e-4 and from 1e16 on (PyOS_double_to_string, format 'r').
inline std::string FloatText(double value) {
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

/// Whether text can be the name of something: neither empty nor endless, and printable.
inline bool IsName(const std::string& text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) {
    auto code = NextCode(text, &at);
    if (!code || !IsPrintable(*code)) return false;
  }
  return count > 0 && count <= 1024;
}

/// Whether Python takes text for a name of its language. Beyond ASCII, what can be shown counts as a
/// letter.
inline bool IsIdentifier(const std::string& text) {
  static const std::set<std::string> keywords = {
      "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class",
      "continue", "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if",
      "import", "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try",
      "while", "with", "yield"};
  auto letter = [](unsigned char each) {
    return each >= 0x80 || each == '_' || ((each | 32) >= 'a' && (each | 32) <= 'z');
  };
  auto digit = [](unsigned char each) { return each >= '0' && each <= '9'; };
  return IsName(text) && letter(static_cast<unsigned char>(text[0])) && !keywords.count(text) &&
         std::all_of(text.begin(), text.end(), [&](char each) {
           auto byte = static_cast<unsigned char>(each);
           return letter(byte) || digit(byte);
         });
}

}  // namespace detail
}  // namespace tcexport
