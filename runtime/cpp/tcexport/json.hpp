// JSON: what a manifest is made of.
#pragma once

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "text.hpp"

namespace tcexport {
namespace detail {

struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Json;
using Object = std::vector<std::pair<std::string, Json>>;
using List = std::vector<Json>;

/// Strict: UTF-8, no duplicate keys, no NaN, integers within 64 bits, at most 1000 deep.
class Json {
 public:
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, std::shared_ptr<List>,
               std::shared_ptr<Object>>
      value = nullptr;

  bool null() const { return std::holds_alternative<std::nullptr_t>(value); }
  bool text() const { return std::holds_alternative<std::string>(value); }
  bool boolean() const { return std::holds_alternative<bool>(value); }
  bool real() const { return std::holds_alternative<double>(value); }
  bool integer() const { return std::holds_alternative<int64_t>(value); }
  bool list() const { return std::holds_alternative<std::shared_ptr<List>>(value); }
  bool object() const { return std::holds_alternative<std::shared_ptr<Object>>(value); }
  double Real() const { return Get<double>("a number"); }
  const std::string& String() const { return Get<std::string>("a text"); }
  int64_t Int() const { return Get<int64_t>("an integer"); }
  bool Bool() const { return Get<bool>("a bool"); }
  const List& Items() const { return *Get<std::shared_ptr<List>>("a list"); }
  const Object& Fields() const { return *Get<std::shared_ptr<Object>>("an object"); }
  const Json* Find(const std::string& key) const {
    for (const auto& field : Fields())
      if (field.first == key) return &field.second;
    return nullptr;
  }
  const Json& operator[](const std::string& key) const {
    const Json* found = Find(key);
    if (!found) throw Malformed("Object missing required field `" + key + "`");
    return *found;
  }
  /// A field that may be left out, which is as if it were null, or an empty list.
  const Json& Maybe(const std::string& key) const {
    static const Json none;
    const Json* found = Find(key);
    return found ? *found : none;
  }
  const List& ListOf(const std::string& key) const {
    static const List empty;
    const Json* found = Find(key);
    return found ? found->Items() : empty;
  }
  /// Text that is one of these.
  const std::string& OneOf(std::initializer_list<const char*> known) const {
    const std::string& found = String();
    if (std::find(known.begin(), known.end(), found) == known.end())
      throw Malformed("Invalid value " + Quoted(found));
    return found;
  }
  /// As Python's repr shows it, the first `most` characters of it.
  std::string Repr(size_t most) const {
    std::string text;
    Show(&text, 4 * most);  // bytes
    return Head(text, most);
  }
  /// The same data; fields may stand in another order, and be left out where they are as without.
  bool Same(const Json& other) const {
    if (value.index() != other.value.index()) return false;
    if (list()) {
      const List &mine = Items(), &theirs = other.Items();
      return std::equal(mine.begin(), mine.end(), theirs.begin(), theirs.end(),
                        [](const Json& a, const Json& b) { return a.Same(b); });
    }
    if (!object()) return value == other.value;
    return Holds(other) && other.Holds(*this);
  }
  /// Refuses fields that this reader does not know: they may hold assumptions.
  const Json& Only(std::initializer_list<const char*> known) const {
    for (const auto& field : Fields())
      if (std::none_of(known.begin(), known.end(),
                       [&](const char* name) { return field.first == name; }))
        throw Malformed("Object contains unknown field `" + field.first + "`");
    return *this;
  }

  static Json Parse(std::string_view text) {
    if (!IsUtf8(text)) throw Malformed("Invalid UTF-8 encoded string");
    Parser parser{text};
    Json found = parser.Value(0);
    parser.Space();
    if (parser.at != text.size()) throw Malformed("JSON with something behind it");
    return found;
  }

 private:
  /// Appends the repr to text, until that has `enough` bytes.
  void Show(std::string* into, size_t enough) const {
    if (null()) *into += "None";
    if (boolean()) *into += Bool() ? "True" : "False";
    if (integer()) *into += std::to_string(Int());
    if (real()) *into += FloatText(Real());
    if (text()) *into += Quoted(String(), std::string::npos);
    const char* between = "";
    if (list()) {
      *into += "[";
      for (const Json& item : Items()) {
        if (into->size() > enough) return;
        *into += std::exchange(between, ", ");
        item.Show(into, enough);
      }
      *into += "]";
    }
    if (object()) {
      *into += "{";
      for (const auto& [key, item] : Fields()) {
        if (into->size() > enough) return;
        *into += std::exchange(between, ", ") + Quoted(key, std::string::npos) + ": ";
        item.Show(into, enough);
      }
      *into += "}";
    }
  }

  /// Whether each field of another object is the same here.
  bool Holds(const Json& other) const {
    return std::all_of(other.Fields().begin(), other.Fields().end(), [&](const auto& field) {
      const Json* match = Find(field.first);
      return match ? match->Same(field.second) : IsDefault(field.first, field.second);
    });
  }

  /// Whether a field of a contract or an entry says what is meant without it, too.
  static bool IsDefault(const std::string& name, const Json& item) {
    if (name == "layout") return item.text() && item.String() == "any";
    if (name == "optional") return item.boolean() && !item.Bool();
    if (name == "into") return item.text() && item.String().empty();
    return name == "given" && item.list() && item.Items().empty();
  }

  template <typename T>
  const T& Get(const char* what) const {
    if (!std::holds_alternative<T>(value)) throw Malformed(std::string("not ") + what);
    return std::get<T>(value);
  }

  struct Parser {
    std::string_view text;
    size_t at = 0;

    [[noreturn]] void Fail() const { throw Malformed("no JSON at byte " + std::to_string(at)); }
    void Space() {
      while (at < text.size() && std::strchr(" \t\r\n", text[at]) && text[at]) ++at;
    }
    bool Skip(char wanted) {
      Space();
      return Take(wanted);
    }
    bool Take(char wanted) {
      if (at >= text.size() || text[at] != wanted) return false;
      ++at;
      return true;
    }
    void Word(const char* word) {
      size_t length = std::strlen(word);
      if (text.substr(at, length) != word) Fail();
      at += length;
    }
    Json Value(int depth) {
      if (depth > 1000) throw Malformed("JSON too deep");
      Space();
      if (at >= text.size()) Fail();
      Json made;
      switch (text[at]) {
        case '{': {
          ++at;
          auto fields = std::make_shared<Object>();
          std::set<std::string> seen;
          if (!Skip('}')) {
            do {
              Space();
              std::string key = String();
              if (!seen.insert(key).second) throw Malformed("a field is there twice: " + key);
              if (!Skip(':')) Fail();
              Json item = Value(depth + 1);
              fields->emplace_back(std::move(key), std::move(item));
            } while (Skip(','));
            if (!Skip('}')) Fail();
          }
          made.value = fields;
          return made;
        }
        case '[': {
          ++at;
          auto items = std::make_shared<List>();
          if (!Skip(']')) {
            do items->push_back(Value(depth + 1));
            while (Skip(','));
            if (!Skip(']')) Fail();
          }
          made.value = items;
          return made;
        }
        case '"': made.value = String(); return made;
        case 't': Word("true"); made.value = true; return made;
        case 'f': Word("false"); made.value = false; return made;
        case 'n': Word("null"); return made;
        default: return Number();
      }
    }
    void Digits() {
      size_t start = at;
      while (at < text.size() && text[at] >= '0' && text[at] <= '9') ++at;
      if (at == start) Fail();
    }
    Json Number() {
      size_t start = at;
      bool whole = true;
      Take('-');
      if (!Take('0')) Digits();
      if (Take('.')) whole = false, Digits();
      if (Take('e') || Take('E')) {
        whole = false;
        if (!Take('+')) Take('-');
        Digits();
      }
      std::string_view digits = text.substr(start, at - start);
      Json made;
      auto read = [&](auto number) {
        if (std::from_chars(digits.data(), digits.data() + digits.size(), number).ec != std::errc())
          throw Malformed("number out of range: " + std::string(digits.substr(0, 40)));
        made.value = number;
      };
      if (whole)
        read(int64_t());
      else
        read(double());
      return made;
    }
    unsigned Hex() {
      unsigned code = 0;
      for (int i = 0; i < 4; ++i, ++at) {
        if (at >= text.size() || !std::isxdigit(static_cast<unsigned char>(text[at]))) Fail();
        char digit = text[at];
        code = code * 16 + (digit <= '9' ? digit - '0' : (digit | 32) - 'a' + 10);
      }
      return code;
    }
    std::string String() {
      if (at >= text.size() || text[at] != '"') Fail();
      ++at;
      std::string made;
      while (true) {
        if (at >= text.size() || static_cast<unsigned char>(text[at]) < 0x20) Fail();
        char next = text[at++];
        if (next == '"') return made;
        if (next != '\\') {
          made += next;
          continue;
        }
        if (at >= text.size()) Fail();
        char kind = text[at++];
        static const char pairs[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
        const char* plain = std::strchr(pairs, kind);
        if (kind == 'u') {
          unsigned code = Hex();
          if (code >= 0xD800 && code < 0xDC00) {
            if (text.substr(at, 2) != "\\u") Fail();
            at += 2;
            unsigned low = Hex();
            if (low < 0xDC00 || low > 0xDFFF) Fail();
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
          } else if (code >= 0xDC00 && code < 0xE000) {
            Fail();
          }
          Utf8(code, &made);
        } else if (kind && plain && (plain - pairs) % 2 == 0) {
          made += plain[1];
        } else {
          Fail();
        }
      }
    }
    static void Utf8(unsigned code, std::string* into) {
      if (code < 0x80) {
        *into += static_cast<char>(code);
        return;
      }
      int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
      const unsigned heads[] = {0, 0xC0, 0xE0, 0xF0};
      *into += static_cast<char>(heads[more] | (code >> (6 * more)));
      while (more--) *into += static_cast<char>(0x80 | ((code >> (6 * more)) & 0x3F));
    }
  };
};

}  // namespace detail
}  // namespace tcexport
