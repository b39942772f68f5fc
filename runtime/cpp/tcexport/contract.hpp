// What a manifest says (artifacts/contract.py, artifacts/manifest.py).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "expr.hpp"
#include "json.hpp"

namespace tcexport {
namespace detail {

struct Origin {
  std::string text;  // as it is shown
  std::string reason = {};
  static Origin From(const Json& data) {
    data.Only({"reason", "location"});
    Origin made{data["reason"].String(), data["reason"].String()};
    const Json* place = data.Find("location");
    if (place && !place->null()) {
      place->Only({"file", "line", "text"});
      std::string line = (*place)["text"].String();
      made.text = (line.empty() ? made.text : line) + "  (" + (*place)["file"].String() + ":" +
                  std::to_string((*place)["line"].Int()) + ")";
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
  size_t result = 0;
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

struct Runtime {
  std::string system, machine, version, ffi, library;
};

/// A tensor that the compiled code takes between the sizes and the weights, and writes to.
struct StateTensor {
  std::string name, dtype, initial;  // initial: a tensor of the weights, or "" for zeros
  std::vector<int64_t> shape;
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

  std::string Serves() const {
    std::vector<std::string> parts;
    for (const Dim& dim : dims) parts.push_back(dim.name + " " + dim.Range());
    return Join(parts, ", ");
  }
};

struct Target {
  std::string name, system, machine, level, libc, library;
  std::vector<Terms> own;  // one, where it is called in a way of its own
};

struct Member {
  uint64_t size = 0;
  std::string sha256;
};

struct Manifest {
  std::string model;
  Terms terms;                // what the bundle serves as a whole
  std::vector<Terms> routes;  // the code, in the order in which it is tried: one, or the variants
  std::vector<StateTensor> states;
  std::vector<Target> targets;
  std::vector<Runtime> runtimes;
  std::map<std::string, Member> members;
  std::string beside;  // the file beside the bundle that holds the weights, if they are there

  bool HasWeights() const {
    auto initial = [](const StateTensor& state) { return !state.initial.empty(); };
    auto taking = [](const Terms& route) { return !route.weights.empty(); };
    for (const Target& target : targets)
      if (std::any_of(target.own.begin(), target.own.end(), taking)) return true;
    return std::any_of(states.begin(), states.end(), initial) ||
           std::any_of(routes.begin(), routes.end(), taking);
  }
};

/// A bundle that is sound, and that this host does not serve.
struct Unserved : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr const char* kWeights = "weights.safetensors";

inline size_t Index(const Json& data, size_t count) {
  int64_t index = data.Int();
  if (index < 0 || static_cast<size_t>(index) >= count) throw Malformed("an index out of range");
  return static_cast<size_t>(index);
}

inline void Leaves(const Json& node, std::set<size_t>* into, size_t count) {
  if (node["node"].String() == "leaf") {
    into->insert(Index(node["index"], count));
  } else if (const Json* items = node.Find("items")) {
    for (const Json& item : items->Items()) Leaves(item, into, count);
  }
}

inline Terms ReadTerms(const Json& contract, const Json& entry) {
  Terms made;
  contract.Only({"dims", "parameters", "inputs", "guards", "index_guards", "outputs", "result",
                 "computed_guards"});
  entry.Only({"function", "inputs", "sizes", "weights", "results", "into", "given"});
  std::set<std::string> names;
  for (const Json& dim : contract["dims"].Items())
    if (!names.insert(dim["name"].String()).second) throw Malformed("two dims with one name");
  auto expr = [&](const Json& each) { return Expr::From(each, names); };
  auto shape = [&](const Json& each) {
    std::vector<Expr> sizes;
    for (const Json& size : each.Items()) sizes.push_back(expr(size));
    return sizes;
  };
  for (const Json& each : contract["inputs"].Items()) {
    Input input;
    input.path = each["path"].String();
    input.tensor = each["kind"].String() == "tensor";
    if (input.tensor) {
      each.Only({"kind", "path", "dtype", "shape", "layout"});
      input.dtype = each["dtype"].String();
      input.shape = shape(each["shape"]);
      const Json* layout = each.Find("layout");
      input.contiguous = layout && layout->String() == "contiguous";
    } else {
      each.Only({"kind", "path", "type", "text"});
      input.dtype = each["type"].String();
      input.text = each["text"].String();
    }
    made.inputs.push_back(input);
  }
  size_t count = made.inputs.size();
  for (const Json& each : contract["parameters"].Items()) {
    each.Only({"name", "kind", "structure", "optional"});
    if (each["optional"].Bool()) Leaves(each["structure"], &made.optional, count);
  }
  auto tensor_at = [&](const Json& index) {
    size_t found = Index(index, count);
    if (!made.inputs[found].tensor) throw Malformed("an input that is no tensor");
    return found;
  };
  for (const Json& each : contract["dims"].Items()) {
    each.Only({"name", "source", "lo", "hi", "lo_from", "hi_from", "step", "step_from"});
    Dim dim;
    dim.name = each["name"].String();
    const Json& source = each["source"].Only({"read", "input", "axis", "scale", "offset"});
    dim.by_value = source["read"].String() == "value";
    dim.input = tensor_at(source["input"]);
    if (!dim.by_value) {
      dim.axis = Index(source["axis"], made.inputs[dim.input].shape.size());
      dim.scale = source["scale"].Int();
      dim.offset = source["offset"].Int();
    } else if (made.inputs[dim.input].dtype.find("int") == std::string::npos) {
      throw Malformed("a dim read from what holds no integers");
    }
    dim.lo = each["lo"].Int();
    if (!each["hi"].null()) dim.hi = each["hi"].Int();
    dim.step = each["step"].Int();
    if (dim.scale < 1 || dim.step < 1) throw Malformed("dim " + dim.name + ": range out of bounds");
    dim.lo_from = Origin::From(each["lo_from"]);
    dim.hi_from = Origin::From(each["hi_from"]);
    if (!each["step_from"].null()) dim.step_from = Origin::From(each["step_from"]);
    made.dims.push_back(dim);
  }
  for (const Json& each : contract["guards"].Items()) {
    each.Only({"expr", "origin"});
    made.guards.push_back({expr(each["expr"]), Origin::From(each["origin"])});
    if (!made.guards.back().expr.logic()) throw Malformed("a guard that is not a condition");
  }
  for (const Json& each : contract["index_guards"].Items()) {
    each.Only({"input", "lo", "hi", "origin", "parts"});
    IndexGuard guard{tensor_at(each["input"]), expr(each["lo"]), expr(each["hi"]),
                     Origin::From(each["origin"]), {}};
    for (const Json& part : each["parts"].Items()) {
      part.Only({"axis", "start", "stop"});
      guard.parts.push_back({Index(part["axis"], made.inputs[guard.input].shape.size()),
                             expr(part["start"]), expr(part["stop"])});
    }
    made.index_guards.push_back(guard);
  }
  for (const Json& each : contract["computed_guards"].Items()) {
    each.Only({"what", "size", "wraps", "origin", "assertion"});
    ComputedGuard guard;
    guard.what = each["what"].String();
    if (!each["size"].null()) guard.size = expr(each["size"]);
    guard.wraps = each["wraps"].Bool();
    guard.assertion = each["assertion"].Bool();
    guard.origin = Origin::From(each["origin"]);
    made.computed_guards.push_back(guard);
  }
  made.function = entry["function"].String();
  for (const Json& each : entry["inputs"].Items()) made.taken.push_back(tensor_at(each));
  made.sizes = shape(entry["sizes"]);
  for (const Json& each : entry["weights"].Items()) made.weights.push_back(each.String());
  for (const Json& each : contract["outputs"].Items()) {
    Output output;
    output.path = each["path"].String();
    std::string kind = each["kind"].String();
    output.kind = kind[0];
    if (kind == "tensor") {
      each.Only({"kind", "path", "dtype", "shape", "result"});
      output.result = Index(each["result"], static_cast<size_t>(entry["results"].Int()));
    } else if (kind == "size") {
      each.Only({"kind", "path", "value"});
      output.size = expr(each["value"]);
    } else {
      each.Only({"kind", "path", "type", "text"});
      output.type = each["type"].String();
      output.text = each["text"].String();
    }
    made.outputs.push_back(output);
  }
  return made;
}

/// The variants in their order, with the entries of one binary where it has its own. As in Python, each
/// takes the calls of the bundle, with dims from the same places.
inline std::vector<Terms> ReadRoutes(const Json& data, const Terms& terms,
                                     const std::vector<Json>* entries = nullptr) {
  const Json* variants = data.Find("variants");
  if (!variants || variants->Items().empty()) return {terms};
  std::vector<Terms> routes;
  std::set<std::string> names;
  for (const Json& each : variants->Items()) {
    each.Only({"name", "entry", "contract", "memory"});
    const Json* own = each.Find("contract");
    bool whole = !own || own->null();
    const Json& entry = entries ? (*entries)[routes.size()] : each["entry"];
    Terms route = ReadTerms(whole ? data["contract"] : *own, entry);
    route.name = each["name"].String();
    route.whole = whole;
    bool alike = route.inputs.size() == terms.inputs.size() &&
                 route.outputs.size() == terms.outputs.size();
    for (size_t at = 0; alike && at < route.inputs.size(); ++at)
      alike = route.inputs[at].path == terms.inputs[at].path &&
              route.inputs[at].tensor == terms.inputs[at].tensor;
    if (!alike || !names.insert(route.name).second || routes.size() == 256)
      throw Malformed("variant '" + route.name + "' takes other calls than the bundle");
    routes.push_back(std::move(route));
  }
  return routes;
}

inline std::vector<StateTensor> ReadStates(const Json& data) {
  std::vector<StateTensor> states;
  std::set<std::string> names;
  const Json* rows = data.Find("states");
  if (!rows) return states;
  for (const Json& each : rows->Items()) {
    each.Only({"name", "dtype", "shape", "initial"});
    StateTensor state;
    state.name = each["name"].String();
    state.dtype = each["dtype"].String();
    if (const Json* initial = each.Find("initial")) state.initial = initial->String();
    Wide count = 1;
    for (const Json& size : each["shape"].Items()) {
      state.shape.push_back(size.Int());
      count *= size.Int();
      if (size.Int() < 0 || count > (Wide(1) << 62) || state.shape.size() > 32)
        throw Malformed("state '" + state.name + "': shape out of bounds");
    }
    if (!names.insert(state.name).second) throw Malformed("two states with one name");
    states.push_back(std::move(state));
  }
  return states;
}

/// Weights in a file beside the bundle, under the name that follows from their digest.
inline void ReadBeside(const Json& data, Manifest* made) {
  const Json* beside = data.Find("external_weights");
  if (!beside || beside->null()) return;
  beside->Only({"name", "size", "sha256"});
  Member member{static_cast<uint64_t>((*beside)["size"].Int()), (*beside)["sha256"].String()};
  made->beside = (*beside)["name"].String();
  bool digest = member.sha256.size() == 64 &&
                member.sha256.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!digest || (*beside)["size"].Int() <= 0 ||
      made->beside != "weights-" + member.sha256.substr(0, 16) + ".safetensors")
    throw Malformed("weights beside the bundle under the name '" + made->beside + "'");
  if (!made->members.emplace(kWeights, member).second)
    throw Malformed("the weights are inside and outside");
}

inline Manifest ReadManifest(const Json& data) {
  data.Only({"states", "variants", "memory", "format_version", "model", "contract", "entry",
             "targets", "runtimes", "provenance", "members", "parameters", "external_weights",
             "generator"});
  const Json* generator = data.Find("generator");
  if (generator && !generator->String().empty())
    throw Unserved("it draws random numbers, which this host does not serve");
  Manifest made;
  made.model = data["model"].String();
  made.terms = ReadTerms(data["contract"], data["entry"]);
  made.routes = ReadRoutes(data, made.terms);
  made.states = ReadStates(data);
  for (const Json& each : data["targets"].Items()) {
    each.Only({"name", "system", "machine", "level", "libc", "library", "cuda", "entry",
               "entries"});
    const Json* cuda = each.Find("cuda");
    if (cuda && !cuda->null()) continue;  // code for a GPU: this host runs on the CPU
    const Json* own = each.Find("entry");
    Target target{each["name"].String(), each["system"].String(),
                  each["machine"].String(), each["level"].String(),
                  each["libc"].String(), each["library"].String(), {}};
    bool single = own && !own->null();
    if (single && !made.routes.back().whole)
      throw Malformed("a target has one function, and none of the variants serves all");
    if (single) target.own.push_back(ReadTerms(data["contract"], *own));
    const Json* entries = each.Find("entries");
    if (entries && !entries->Items().empty()) {
      const Json* variants = data.Find("variants");
      if (single || !variants || variants->Items().size() != entries->Items().size())
        throw Malformed("target '" + target.name + "' has other entries than there are variants");
      target.own = ReadRoutes(data, made.terms, &entries->Items());
    }
    made.targets.push_back(std::move(target));
  }
  for (const Json& each : data["runtimes"].Items()) {
    each.Only({"system", "machine", "version", "ffi", "library", "license", "cuda"});
    made.runtimes.push_back({each["system"].String(), each["machine"].String(),
                             each["version"].String(), each["ffi"].String(),
                             each["library"].String()});
  }
  for (const Json& each : data["members"].Items()) {
    each.Only({"name", "size", "sha256"});
    int64_t size = each["size"].Int();
    if (size < 0) throw Malformed("a member of negative size");
    made.members[each["name"].String()] = {static_cast<uint64_t>(size), each["sha256"].String()};
  }
  ReadBeside(data, &made);
  return made;
}

}  // namespace detail
}  // namespace tcexport
