// Load a .tcpkg and call it from C++17, with no Python in the process.
//
// The contract of the bundle is held as by the Python runtime: the same conditions in the same order,
// the same codes, the same words. What differs: arguments come flat, by their paths ("x", "batch.ids");
// tensors are DLPack tensors on the CPU; conditions are computed in 128 bits, and a call whose sizes
// need more is refused. Made for bundles that you trust: check a signature with
// `tcexport verify-signature` before.
//
// Needs the headers and libtvm_ffi.so of the wheel apache-tvm-ffi; TCEXPORT_FFI_VERSION is its version.
// See CMakeLists.txt and run.cc beside this file. Format: docs/format.md; words: runtime/explain.py.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/tvm_ffi.h>

#include "tcexport/contract.hpp"
#include "tcexport/error.hpp"
#include "tcexport/expr.hpp"
#include "tcexport/file.hpp"
#include "tcexport/json.hpp"
#include "tcexport/machine.hpp"
#include "tcexport/tensors.hpp"

#ifndef TCEXPORT_FFI_VERSION
#error "define TCEXPORT_FFI_VERSION as the version of apache-tvm-ffi whose headers and library are used"
#endif

namespace tcexport {

namespace ffi = tvm::ffi;
constexpr int kFormatVersion = 1;

/// A value that is no tensor, as the contract spells it: by type and text.
struct Plain {
  std::string type, text;
  static Plain None() { return {"none", "None"}; }
  static Plain Of(bool value) { return {"bool", value ? "True" : "False"}; }
  static Plain Of(int64_t value) { return {"int", std::to_string(value)}; }
  static Plain Of(int value) { return {"int", std::to_string(value)}; }
  static Plain Of(std::string value) { return {"str", std::move(value)}; }
  static Plain Of(const char* value) { return {"str", value}; }
  bool operator==(const Plain& other) const { return type == other.type && text == other.text; }
  /// As Python shows it: `3 (int)`, `'mean' (str)`, `None`.
  std::string Shown() const {
    if (type == "none") return "None";
    return (type == "str" ? "'" + text + "'" : text) + " (" + type + ")";
  }
};

using Argument = std::variant<ffi::Tensor, Plain>;
using Arguments = std::map<std::string, Argument>;  // by path
using Result = std::variant<ffi::Tensor, Plain>;
using Results = std::vector<std::pair<std::string, Result>>;  // by path, in the contract's order

/// A loaded bundle. One thread may call it at a time: the rest wait for a `Model` of their own.
class Model {
 public:
  /// Maps the file, compares every digest, and loads the runtime and the code from memory.
  ///
  /// Throws BundleError: TC401 to TC405.
  explicit Model(const std::string& path, int threads = 1) : path_(Absolute(path)) {
    using namespace detail;
    auto file = std::make_shared<Mapped>(path_);
    try {
      Open(*file);
    } catch (const Malformed& error) {
      NotABundle(path_, error.what());
    }
    for (const auto& [name, member] : manifest_.members)
      if (Sha256(spans_.at(name).data, spans_.at(name).size) != member.second)
        throw BundleError("TC402",
                          path_ + ": member " + name + " is not what the manifest was written for",
                          {"the file was damaged or changed"}, {"fetch or export it again"});
    Machine machine = Machine::This();
    const Target& target = Choose(manifest_, machine, path_);
    LoadRuntime(machine);
    auto library = Loaded<ffi::Module>(target.library, [](const std::string& place) {
      return Call(Global("ffi.Module.load_from_file.so"), ffi::String(place), ffi::String("so"))
          .cast<ffi::Module>();
    });
    std::vector<ffi::Any> bound = {ffi::String(manifest_.function), ffi::String("bound"), true};
    if (!manifest_.weights.empty()) {
      Span span = spans_.at("weights.safetensors");
      low_ = span.data, high_ = span.data + span.size;
      try {
        auto found = ReadWeights(span, file);
        for (const auto& name : manifest_.weights) {
          if (!found.count(name)) throw Malformed("weights.safetensors has no tensor '" + name + "'");
          bound.push_back(found.at(name));
        }
      } catch (const Malformed& error) {
        NotABundle(path_, error.what());
      }
    }
    vm_ = Call(Named(library, "vm_load_executable")).cast<ffi::Module>();
    Call(Named(vm_, "vm_initialization"), static_cast<int>(kDLCPU), 0, 1);
    std::string name = manifest_.function;
    if (!manifest_.weights.empty()) {
      Packed(Named(vm_, "save_function"), bound);
      name = "bound";
    }
    function_ = Named(vm_, name);
    ffi::Array<ffi::String> cores;
    for (int number = 0; number < threads; ++number) cores.push_back(std::to_string(number));
    Call(Global("runtime.config_threadpool"), 1, threads, cores);
    file_ = std::move(file);
  }

  /// The paths of the inputs, in the contract's order.
  std::vector<std::string> Inputs() const {
    std::vector<std::string> paths;
    for (const auto& input : manifest_.inputs) paths.push_back(input.path);
    return paths;
  }

  /// Checks the call and runs it. Tensors lie on the CPU; results have memory of their own.
  ///
  /// Throws GuardError: the call lies outside the contract; InternalError: TC601.
  Results operator()(const Arguments& arguments) {
    using namespace detail;
    std::vector<const ffi::Tensor*> leaves = Look(arguments);
    Dims dims = Explain(leaves);
    std::vector<ffi::Any> passed;
    std::vector<const void*> places = {};
    for (size_t index : manifest_.taken) {
      const ffi::Tensor& tensor = *leaves[index];
      bool fits = tensor.IsContiguous() &&
                  reinterpret_cast<uintptr_t>(DataOf(tensor)) % kAlignment == 0 &&
                  tensor.byte_offset() == 0 && tensor.numel() > 0;
      passed.push_back(fits ? tensor : Copy(tensor));
      places.push_back(passed.back().cast<ffi::Tensor>().data_ptr());
    }
    if (!manifest_.sizes.empty()) {
      std::vector<int64_t> sizes;
      for (const Expr& size : manifest_.sizes)
        sizes.push_back(static_cast<int64_t>(size.Value(dims)));
      passed.push_back(ffi::Shape(sizes));
    }
    std::vector<ffi::Tensor> given;
    try {
      ffi::Any answer = Packed(function_, passed);
      if (auto several = answer.as<ffi::Array<ffi::Tensor>>())
        given.assign(several->begin(), several->end());
      else
        given.push_back(answer.cast<ffi::Tensor>());
    } catch (const ffi::Error& error) {
      Computed(error.message());
      throw InternalError(path_ + ": " + error.message());
    }
    Results results;
    for (const Output& output : manifest_.outputs) {
      if (output.kind == 's') {
        results.emplace_back(output.path, Plain{"int", Text(output.size.Value(dims))});
      } else if (output.kind == 'f') {
        results.emplace_back(output.path, Plain{output.type, output.text});
      } else {
        ffi::Tensor tensor = given.at(output.result);
        const void* place = tensor.data_ptr();
        bool shared = std::count(places.begin(), places.end(), place) ||
                      (low_ <= place && place < high_);
        for (const auto& [name, other] : results)
          if (auto* before = std::get_if<ffi::Tensor>(&other))
            shared = shared || before->data_ptr() == place;
        results.emplace_back(output.path, shared ? Copy(tensor) : tensor);
      }
    }
    return results;
  }

 private:
  using Tensors = std::vector<const ffi::Tensor*>;

  static std::string Absolute(const std::string& path) {
    if (!path.empty() && path[0] == '/') return path;
    char here[4096];
    return std::string(getcwd(here, sizeof here) ? here : ".") + "/" + path;
  }

  /// Through ffi's C interface: the layout of its C++ classes is none between its versions, and the
  /// libraries of a bundle were built with their own.
  static ffi::Any Packed(const ffi::Function& function, const std::vector<ffi::Any>& arguments) {
    std::vector<ffi::AnyView> views(arguments.begin(), arguments.end());
    TVMFFIAny answer{};
    TVM_FFI_CHECK_SAFE_CALL(TVMFFIFunctionCall(
        ffi::details::ObjectUnsafe::TVMFFIObjectPtrFromObjectRef(function),
        reinterpret_cast<TVMFFIAny*>(views.data()), static_cast<int32_t>(views.size()),
        &answer));
    return ffi::details::AnyUnsafe::MoveTVMFFIAnyToAny(&answer);
  }

  template <typename... T>
  static ffi::Any Call(const ffi::Function& function, const T&... arguments) {
    return Packed(function, {ffi::Any(arguments)...});
  }

  static ffi::Function Global(const char* name) { return ffi::Function::GetGlobalRequired(name); }

  static ffi::Function Named(const ffi::Module& module, const std::string& name) {
    ffi::Any answer = Call(Global("ffi.ModuleGetFunction"), module, ffi::String(name), false);
    auto found = answer.as<ffi::Function>();
    if (!found || !found->defined()) throw InternalError("the compiled code has no function " + name);
    return *found;
  }

  void Open(const detail::Mapped& file) {
    using namespace detail;
    std::vector<Entry> entries = ReadZip(file.span());
    auto part = [&](const Entry& entry) {
      return Span{file.span().data + entry.start, static_cast<size_t>(entry.size)};
    };
    Span head = part(entries[0]);
    if (Crc32(head.data, head.size) != entries[0].crc)
      throw Malformed("manifest.json: damaged, its CRC differs");
    Json data = Json::Parse(head.text());
    int64_t version = data["format_version"].Int();
    if (version > kFormatVersion)
      throw BundleError("TC403",
                        path_ + ": format version " + std::to_string(version) +
                            " is newer than this tcexport reads",
                        {}, {"pip install --upgrade tcexport"});
    if (version < 1) throw Malformed("manifest.json: format version does not exist");
    try {
      manifest_ = ReadManifest(data);
    } catch (const Malformed& error) {
      throw Malformed(std::string("manifest.json: ") + error.what());
    }
    entries.erase(entries.begin());
    for (const Entry& entry : entries) {
      auto listed = manifest_.members.find(entry.name);
      if (listed == manifest_.members.end() || listed->second.first != entry.size)
        throw Malformed("member '" + entry.name + "' is not as the manifest says");
      if (!spans_.emplace(entry.name, part(entry)).second)
        throw Malformed("member '" + entry.name + "' is there twice");
    }
    if (spans_.size() != manifest_.members.size())
      throw Malformed("a member of the manifest is not in the file");
    std::vector<std::string> named;
    for (const Target& target : manifest_.targets) named.push_back(target.library);
    for (const Runtime& runtime : manifest_.runtimes) named.push_back(runtime.library);
    if (!manifest_.weights.empty()) named.push_back("weights.safetensors");
    for (const auto& name : named)
      if (!spans_.count(name)) throw Malformed("no member '" + name + "'");
  }

  /// What `load` makes of the verified bytes of a member: copied, compared again, sealed.
  template <typename T>
  T Loaded(const std::string& member, const std::function<T(const std::string&)>& load) {
    using namespace detail;
    Span span = spans_.at(member);
    std::vector<uint8_t> bytes(span.data, span.data + span.size);
    if (Sha256(bytes.data(), bytes.size()) != manifest_.members.at(member).second)
      throw BundleError("TC402", path_ + ": member " + member + " changed while it was loaded");
    try {
      return WithFile({bytes.data(), bytes.size()}, member.substr(member.rfind('/') + 1), load);
    } catch (const std::exception& error) {
      throw BundleError("TC404", path_ + ": the system cannot load " + member,
                        {std::string("as a memory file: ") + error.what()});
    }
  }

  void LoadRuntime(const detail::Machine& machine) {
    using namespace detail;
    const Runtime* wanted = nullptr;
    std::vector<std::string> held;
    for (const Runtime& runtime : manifest_.runtimes) {
      held.push_back(runtime.system + " " + runtime.machine);
      if (runtime.system == machine.system && runtime.machine == machine.machine) wanted = &runtime;
    }
    if (!wanted)
      throw BundleError("TC404", path_ + " brings a runtime for " +
                                     (held.empty() ? "none" : Join(held, ", ")) + ", found " +
                                     machine.system + " " + machine.machine);
    if (wanted->ffi != TCEXPORT_FFI_VERSION)
      throw BundleError("TC405",
                        path_ + " was built for apache-tvm-ffi " + wanted->ffi + ", found " +
                            TCEXPORT_FFI_VERSION,
                        {}, {"build the host with apache-tvm-ffi " + wanted->ffi});
    std::string digest = manifest_.members.at(wanted->library).second;
    setenv("TVM_BIND_THREADS", "0", 0);
    setenv("TVM_THREAD_POOL_SPIN_COUNT", "2000", 0);
    if (!ffi::Function::GetGlobal("runtime.NumThreads")) {
      Loaded<bool>(wanted->library, [](const std::string& place) {
        if (!dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) throw std::runtime_error(dlerror());
        return true;
      });
      LoadedRuntime() = digest;
    }
    if (LoadedRuntime() != digest)
      throw BundleError("TC405",
                        path_ + " was built for the TVM runtime " + wanted->version +
                            "; this process has another",
                        {}, {"load this bundle in a process of its own"});
  }

  // --- the contract (runtime/explain.py), in its order --------------------------------------------

  [[noreturn]] void Refuse(const std::string& code, std::string place, const std::string& label,
                           const std::string& got, const std::string& needs,
                           const detail::Origin* origin, std::vector<std::string> notes = {},
                           std::vector<std::string> tries = {}) const {
    if (!label.empty() && label != place) place += " (" + label + ")";
    if (origin) notes.push_back("from: " + origin->text);
    if (!manifest_.dims.empty()) notes.push_back("the bundle serves: " + manifest_.Serves());
    throw GuardError(code, place + ": got " + got + ", needs " + needs, notes, tries);
  }

  static std::string At(const std::string& path, size_t axis) {
    return path + " axis " + std::to_string(axis);
  }

  static std::string AxesOf(const detail::Input& input) {
    std::vector<std::string> sizes;
    for (const auto& size : input.shape) sizes.push_back(size.Render());
    return "(" + detail::Join(sizes, ", ") + ")";
  }

  static std::string Tuple(const std::vector<int64_t>& shape) {
    std::string text = "(";
    for (size_t axis = 0; axis < shape.size(); ++axis)
      text += (axis ? ", " : "") + std::to_string(shape[axis]);
    return text + (shape.size() == 1 ? ",)" : ")");
  }

  static std::string Count(size_t rank) {
    return rank == 1 ? "1 axis" : std::to_string(rank) + " axes";
  }

  /// The tensors by the numbers of their inputs; fixed values are compared.
  Tensors Look(const Arguments& arguments) const {
    using namespace detail;
    std::set<std::string> known;
    for (const Input& input : manifest_.inputs) known.insert(input.path);
    std::string call = "(";
    for (const Input& input : manifest_.inputs) call += (call.size() > 1 ? ", " : "") + input.path;
    for (const auto& [path, value] : arguments)
      if (!known.count(path))
        throw GuardError("TC302", path + ": is not an input of this model, needs to be left out",
                         {"the call is " + call + ")"});
    Tensors leaves;
    for (size_t index = 0; index < manifest_.inputs.size(); ++index) {
      const Input& input = manifest_.inputs[index];
      auto found = arguments.find(input.path);
      leaves.push_back(nullptr);
      if (found == arguments.end()) {
        if (manifest_.optional.count(index) && !input.tensor) continue;
        throw GuardError("TC302", input.path + ": is missing, needs one argument",
                         {"the call is " + call + ")"});
      }
      const Plain* plain = std::get_if<Plain>(&found->second);
      if (!input.tensor) {
        static const Origin origin{"fixed at export"};
        Plain wanted{input.dtype, input.text};
        if (!plain || !(*plain == wanted))
          Refuse("TC308", input.path, "", plain ? plain->Shown() : "a Tensor", wanted.Shown(),
                 &origin);
        continue;
      }
      if (plain)
        Refuse("TC303", input.path, "", plain->Shown(),
               "a tensor of " + input.dtype + " " + AxesOf(input), nullptr);
      const ffi::Tensor& tensor = std::get<ffi::Tensor>(found->second);
      if (tensor.device().device_type != kDLCPU)
        Refuse("TC310", input.path, "", "another device", "cpu", nullptr, {},
               {"move the tensor to the CPU"});
      leaves.back() = &tensor;
    }
    return leaves;
  }

  /// The values of the dims, where the call meets every condition.
  detail::Dims Explain(const Tensors& leaves) const {
    using namespace detail;
    for (size_t index = 0; index < leaves.size(); ++index)
      if (leaves[index]) CheckTensor(manifest_.inputs[index], *leaves[index]);
    Dims dims;
    for (const Dim& dim : manifest_.dims) dims[dim.name] = Read(dim, leaves);
    for (const Dim& dim : manifest_.dims) CheckRange(dim, dims.at(dim.name), leaves);
    for (size_t index = 0; index < leaves.size(); ++index)
      if (leaves[index]) CheckAxes(manifest_.inputs[index], *leaves[index], dims);
    for (const Guard& guard : manifest_.guards)
      if (!guard.expr.Holds(dims)) Violated(guard, dims, leaves);
    for (const IndexGuard& guard : manifest_.index_guards)
      CheckIndex(guard, *leaves[guard.input], dims);
    for (const Expr& size : manifest_.sizes) CheckValue(size, dims, leaves);
    for (const Output& output : manifest_.outputs)
      if (output.kind == 's') CheckValue(output.size, dims, leaves);
    return dims;
  }

  void CheckTensor(const detail::Input& input, const ffi::Tensor& tensor) const {
    using namespace detail;
    std::string dtype = DtypeName(tensor.dtype());
    if (dtype != input.dtype || tensor.dtype().lanes != 1)
      Refuse("TC304", input.path, "", dtype, input.dtype, nullptr);
    std::vector<int64_t> shape = ShapeOf(tensor);
    if (shape.size() != input.shape.size())
      Refuse("TC305", input.path, "", Count(shape.size()) + " " + Tuple(shape),
             Count(input.shape.size()) + " " + AxesOf(input), nullptr);
    if (input.contiguous && !tensor.IsContiguous()) {
      static const Origin origin{
          "the model asks for the layout of tensors, and the trace kept the answer"};
      Refuse("TC312", input.path, "", "a tensor that is not contiguous", "a contiguous one", &origin);
    }
    static const Origin fixed{"this axis is fixed"};
    for (size_t axis = 0; axis < shape.size(); ++axis)
      if (input.shape[axis].constant() && input.shape[axis].number != shape[axis])
        Refuse("TC306", At(input.path, axis), "", std::to_string(shape[axis]),
               input.shape[axis].Render(), &fixed);
  }

  Wide Read(const detail::Dim& dim, const Tensors& leaves) const {
    const ffi::Tensor& tensor = *leaves[dim.input];
    if (dim.by_value) {
      if (tensor.numel() != 1)
        Refuse("TC306", manifest_.inputs[dim.input].path, "", "shape " + Tuple(detail::ShapeOf(tensor)),
               "one element", nullptr);
      return detail::Integer(tensor, 0);
    }
    Wide over = static_cast<Wide>(tensor.size(static_cast<int>(dim.axis))) - dim.offset;
    return over / dim.scale - (over % dim.scale < 0 ? 1 : 0);
  }

  /// Argument and axis, label, and what came, of the place that a dim is read from.
  struct Place {
    std::string where, label, got;
  };

  Place PlaceOf(const detail::Dim& dim, const Tensors& leaves) const {
    const detail::Input& input = manifest_.inputs[dim.input];
    if (dim.by_value)
      return {input.path, dim.name, detail::Text(detail::Integer(*leaves[dim.input], 0))};
    return {At(input.path, dim.axis), input.shape[dim.axis].Render(),
            std::to_string(leaves[dim.input]->size(static_cast<int>(dim.axis)))};
  }

  void CheckRange(const detail::Dim& dim, Wide value, const Tensors& leaves) const {
    std::string needs;
    const detail::Origin* origin = nullptr;
    if (value < dim.lo) {
      needs = dim.name + " >= " + std::to_string(dim.lo), origin = &dim.lo_from;
    } else if (dim.hi && value > *dim.hi) {
      needs = dim.name + " <= " + std::to_string(*dim.hi), origin = &dim.hi_from;
    } else if ((value - dim.lo) % dim.step) {
      needs = dim.name + " in " + dim.Range();
      origin = dim.step_from ? &*dim.step_from : &dim.lo_from;
    } else {
      return;
    }
    Place place = PlaceOf(dim, leaves);
    Refuse("TC301", place.where, place.label, place.got, needs, origin);
  }

  static std::string Values(const detail::Expr& expr, const detail::Dims& dims) {
    std::vector<std::string> names, parts;
    expr.Names(&names);
    for (const auto& name : std::set<std::string>(names.begin(), names.end()))
      parts.push_back(name + " = " + detail::Text(dims.at(name)));
    return detail::Join(parts, ", ");
  }

  const detail::Dim& DimOf(const std::string& name) const {
    for (const auto& dim : manifest_.dims)
      if (dim.name == name) return dim;
    throw std::logic_error("no dim " + name);
  }

  void CheckAxes(const detail::Input& input, const ffi::Tensor& tensor,
                 const detail::Dims& dims) const {
    for (size_t axis = 0; axis < input.shape.size(); ++axis) {
      const detail::Expr& size = input.shape[axis];
      std::string got = std::to_string(tensor.size(static_cast<int>(axis)));
      Wide needed;
      try {
        needed = size.Value(dims);
      } catch (const detail::NoValue& error) {
        Refuse("TC306", At(input.path, axis), size.Render(), got,
               size.Render() + ", which has no value (" + error.what() + ")", nullptr);
      }
      if (needed == tensor.size(static_cast<int>(axis))) continue;
      std::string shown = size.Render() + " = " + detail::Text(needed);
      if (size.dim()) {
        const detail::Dim& dim = DimOf(size.name);
        const std::string& path = manifest_.inputs[dim.input].path;
        shown += ", as " + (dim.by_value ? path : At(path, dim.axis));
      } else {
        shown += " (" + Values(size, dims) + ")";
      }
      Refuse("TC306", At(input.path, axis), size.Render(), got, shown, nullptr);
    }
  }

  [[noreturn]] void Violated(const detail::Guard& guard, const detail::Dims& dims,
                             const Tensors& leaves) const {
    std::vector<std::string> names, notes;
    guard.expr.Names(&names);
    std::string needs = guard.expr.Render();
    if (names.empty()) Refuse("TC307", "the call", "", "any", needs, &guard.origin);
    Place place = PlaceOf(DimOf(names[0]), leaves);
    if (std::set<std::string>(names.begin(), names.end()).size() > 1)
      notes.push_back("with " + Values(guard.expr, dims));
    Refuse("TC307", place.where, place.label, place.got, needs, &guard.origin, notes);
  }

  void CheckIndex(const detail::IndexGuard& guard, const ffi::Tensor& tensor,
                  const detail::Dims& dims) const {
    const std::string& path = manifest_.inputs[guard.input].path;
    std::vector<int64_t> to = detail::ShapeOf(tensor), from(to.size(), 0), shift(to.size(), 0);
    Wide lo, hi;
    try {
      lo = guard.lo.Value(dims), hi = guard.hi.Value(dims);
      for (const auto& part : guard.parts) {  // as Python slices
        auto end = [&](Wide at) {
          Wide size = to[part.axis];
          if (at < 0) at += size;
          return static_cast<int64_t>(std::min(std::max(at, Wide(0)), size));
        };
        Wide start = part.start.Value(dims);
        int64_t first = end(start), last = end(part.stop.Value(dims));
        shift[part.axis] = static_cast<int64_t>(start) - first;
        from[part.axis] = first, to[part.axis] = last;
      }
    } catch (const detail::NoValue& error) {
      Refuse("TC309", path, "", "sizes",
             guard.lo.Render() + " <= " + path + " <= " + guard.hi.Render() + " (" + error.what() + ")",
             &guard.origin);
    }
    detail::ForEach(tensor, from, to, [&](int64_t offset, const std::vector<int64_t>& at) {
      Wide value = detail::Integer(tensor, offset);
      if (lo <= value && value <= hi) return true;
      std::string got = detail::Text(value);
      for (size_t axis = 0; axis < at.size(); ++axis)
        got += (axis ? ", " : " at [") + std::to_string(at[axis] + shift[axis]);
      Refuse("TC309", path, "", got + (at.empty() ? "" : "]"),
             detail::Text(lo) + " <= " + path + " <= " + detail::Text(hi), &guard.origin);
    });
  }

  void CheckValue(const detail::Expr& size, const detail::Dims& dims, const Tensors& leaves) const {
    try {
      size.Value(dims);
    } catch (const detail::NoValue& error) {
      std::vector<std::string> names;
      size.Names(&names);
      Place place = PlaceOf(DimOf(names.at(0)), leaves);
      Refuse("TC307", place.where, place.label, place.got,
             "a value of " + size.Render() + " (" + error.what() + ")", nullptr,
             {"with " + Values(size, dims)});
    }
  }

  /// Throws the GuardError of a check in the compiled code, if `message` is of one.
  void Computed(const std::string& message) const {
    const std::string mark = "tcexport check ";
    size_t at = message.find(mark);
    if (at == std::string::npos) return;
    size_t number = std::strtoul(message.c_str() + at + mark.size(), nullptr, 10);
    if (number >= manifest_.computed_guards.size()) return;
    const detail::ComputedGuard& guard = manifest_.computed_guards[number];
    std::vector<std::string> notes = {"from: " + guard.origin.text};
    if (!manifest_.dims.empty()) notes.push_back("the bundle serves: " + manifest_.Serves());
    if (guard.assertion)
      throw GuardError("TC311",
                       guard.origin.reason + " does not hold" +
                           (guard.what.empty() ? "" : ": " + guard.what),
                       notes);
    std::string size = guard.size ? guard.size->Render() : "the size of what they index", lowest = "0";
    if (guard.wraps && guard.size)
      lowest = guard.size->operands.empty() ? "-" + size : "-(" + size + ")";
    throw GuardError("TC309",
                     guard.what + ": one is out of range, needs " + lowest + " <= index < " + size,
                     notes);
  }

  std::string path_;
  std::shared_ptr<detail::Mapped> file_;
  detail::Manifest manifest_;
  std::map<std::string, detail::Span> spans_;
  const void *low_ = nullptr, *high_ = nullptr;
  ffi::Module vm_{ffi::UnsafeInit()};
  ffi::Function function_;
};

}  // namespace tcexport
