// What a manifest says (artifacts/contract.py, artifacts/manifest.py).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
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

struct Target {
  std::string name, system, machine, level, libc, library;
};

struct Runtime {
  std::string system, machine, version, ffi, library;
};

struct Manifest {
  std::string model, function;
  std::vector<Dim> dims;
  std::set<size_t> optional;  // inputs that a call may leave out
  std::vector<Input> inputs;
  std::vector<Guard> guards;
  std::vector<IndexGuard> index_guards;
  std::vector<ComputedGuard> computed_guards;
  std::vector<Output> outputs;
  std::vector<size_t> taken;
  std::vector<Expr> sizes;
  std::vector<std::string> weights;
  std::vector<Target> targets;
  std::vector<Runtime> runtimes;
  std::map<std::string, std::pair<uint64_t, std::string>> members;

  std::string Serves() const {
    std::vector<std::string> parts;
    for (const Dim& dim : dims) parts.push_back(dim.name + " " + dim.Range());
    return Join(parts, ", ");
  }
};

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

inline Manifest ReadManifest(const Json& data) {
  const Json* external = data.Find("external_weights");
  if (external && !external->null())
    throw Malformed("the weights lie beside the bundle, which this reader does not open");
  const Json* states = data.Find("states");
  if (states && !states->Items().empty())
    throw Malformed("it keeps state from call to call, which this host does not serve");
  const Json* variants = data.Find("variants");
  if (variants && !variants->null() && !variants->Items().empty())
    throw Malformed("it has variants, which this host does not serve");
  data.Only({"states", "variants", "memory", "format_version", "model", "contract", "entry", "targets", "runtimes", "provenance",
             "members", "parameters", "external_weights"});
  Manifest made;
  made.model = data["model"].String();
  const Json& contract = data["contract"].Only({"dims", "parameters", "inputs", "guards",
                                                "index_guards", "outputs", "result",
                                                "computed_guards"});
  std::set<std::string> names;
  for (const Json& dim : contract["dims"].Items()) names.insert(dim["name"].String());
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
  const Json& entry = data["entry"].Only({"function", "inputs", "sizes", "weights", "results",
                                           "into", "given"});
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
  for (const Json& each : data["targets"].Items()) {
    each.Only({"name", "system", "machine", "level", "libc", "library", "cuda", "entry"});
    const Json* cuda = each.Find("cuda");
    if (cuda && !cuda->null()) continue;  // code for a GPU: this host runs on the CPU
    const Json* own = each.Find("entry");
    if (own && !own->null()) throw Malformed("a target that is called in a way of its own");
    made.targets.push_back({each["name"].String(), each["system"].String(),
                            each["machine"].String(), each["level"].String(),
                            each["libc"].String(), each["library"].String()});
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
  return made;
}

}  // namespace detail
}  // namespace tcexport
