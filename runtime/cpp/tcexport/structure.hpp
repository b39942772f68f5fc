// The structure of arguments and results, which this host takes and gives flat (artifacts/contract.py).
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "json.hpp"
#include "text.hpp"

namespace tcexport {
namespace detail {

inline void CheckName(const std::string& name) {
  if (!IsName(name)) throw Malformed("a name that cannot be shown: " + Quoted(name));
}

/// That Python makes a class of these names, which are the user's, and of nothing else.
inline void CheckNamedTuple(const Json& node) {
  std::vector<std::string> names = {node["name"].String()};
  for (const Json& field : node["fields"].Items()) names.push_back(field.String());
  size_t fields = names.size() - 1;
  if (node["items"].Items().size() != fields ||
      std::set<std::string>(names.begin() + 1, names.end()).size() != fields)
    throw Malformed("a named tuple with other fields than items, or one twice");
  for (const auto& name : names)
    if (!IsIdentifier(name))
      throw Malformed("a named tuple with a name that Python does not allow: " + Quoted(name));
  for (size_t at = 1; at <= fields; ++at)
    if (names[at][0] == '_')
      throw Malformed("a named tuple with a field that is not public: " + names[0]);
}

inline void CheckDict(const Json& node) {
  std::set<std::pair<bool, std::string>> keys;
  for (const Json& key : node["keys"].Items())
    keys.emplace(key.text(), key.text() ? key.String() : std::to_string(key.Int()));
  size_t count = node["keys"].Items().size();
  if (node["items"].Items().size() != count || keys.size() != count)
    throw Malformed("a dict with other keys than items, or one twice");
}

/// The indices of the leaves below a node, left to right.
inline void ReadNode(const Json& node, std::vector<int64_t>* leaves) {
  const std::string& kind =
      node["node"].OneOf({"leaf", "tuple", "list", "dict", "namedtuple", "absent"});
  if (kind == "absent") {
    node.Only({"node"});
    return;
  }
  if (kind == "leaf") {
    leaves->push_back(node.Only({"node", "index"})["index"].Int());
    return;
  }
  if (kind == "dict") {
    CheckDict(node.Only({"node", "keys", "items"}));
  } else if (kind == "namedtuple") {
    CheckNamedTuple(node.Only({"node", "name", "fields", "items"}));
  } else {
    node.Only({"node", "items"});
  }
  for (const Json& item : node["items"].Items()) ReadNode(item, leaves);
}

/// Throws Malformed unless the leaves are 0 to `count` - 1, each of them once.
inline void CheckLeaves(std::vector<int64_t> leaves, size_t count) {
  std::sort(leaves.begin(), leaves.end());
  bool sound = leaves.size() == count;
  for (size_t at = 0; sound && at < count; ++at) sound = leaves[at] == static_cast<int64_t>(at);
  if (!sound) throw Malformed("the structure does not name every leaf exactly once");
}

}  // namespace detail
}  // namespace tcexport
