// The contract of a bundle, and how the function that keeps it is called (artifacts/contract.py).
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "expr.hpp"
#include "json.hpp"
#include "structure.hpp"
#include "value.hpp"

namespace tcexport {
namespace detail {

struct Origin {
  std::string text;  // as it is shown
  std::string reason = {};
  static Origin From(const Json& data) {
    data.Only({"reason", "location"});
    Origin made{data["reason"].String(), data["reason"].String()};
    const Json& place = data.Maybe("location");
    if (!place.null()) {
      place.Only({"file", "line", "text"});
      std::string line = place.Find("text") ? place["text"].String() : "";
      made.text = (line.empty() ? made.text : line) + "  (" + place["file"].String() + ":" +
                  std::to_string(place["line"].Int()) + ")";
    }
    return made;
  }
};

struct Dim {
  std::string name;
  bool by_value = false;
  size_t input = 0, axis = 0;
  int64_t scale = 1, offset = 0, lo = 0, step = 1;
  std::optional<int64_t> hi;
  Origin lo_from, hi_from;
  std::optional<Origin> step_from;

  std::string Range() const {
    bool open = by_value && lo <= -(int64_t(1) << 62);
    std::string text = (open ? "" : std::to_string(lo)) + ".." + (hi ? std::to_string(*hi) : "");
    return step == 1 ? text : text + ":" + std::to_string(step);
  }
};

struct Input {
  std::string path;
  bool tensor = false;
  std::string dtype;  // or the type of a fixed value
  std::string text;   // of a fixed value
  std::vector<Expr> shape;
  bool contiguous = false;
};

struct Output {
  std::string path;
  char kind = 't';  // tensor, size, fixed
  int64_t result = 0;
  std::string dtype = {};
  bool sized = true;  // false where a size is known after the call only
  Expr size;
  std::string type, text;
};

struct Guard {
  Expr expr;
  Origin origin;
};

struct IndexGuard {
  size_t input = 0;
  Expr lo, hi;
  Origin origin;
  struct Part {
    size_t axis = 0;
    Expr start, stop;
  };
  std::vector<Part> parts;
};

struct ComputedGuard {
  std::string what;
  std::optional<Expr> size;
  bool wraps = false, assertion = false;
  Origin origin;
};

/// A contract, and how the function that keeps it is called.
struct Terms {
  std::string name;  // of a variant
  std::vector<Dim> dims;
  std::set<size_t> optional;  // inputs that a call may leave out
  std::vector<Input> inputs;
  std::vector<Guard> guards;
  std::vector<IndexGuard> index_guards;
  std::vector<ComputedGuard> computed_guards;
  std::vector<Output> outputs;
  std::string function;
  std::vector<size_t> taken;
  std::vector<Expr> sizes;
  std::vector<std::string> weights;
  bool whole = true;  // the contract is the bundle's own
  std::optional<std::vector<Expr>> memory = std::nullopt;  // bytes that a call allocates at once

  std::string Serves() const {
    std::vector<std::string> parts;
    for (const Dim& dim : dims) parts.push_back(dim.name + " " + dim.Range());
    return Join(parts, ", ");
  }
};

constexpr size_t kMostInputs = 4096, kMostGuards = 65536, kMostAxes = 32;
constexpr int64_t kMostSize = int64_t(1) << 62;

inline bool IsDtype(const std::string& name) {
  static const std::set<std::string> known = {
      "bool",     "uint8",    "uint16",   "uint32",     "uint64",        "int8",
      "int16",    "int32",    "int64",    "float16",    "bfloat16",      "float32",
      "float64",  "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
      "float8_e4m3fnuz", "float8_e5m2fnuz"};
  return known.count(name) > 0;
}

/// Whether a fixed value is spelled as Python spells it, with no more digits than Python reads.
inline bool IsFixed(const std::string& type, const std::string& text) {
  if (type == "str") return true;
  if (type == "none") return text == "None";
  if (type == "bool") return text == "True" || text == "False";
  if (type == "int") {
    std::string digits = text.substr(text.rfind('-', 0) == 0 ? 1 : 0);
    bool whole = !digits.empty() && digits.find_first_not_of("0123456789") == std::string::npos;
    return whole && digits.size() <= 4300 && (digits[0] != '0' || text == "0");
  }
  double value = 0;
  auto end = std::from_chars(text.data(), text.data() + text.size(), value);
  return end.ec == std::errc() && end.ptr == text.data() + text.size() &&
         (std::isnan(value) || Plain::Of(value).text == text);
}

/// Reads a contract. Throws Malformed: it does not make sense as one.
class ContractReader {
 public:
  explicit ContractReader(const Json& contract) {
    contract.Only({"dims", "parameters", "inputs", "guards", "index_guards", "outputs", "result",
                   "computed_guards"});
    const List &dims = contract["dims"].Items(), &inputs = contract["inputs"].Items(),
               &guards = contract["guards"].Items(), &outputs = contract["outputs"].Items(),
               &indices = contract["index_guards"].Items(),
               &computed = contract.ListOf("computed_guards");
    if (inputs.size() > kMostInputs || outputs.size() > kMostInputs)
      throw Malformed("too many inputs or outputs");
    if (guards.size() + indices.size() + computed.size() > kMostGuards)
      throw Malformed("too many guards");
    for (const Json& dim : dims)
      if (!names_.insert(dim["name"].String()).second) throw Malformed("two dims with one name");
    for (const Json& each : inputs) made_.inputs.push_back(ReadInput(each));
    for (const Json& each : dims) made_.dims.push_back(ReadDim(each));
    for (const Json& each : guards) made_.guards.push_back(ReadGuard(each));
    for (const Json& each : indices) made_.index_guards.push_back(ReadIndexGuard(each));
    for (const Json& each : computed) made_.computed_guards.push_back(ReadComputedGuard(each));
    for (const Json& each : outputs) made_.outputs.push_back(ReadOutput(each));
    ReadParameters(contract["parameters"].Items());
    std::vector<int64_t> leaves;
    ReadNode(contract["result"], &leaves);
    CheckLeaves(leaves, outputs.size());
    contract["result"]["node"].OneOf({"leaf", "tuple", "list", "dict", "namedtuple"});
  }

  /// The contract with the entry of the function that keeps it.
  Terms With(const Json& entry) const {
    entry.Only({"function", "inputs", "sizes", "weights", "results", "into", "given"});
    Terms made = made_;
    made.function = entry["function"].String();
    for (const Json& each : entry["inputs"].Items()) {
      int64_t index = each.Int();
      if (index < 0 || index >= static_cast<int64_t>(made.inputs.size()) ||
          !made.inputs[static_cast<size_t>(index)].tensor)
        throw Malformed("the entry takes input " + std::to_string(index) +
                        ", which is not a tensor");
      made.taken.push_back(static_cast<size_t>(index));
    }
    for (const Json& each : entry["sizes"].Items()) made.sizes.push_back(Expr::From(each, names_));
    for (const Json& each : entry["weights"].Items()) made.weights.push_back(each.String());
    int64_t results = entry["results"].Int();
    for (const Output& output : made.outputs)
      if (output.kind == 't' && (output.result < 0 || output.result >= results))
        throw Malformed(output.path + ": the entry has no result " + std::to_string(output.result));
    return made;
  }

  /// Throws Malformed unless an entry says what its results are written into.
  void CheckGiven(const Json& entry) const {
    std::set<int64_t> given;
    const List& numbers = entry.ListOf("given");
    for (const Json& each : numbers) given.insert(each.Int());
    std::string into = entry.Find("into") ? entry["into"].String() : "";
    if (into.empty() != numbers.empty() || given.size() != numbers.size())
      throw Malformed("the entry does not say what its results are written into");
    for (int64_t number : given)
      if (std::none_of(made_.outputs.begin(), made_.outputs.end(), [&](const Output& output) {
            return output.kind == 't' && output.sized && output.result == number;
          }))
        throw Malformed("the entry takes memory for result " + std::to_string(number) +
                        ", of no known size");
  }

  /// Sums of bytes over the dims; none where there is null.
  std::optional<std::vector<Expr>> Memory(const Json& sums) const {
    if (sums.null()) return std::nullopt;
    if (sums.Items().size() > 64) throw Malformed("too many sums of memory");
    std::vector<Expr> memory;
    for (const Json& each : sums.Items()) {
      memory.push_back(Expr::From(each, names_));
      if (memory.back().logic())
        throw Malformed("memory: a condition where a number is needed");
    }
    return memory;
  }

 private:
  Expr Number(const Json& data) const {
    Expr made = Expr::From(data, names_);
    if (made.logic()) throw Malformed("a condition where a number is needed");
    return made;
  }

  const List& Axes(const Json& shape) const {
    if (shape.Items().size() > kMostAxes) throw Malformed("rank too large");
    return shape.Items();
  }

  static std::string Path(const Json& item) {
    CheckName(item["path"].String());
    return item["path"].String();
  }

  static std::string Dtype(const Json& tensor) {
    const std::string& dtype = tensor["dtype"].String();
    if (!IsDtype(dtype)) throw Malformed(Path(tensor) + ": unknown dtype " + Quoted(dtype, 40));
    return dtype;
  }

  static Plain Fixed(const Json& item) {
    item.Only({"kind", "path", "type", "text"});
    Plain made{item["type"].OneOf({"none", "bool", "int", "float", "str"}), item["text"].String()};
    if (!IsFixed(made.type, made.text)) throw Malformed(Path(item) + ": bad fixed value");
    return made;
  }

  Input ReadInput(const Json& each) const {
    Input made;
    made.path = Path(each);
    made.tensor = each["kind"].OneOf({"tensor", "fixed"}) == "tensor";
    if (!made.tensor) {
      Plain fixed = Fixed(each);
      made.dtype = fixed.type, made.text = fixed.text;
      return made;
    }
    each.Only({"kind", "path", "dtype", "shape", "layout"});
    made.dtype = Dtype(each);
    for (const Json& size : Axes(each["shape"])) made.shape.push_back(Number(size));
    if (const Json* layout = each.Find("layout"))
      made.contiguous = layout->OneOf({"any", "contiguous"}) == "contiguous";
    return made;
  }

  Output ReadOutput(const Json& each) const {
    Output made;
    made.path = Path(each);
    const std::string& kind = each["kind"].OneOf({"tensor", "size", "fixed"});
    made.kind = kind[0];
    if (kind == "tensor") {
      each.Only({"kind", "path", "dtype", "shape", "result"});
      made.dtype = Dtype(each);
      made.result = each["result"].Int();
      for (const Json& size : Axes(each["shape"])) {
        if (size.null())
          made.sized = false;
        else
          Number(size);
      }
    } else if (kind == "size") {
      made.size = Number(each.Only({"kind", "path", "value"})["value"]);
    } else {
      Plain fixed = Fixed(each);
      made.type = fixed.type, made.text = fixed.text;
    }
    return made;
  }

  size_t TensorAt(const Json& index) const {
    int64_t found = index.Int();
    if (found < 0 || found >= static_cast<int64_t>(made_.inputs.size()))
      throw Malformed("no input " + std::to_string(found));
    if (!made_.inputs[static_cast<size_t>(found)].tensor)
      throw Malformed("input " + std::to_string(found) + " is not a tensor");
    return static_cast<size_t>(found);
  }

  size_t IntegersAt(const Json& index) const {
    size_t found = TensorAt(index);
    const std::string& dtype = made_.inputs[found].dtype;
    if (dtype.rfind("int", 0) && dtype.rfind("uint", 0))
      throw Malformed("input " + std::to_string(found) + " does not hold integers");
    return found;
  }

  Dim ReadDim(const Json& each) const {
    each.Only({"name", "source", "lo", "hi", "lo_from", "hi_from", "step", "step_from"});
    Dim made;
    made.name = each["name"].String();
    CheckName(made.name);
    const Json& source = each["source"];
    made.by_value = source["read"].OneOf({"axis", "value"}) == "value";
    if (made.by_value) {
      made.input = IntegersAt(source.Only({"read", "input"})["input"]);
    } else {
      source.Only({"read", "input", "axis", "scale", "offset"});
      made.input = TensorAt(source["input"]);
      int64_t axis = source["axis"].Int();
      if (axis < 0 || axis >= static_cast<int64_t>(made_.inputs[made.input].shape.size()))
        throw Malformed("dim " + made.name + ": no axis " + std::to_string(axis));
      made.axis = static_cast<size_t>(axis);
      if (source.Find("scale")) made.scale = source["scale"].Int();
      if (source.Find("offset")) made.offset = source["offset"].Int();
      if (made.scale < 1) throw Malformed("dim " + made.name + ": scale must be positive");
    }
    made.lo = each["lo"].Int();
    if (!each["hi"].null()) made.hi = each["hi"].Int();
    if (each.Find("step")) made.step = each["step"].Int();
    auto beyond = [](int64_t size) { return size > kMostSize || size < -kMostSize; };
    if (made.step < 1 || beyond(made.lo) || beyond(made.hi.value_or(0)))
      throw Malformed("dim " + made.name + ": range out of bounds");
    made.lo_from = Origin::From(each["lo_from"]);
    made.hi_from = Origin::From(each["hi_from"]);
    if (!each.Maybe("step_from").null()) made.step_from = Origin::From(each["step_from"]);
    return made;
  }

  Guard ReadGuard(const Json& each) const {
    each.Only({"expr", "origin"});
    Guard made{Expr::From(each["expr"], names_), Origin::From(each["origin"])};
    if (!made.expr.logic()) throw Malformed("a guard that is not a condition");
    return made;
  }

  IndexGuard ReadIndexGuard(const Json& each) const {
    each.Only({"input", "lo", "hi", "origin", "parts"});
    IndexGuard made{IntegersAt(each["input"]), Number(each["lo"]), Number(each["hi"]),
                    Origin::From(each["origin"]), {}};
    const Input& item = made_.inputs[made.input];
    std::set<int64_t> axes;
    for (const Json& part : each.ListOf("parts")) {
      part.Only({"axis", "start", "stop"});
      int64_t axis = part["axis"].Int();
      if (axis < 0 || axis >= static_cast<int64_t>(item.shape.size()) || !axes.insert(axis).second)
        throw Malformed(item.path + ": an index guard over axes that are not there");
      made.parts.push_back(
          {static_cast<size_t>(axis), Number(part["start"]), Number(part["stop"])});
    }
    return made;
  }

  ComputedGuard ReadComputedGuard(const Json& each) const {
    each.Only({"what", "size", "wraps", "origin", "assertion"});
    ComputedGuard made;
    made.what = each["what"].String();
    if (!each["size"].null()) made.size = Number(each["size"]);
    made.wraps = each["wraps"].Bool();
    made.assertion = each.Find("assertion") && each["assertion"].Bool();
    made.origin = Origin::From(each["origin"]);
    return made;
  }

  void ReadParameters(const List& parameters) {
    std::vector<int64_t> all;
    std::set<std::string> optional;
    for (const Json& each : parameters) {
      each.Only({"name", "kind", "structure", "optional"});
      CheckName(each["name"].String());
      each["kind"].OneOf({"positional", "either", "keyword"});
      std::vector<int64_t> leaves;
      ReadNode(each["structure"], &leaves);
      all.insert(all.end(), leaves.begin(), leaves.end());
      if (each.Find("optional") && each["optional"].Bool())
        made_.optional.insert(leaves.begin(), leaves.end());
    }
    CheckLeaves(all, made_.inputs.size());
  }

  std::set<std::string> names_;
  Terms made_;
};

}  // namespace detail
}  // namespace tcexport
