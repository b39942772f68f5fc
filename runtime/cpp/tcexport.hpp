// Load a .tcpkg and call it from C++17, with no Python in the process. (From C: tcexport.h.)
//
// The contract of the bundle is held as by the Python runtime: the same conditions in the same order,
// the same codes, the same words. What differs: arguments come flat, by their paths ("x", "batch.ids");
// tensors are DLPack tensors on the CPU; conditions are computed in 128 bits, and a call whose sizes
// need more is refused.
//
// Needs the headers and libtvm_ffi.so of the wheel apache-tvm-ffi; TCEXPORT_FFI_VERSION is its version.
// See CMakeLists.txt and run.cc beside this file. Format: docs/format.md; words: runtime/explain.py.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tcexport/bundle.hpp"
#include "tcexport/checks.hpp"
#include "tcexport/code.hpp"
#include "tcexport/coverage.hpp"
#include "tcexport/error.hpp"
#include "tcexport/memory.hpp"
#include "tcexport/metrics.hpp"
#include "tcexport/signature.hpp"
#include "tcexport/value.hpp"
#include "tcexport/variants.hpp"

namespace tcexport {

namespace ffi = tvm::ffi;

/// `threads`: worker threads of one call, 1 to 1024. `require_signature`: files of public keys (PEM, or
/// key lists), one of which must have signed the bundle; then the file is read into memory, and no byte
/// of it believed before. `memory_limit`: bytes that one call may allocate, beside its arguments and the
/// weights; one that would need more is refused before it runs. `serves`: ranges of dims that must be
/// served, and within the limit. `device`: "cpu"; "auto" is the same where the bundle has no code for GPUs,
/// and all else is refused. `variant`: serve with this one of the bundle's variants alone. `on_violation`:
/// called with the arguments and the GuardError of every call that is refused; what it returns is the
/// call's answer, and what it throws the refusal. `count_sizes`: count in `Seen` which sizes calls have.
struct Options {
  int threads = 1;
  std::optional<std::vector<std::string>> require_signature = std::nullopt;
  std::optional<int64_t> memory_limit = std::nullopt;
  std::optional<Serves> serves = std::nullopt;
  std::string device = "cpu";
  std::optional<std::string> variant = std::nullopt;
  std::function<Results(const Arguments&, const GuardError&)> on_violation = nullptr;
  bool count_sizes = false;
};

class Session;

/// A loaded bundle. Calls from several threads wait for each other: make a `Model` for each thread that
/// is to run beside others. Copies are the same model.
class Model {
 public:
  /// Compares every digest, and loads the runtime and the code from memory.
  ///
  /// Throws BundleError: TC401 to TC410; UsageError: TC006, TC008, TC011, TC014.
  explicit Model(const std::string& path, const Options& options = {})
      : inner_(std::make_shared<Inner>(path, options)) {}
  Model(const std::string& path, int threads) : Model(path, Options{threads}) {}

  /// The paths of the inputs, in the contract's order.
  std::vector<std::string> Inputs() const {
    std::vector<std::string> paths;
    for (const auto& input : inner_->manifest.terms.inputs) paths.push_back(input.path);
    return paths;
  }

  tcexport::Metrics Metrics() const {
    std::lock_guard<std::mutex> held(inner_->counting);
    return inner_->metrics;
  }

  /// The sizes that calls had, those of most calls first, as JSON for `tcexport advise --shapes`:
  /// `[{"batch": 1, "seq": 128, "calls": 12}]`. Empty unless the model was loaded with `count_sizes`.
  std::string Seen() const {
    std::lock_guard<std::mutex> held(inner_->counting);
    return inner_->seen ? inner_->seen->Shown() : "[]";
  }

  /// Gives back what is kept of the last call, and what the C library has not returned to the system yet.
  /// By how many bytes the process became smaller; none where the system does not tell.
  std::optional<int64_t> ReleaseMemory() {
    std::lock_guard<std::mutex> held(inner_->running);
    return detail::GiveBack([&] { inner_->code->Start(); });
  }

  /// Checks the call and runs it. Tensors lie on the CPU; results have memory of their own.
  ///
  /// Throws GuardError: the call lies outside the contract, and there is no `on_violation`; UsageError:
  /// TC321, the model keeps state, and is called through a `Session`; InternalError: TC601, TC602.
  Results operator()(const Arguments& arguments) {
    if (!inner_->manifest.states.empty()) throw inner_->WithoutSession();
    return inner_->Answer(arguments, {}, nullptr);
  }

 private:
  friend class Session;

  struct Inner {
    Inner(const std::string& given, const Options& options)
        : threads(options.threads), on_violation(options.on_violation) {
      using namespace detail;
      if (threads < 1 || threads > 1024)
        throw UsageError("TC008", "threads=" + std::to_string(threads) +
                                      ": needs a number from 1 to 1024");
      std::optional<Keys> keys;
      if (options.require_signature) keys.emplace(*options.require_signature);
      Bundle bundle(given, keys ? &*keys : nullptr);
      path = bundle.path;
      Machine machine = Machine::This();
      if (options.variant) Pin(&bundle.manifest, *options.variant, path);
      CheckDevice(bundle.manifest, options.device, path);
      const Target& target = Choose(bundle.manifest, machine, path);
      if (options.memory_limit)
        LimitMemory(&bundle.manifest, target, *options.memory_limit, path);
      if (options.serves)
        CheckServes(bundle.manifest.terms, bundle.manifest.routes, *options.serves, path);
      const Runtime& runtime = RuntimeFor(bundle, machine);
      const std::vector<Terms>& routes = bundle.manifest.RoutesOf(target);
      // No code is loaded before all else in the file was found sound.
      bundle.Verify();
      auto weights = bundle.Weights(routes);
      LoadRuntime(&bundle, runtime);
      code = std::make_unique<Code>(&bundle, target.library, routes, std::move(weights));
      if (routes.size() > 1)
        for (const Terms& route : routes) metrics.variants[route.name] = 0;
      manifest = std::move(bundle.manifest);
      if (options.count_sizes) {
        std::vector<std::string> dims;
        for (const Dim& dim : manifest.terms.dims) dims.push_back(dim.name);
        seen.emplace(std::move(dims));
      }
    }

    UsageError WithoutSession() const {
      const std::string &first = manifest.states[0].name, &generator = manifest.generator;
      std::string does = first == generator ? "draws random numbers" : "keeps state (" + first + ")";
      return UsageError("TC321", "the model " + does + ", and was called without a session", {},
                        {std::string("make a session of the model, ") +
                         (generator.empty() ? "" : "seed it, ") + "and call that"});
    }

    /// `broken` is true while the code runs, and stays so where it fails.
    Results Answer(const Arguments& arguments, const std::vector<ffi::Tensor>& states,
                   std::atomic<bool>* broken) {
      try {
        return Computed(arguments, states, broken);
      } catch (const GuardError& error) {
        {
          std::lock_guard<std::mutex> held(counting);
          metrics.Refused(error);
        }
        if (!on_violation) throw;
        return on_violation(arguments, error);
      } catch (const std::bad_alloc&) {
        throw InternalError(path + ": the system has not enough memory for this call", "TC602",
                            {"release memory", "a memory limit at load, to refuse such calls"});
      }
    }

    Results Computed(const Arguments& arguments, const std::vector<ffi::Tensor>& states,
                     std::atomic<bool>* broken) {
      using namespace detail;
      std::vector<const ffi::Tensor*> leaves = Checks(manifest.terms).Look(arguments);
      const Chosen chosen = Choice(code->routes(), manifest.terms, leaves);
      const Dims& dims = chosen.dims;
      const Terms& route = code->routes()[chosen.number];
      if (seen) {
        std::lock_guard<std::mutex> held(counting);
        seen->Count(chosen.all);
      }
      std::vector<ffi::Any> passed;
      std::vector<const void*> places;
      tcexport::Metrics counted;
      for (size_t index : route.taken) {
        const ffi::Tensor& tensor = *leaves[index];
        bool fits = tensor.IsContiguous() &&
                    reinterpret_cast<uintptr_t>(DataOf(tensor)) % kAlignment == 0 &&
                    tensor.byte_offset() == 0 && tensor.numel() > 0;
        if (!fits && tensor.numel() > 0)
          ++counted.copies, counted.copied_bytes += static_cast<int64_t>(BytesOf(tensor));
        ffi::Tensor given = fits ? tensor : Copy(tensor);
        places.push_back(given.data_ptr());
        passed.push_back(IsComplex(manifest.terms.inputs[index].dtype) ? InParts(given) : given);
      }
      if (!route.sizes.empty()) {
        std::vector<int64_t> sizes;
        for (const Expr& size : route.sizes) sizes.push_back(Sized(size.Value(dims)));
        passed.push_back(ffi::Shape(sizes));
      }
      for (const ffi::Tensor& state : states) {
        passed.push_back(state);
        places.push_back(state.data_ptr());
      }
      std::vector<ffi::Tensor> given = Run(route, chosen.number, passed, broken, counted);
      Results results;
      if (manifest.variants) results.variant = route.name;
      for (const Output& output : route.outputs) {
        if (output.kind == 's') {
          results.emplace_back(output.path, Plain{"int", Text(output.size.Value(dims))});
        } else if (output.kind == 'f') {
          results.emplace_back(output.path, Plain{output.type, output.text});
        } else {
          ffi::Tensor tensor = given.at(output.result);
          const void* place = tensor.data_ptr();
          bool shared = std::count(places.begin(), places.end(), place) || code->InWeights(place);
          for (const auto& [name, other] : results)
            if (auto* before = std::get_if<ffi::Tensor>(&other))
              shared = shared || before->data_ptr() == place;
          if (shared) tensor = Copy(tensor);
          if (IsComplex(output.dtype)) tensor = Together(tensor, output.dtype);
          results.emplace_back(output.path, tensor);
        }
      }
      return results;
    }

    std::vector<ffi::Tensor> Run(const detail::Terms& route, size_t number,
                                 const std::vector<ffi::Any>& passed, std::atomic<bool>* broken,
                                 const tcexport::Metrics& counted) {
      std::lock_guard<std::mutex> held(running);
      detail::SetThreads(threads);
      if (broken) *broken = true;
      auto began = std::chrono::steady_clock::now();
      try {
        std::vector<ffi::Tensor> given = code->Run(number, passed);
        std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
        if (broken) *broken = false;
        Count(number, counted, took.count());
        return given;
      } catch (const ffi::Error& error) {
        detail::Checks(route).Computed(error.message());
        if (error.message() == "std::bad_alloc") throw std::bad_alloc();
        throw InternalError(path + ": " + error.message());
      }
    }

    void Count(size_t number, const tcexport::Metrics& counted, double seconds) {
      std::lock_guard<std::mutex> held(counting);
      ++metrics.calls;
      metrics.copies += counted.copies;
      metrics.copied_bytes += counted.copied_bytes;
      metrics.seconds += seconds;
      if (code->routes().size() > 1) ++metrics.variants[code->routes()[number].name];
    }

    std::string path;
    int threads;
    detail::Manifest manifest;
    std::unique_ptr<detail::Code> code;
    std::mutex running, counting;
    tcexport::Metrics metrics;
    std::optional<detail::Seen> seen;
    std::function<Results(const Arguments&, const GuardError&)> on_violation;
  };

  std::shared_ptr<Inner> inner_;
};

/// A model with a state of its own, as it was at export, which each call changes where it lies
/// (docs/state.md). Sessions of one model share its code and weights. A call that the contract refuses
/// before it runs leaves the state as it was.
///
/// Everything throws UsageError: TC322, the session is in use by another thread.
class Session {
 public:
  explicit Session(const Model& model) : inner_(model.inner_) {
    for (const auto& row : inner_->manifest.states) {
      tensors_.push_back(detail::Empty(row.shape, detail::TypeOf(row.dtype)));
      if (row.name == inner_->manifest.generator)
        generator_ = static_cast<int64_t*>(tensors_.back().data_ptr());
    }
    Reset();
  }

  /// Runs the model on the state as it is. As `Model` otherwise.
  ///
  /// Throws UsageError: TC323, the last call failed while it ran; TC325, the model draws random numbers,
  /// and there is no seed.
  Results operator()(const Arguments& arguments) {
    Using held(this);
    if (broken_)
      throw UsageError("TC323", "the last call failed while it ran, and the state is undefined", {},
                       {"reset the session", "restore a state that was kept before"});
    if (generator_ && !generator_[1])
      throw UsageError("TC325", "the model draws random numbers, and the session has no seed", {},
                       {"seed the session"});
    return inner_->Answer(arguments, tensors_, &broken_);
  }

  /// Lets the random numbers of the next calls be those of `seed`, from the first on: equal seeds give
  /// equal numbers, bit by bit, in Python, too. `Kept` keeps how far they are.
  ///
  /// Throws UsageError: TC008, the model draws no random numbers.
  void Seed(int64_t seed) {
    if (!generator_) throw UsageError("TC008", "seed: the model draws no random numbers");
    Using held(this);
    generator_[0] = seed, generator_[1] = 1;
  }

  /// Makes the state what it was at export; random numbers need a new seed.
  void Reset() {
    Using held(this);
    for (size_t at = 0; at < tensors_.size(); ++at) {
      const auto& row = inner_->manifest.states[at];
      if (row.initial.empty())
        std::memset(tensors_[at].data_ptr(), 0, detail::BytesOf(tensors_[at]));
      else
        Write(inner_->code->weights().at(row.initial), at);
    }
    broken_ = false;
  }

  /// A copy of the state by name. Throws UsageError: TC323.
  State Kept() const {
    Using held(this);
    if (broken_)
      throw UsageError("TC323", "the last call failed while it ran: there is no state to keep");
    State kept;
    for (size_t at = 0; at < tensors_.size(); ++at)
      kept.emplace(inner_->manifest.states[at].name, detail::Copy(tensors_[at]));
    return kept;
  }

  /// Makes the state what `Kept` gave, all of it.
  ///
  /// Throws UsageError: TC324, a name, dtype or shape is another; nothing was changed.
  void Restore(const State& state) {
    using namespace detail;
    Using held(this);
    std::vector<std::string> names;
    for (const auto& row : inner_->manifest.states) names.push_back(row.name);
    std::string keeps = "the model keeps " + Join(names, ", ");
    for (const auto& name : names)
      if (!state.count(name))
        throw UsageError("TC324", "the state to restore has no " + name, {keeps});
    for (const auto& [name, value] : state)
      if (!std::count(names.begin(), names.end(), name))
        throw UsageError("TC324",
                         "the state to restore has '" + name + "', which is no state here", {keeps});
    for (const auto& row : inner_->manifest.states) {
      const ffi::Tensor& value = state.at(row.name);
      std::string found = DtypeName(value.dtype()) + " " + Listed(ShapeOf(value));
      std::string wanted = row.dtype + " " + Listed(row.shape);
      if (!OnCpu(value)) found = "on " + DeviceName(value.device());
      if (found != wanted)
        throw UsageError("TC324", row.name + " is " + found + ", the state is " + wanted);
    }
    for (size_t at = 0; at < names.size(); ++at) Write(state.at(names[at]), at);
    broken_ = false;
  }

 private:
  /// Takes the session, and does not wait for it.
  struct Using {
    explicit Using(const Session* session) : session(session) {
      if (session->used_.test_and_set())
        throw UsageError("TC322", "the session is in use by another call", {},
                         {"a session for each thread"});
    }
    ~Using() { session->used_.clear(); }
    const Session* session;
  };

  static std::string Listed(const std::vector<int64_t>& shape) {
    std::vector<std::string> sizes;
    for (int64_t size : shape) sizes.push_back(std::to_string(size));
    return "[" + detail::Join(sizes, ", ") + "]";
  }

  void Write(const ffi::Tensor& from, size_t at) {
    ffi::Tensor bits = from.IsContiguous() ? from : detail::Copy(from);
    std::memcpy(tensors_[at].data_ptr(), detail::DataOf(bits), detail::BytesOf(tensors_[at]));
  }

  std::shared_ptr<Model::Inner> inner_;
  std::vector<ffi::Tensor> tensors_;
  int64_t* generator_ = nullptr;  // in one of them: the seed, and the number of the next call
  std::atomic<bool> broken_{false};
  mutable std::atomic_flag used_ = ATOMIC_FLAG_INIT;
};

}  // namespace tcexport
