// What is in a bundle, and for what machine (artifacts/manifest.py, artifacts/states.py).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "contract.hpp"
#include "cuda.hpp"
#include "error.hpp"
#include "json.hpp"
#include "recipes.hpp"
#include "structure.hpp"

namespace tcexport {
namespace detail {

constexpr const char* kManifest = "manifest.json";
constexpr const char* kWeights = "weights.safetensors";

struct Runtime {
  std::string system, machine, version, ffi, library;
};

/// A tensor that the compiled code takes between the sizes and the weights, and writes to.
struct StateTensor {
  std::string name, dtype, initial;  // initial: a tensor of the weights, or "" for zeros
  std::vector<int64_t> shape;
};

struct Target {
  std::string name, system, machine, level, libc, library;
  std::vector<Terms> own = {};  // how it is called, where that is not as the manifest says
  bool cuda = false;            // it is for a GPU, and not run here
  bool one = false;             // it holds one function, and none for the variants
};

struct Member {
  std::string name;
  uint64_t size = 0;
  std::string sha256;
};

struct Manifest {
  std::string model;
  Terms terms;                // what the bundle serves as a whole
  std::vector<Terms> routes;  // the code, in the order in which it is tried: one, or the variants
  bool variants = false;
  std::vector<StateTensor> states;
  std::string generator;  // the state that random numbers are drawn from, "" where there are none
  std::vector<Target> targets;
  std::vector<Runtime> runtimes;
  std::vector<Member> listed;             // the members of the file
  std::map<std::string, Member> members;  // these, and weights that are beside it
  std::string beside;  // the file beside the bundle that holds the weights, if they are there

  /// How the functions of a target's binary are called.
  const std::vector<Terms>& RoutesOf(const Target& target) const {
    return target.own.empty() ? routes : target.own;
  }
};

/// Whether a variant takes the calls of the bundle, with dims from the same places.
inline bool TakesTheSame(const Json& variant, const Terms& own, const Json& whole,
                         const Terms& terms) {
  auto placed = [&](const Dim& dim) {
    return std::any_of(terms.dims.begin(), terms.dims.end(), [&](const Dim& other) {
      return dim.name == other.name && dim.by_value == other.by_value &&
             dim.input == other.input && dim.axis == other.axis && dim.scale == other.scale &&
             dim.offset == other.offset;
    });
  };
  return variant["parameters"].Same(whole["parameters"]) &&
         variant["inputs"].Same(whole["inputs"]) && variant["result"].Same(whole["result"]) &&
         own.outputs.size() == terms.outputs.size() &&
         std::all_of(own.dims.begin(), own.dims.end(), placed);
}

/// Reads a manifest. Throws Malformed: it is none of this version, or not consistent in itself.
class ManifestReader {
 public:
  static Manifest Read(const Json& data) { return ManifestReader(data).made_; }

 private:
  explicit ManifestReader(const Json& data) : data_(data), whole_(data["contract"]) {
    data.Only({"states", "variants", "memory", "format_version", "model", "contract", "entry",
               "targets", "runtimes", "provenance", "members", "parameters", "external_weights",
               "generator"});
    made_.model = data["model"].String();
    CheckName(made_.model);
    made_.variants = !data.ListOf("variants").empty();
    made_.terms = whole_.With(data["entry"]);
    made_.terms.memory = whole_.Memory(data.Maybe("memory"));
    if (!made_.variants) whole_.CheckGiven(data["entry"]);
    ReadVariants();
    for (const Json& each : data["targets"].Items()) ReadTarget(each);
    ReadStates();
    CheckGenerator();
    CheckParameters(data.Maybe("parameters"));
    CheckProvenance(data["provenance"]);
    ReadMembers();
    for (const Json& each : data["runtimes"].Items()) ReadRuntime(each);
    for (const Terms& route : made_.routes)
      if (!route.weights.empty()) Need(kWeights);
    for (const StateTensor& state : made_.states)
      if (!state.initial.empty()) Need(kWeights);
    for (const auto& name : needed_)
      if (!made_.members.count(name)) throw Malformed("no member " + Quoted(name));
  }

  void ReadVariants() {
    std::set<std::string> names;
    const List& variants = data_.ListOf("variants");
    for (const Json& each : variants) {
      each.Only({"name", "entry", "contract", "memory"});
      const Json& own = each.Maybe("contract");
      const std::string& name = each["name"].String();
      CheckName(name);
      contracts_.push_back(own.null() ? whole_ : ContractReader(own));
      made_.routes.push_back(Route(made_.routes.size(), each["entry"]));
      made_.routes.back().memory = contracts_.back().Memory(each.Maybe("memory"));
      if (!own.null() && !TakesTheSame(own, made_.routes.back(), data_["contract"], made_.terms))
        throw Malformed("variant " + Quoted(name) + " takes other calls than the bundle");
      names.insert(name);
    }
    if (names.size() != variants.size() || names.size() > 256)
      throw Malformed("two variants with one name, or too many");
    if (!made_.variants)
      made_.routes = {made_.terms};
    else if (!variants.back()["entry"].Same(data_["entry"]))
      throw Malformed("the entry is not that of the last variant");
  }

  /// The contract of a variant with the entry of a function that keeps it.
  Terms Route(size_t number, const Json& entry) const {
    const Json& variant = data_["variants"].Items()[number];
    Terms route = contracts_[number].With(entry);
    contracts_[number].CheckGiven(entry);
    route.name = variant["name"].String();
    route.whole = variant.Maybe("contract").null();
    return route;
  }

  void ReadTarget(const Json& each) {
    each.Only({"name", "system", "machine", "level", "libc", "library", "cuda", "entry",
               "entries"});
    Target made{each["name"].String(),  each["system"].String(), each["machine"].String(),
                each["level"].String(), each["libc"].String(),   each["library"].String()};
    Need(made.library);
    const Json& own = each.Maybe("entry");
    const List& entries = each.ListOf("entries");
    if (!entries.empty() && (!own.null() || entries.size() != contracts_.size()))
      throw Malformed(Head(made.name, 80) + " is not called in one way for each of the variants");
    if (!own.null()) {
      if (made_.variants && !made_.routes.back().whole)
        throw Malformed("a target has one function, and none of the variants serves all");
      made.one = true;
      made.own.push_back(whole_.With(own));
      whole_.CheckGiven(own);
    }
    for (const Json& entry : entries) made.own.push_back(Route(made.own.size(), entry));
    for (const Terms& route : made.own)
      if (!route.weights.empty()) Need(kWeights);
    made.cuda = !each.Maybe("cuda").null();
    if (made.cuda) CheckCuda(made.name, each["cuda"]);
    made_.targets.push_back(std::move(made));
  }

  void ReadRuntime(const Json& each) {
    each.Only({"system", "machine", "version", "ffi", "library", "license", "cuda"});
    Need(each["library"].String());
    for (const Json* member : {&each["license"], each.Find("cuda")})
      if (member && !member->String().empty()) Need(member->String());
    made_.runtimes.push_back({each["system"].String(), each["machine"].String(),
                              each["version"].String(), each["ffi"].String(),
                              each["library"].String()});
  }

  void ReadStates() {
    std::set<std::string> names;
    for (const Json& each : data_.ListOf("states")) {
      each.Only({"name", "dtype", "shape", "initial"});
      StateTensor state;
      state.name = each["name"].String();
      CheckName(state.name);
      state.dtype = each["dtype"].String();
      if (!IsDtype(state.dtype))
        throw Malformed("state " + Quoted(state.name) + ": unknown dtype " +
                        Quoted(state.dtype, 40));
      if (each.Find("initial")) state.initial = each["initial"].String();
      Wide count = 1;
      const List& shape = each["shape"].Items();
      bool sound = shape.size() <= kMostAxes;
      for (size_t axis = 0; sound && axis < shape.size(); ++axis) {
        int64_t size = shape[axis].Int();
        sound = 0 <= size && size <= kMostSize;
        if (sound && size) sound = count <= kMostSize / size;
        count *= size;
        state.shape.push_back(size);
      }
      if (!sound) throw Malformed("state " + Quoted(state.name) + ": shape out of bounds");
      if (!names.insert(state.name).second) throw Malformed("two states with one name");
      made_.states.push_back(std::move(state));
    }
  }

  void CheckGenerator() {
    std::string name = data_.Find("generator") ? data_["generator"].String() : "";
    if (name.empty()) return;
    bool sound = std::any_of(
        made_.states.begin(), made_.states.end(), [&](const StateTensor& state) {
          return state.name == name && state.dtype == "int64" && state.initial.empty() &&
                 state.shape == std::vector<int64_t>{2};
        });
    if (!sound)
      throw Malformed(Quoted(name) + " is no state of a generator of random numbers");
    made_.generator = name;
  }

  static void CheckProvenance(const Json& data) {
    data.Only({"tcexport", "source", "source_sha256", "options", "versions", "linker", "commit",
               "commit_state", "weights_sha256"});
    for (const char* name : {"tcexport", "source", "source_sha256", "linker"}) data[name].String();
    for (const char* name : {"commit", "weights_sha256"})
      if (const Json* found = data.Find(name)) found->String();
    if (const Json* found = data.Find("commit_state")) found->OneOf({"", "clean", "dirty"});
    for (const char* name : {"options", "versions"})
      for (const auto& [key, value] : data[name].Fields()) value.String();
  }

  static Member ReadMember(const Json& each) {
    each.Only({"name", "size", "sha256"});
    if (each["size"].Int() < 0) throw Malformed("a member of negative size");
    return {each["name"].String(), static_cast<uint64_t>(each["size"].Int()),
            each["sha256"].String()};
  }

  void ReadMembers() {
    for (const Json& each : data_["members"].Items()) {
      made_.listed.push_back(ReadMember(each));
      made_.members[made_.listed.back().name] = made_.listed.back();
    }
    const Json& beside = data_.Maybe("external_weights");
    if (beside.null()) return;
    if (made_.members.count(kWeights)) throw Malformed("the weights are inside and outside");
    made_.beside = beside["name"].String();
    const std::string& digest = beside["sha256"].String();
    bool sound = digest.size() == 64 &&
                 digest.find_first_not_of("0123456789abcdef") == std::string::npos &&
                 beside["size"].Int() > 0 &&
                 made_.beside == "weights-" + digest.substr(0, 16) + ".safetensors";
    if (!sound)
      throw Malformed("weights beside the bundle under the name " + Quoted(made_.beside));
    made_.members[kWeights] = ReadMember(beside);
  }

  void Need(const std::string& member) { needed_.push_back(member); }

  const Json& data_;
  ContractReader whole_;
  std::vector<ContractReader> contracts_;  // of the variants
  std::vector<std::string> needed_;
  Manifest made_;
};

}  // namespace detail
}  // namespace tcexport
