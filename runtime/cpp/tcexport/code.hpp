// Code from a bundle: TVM's runtime, a library, and a virtual machine on it (runtime/library.py).
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/tvm_ffi.h>

#include "bundle.hpp"
#include "contract.hpp"
#include "error.hpp"
#include "machine.hpp"
#include "tensors.hpp"

#ifndef TCEXPORT_FFI_VERSION
#error "define TCEXPORT_FFI_VERSION as the version of apache-tvm-ffi whose headers and library are used"
#endif

namespace tcexport {
namespace detail {

/// Through ffi's C interface: the layout of its C++ classes is none between its versions, and the
/// libraries of a bundle were built with their own.
inline ffi::Any Packed(const ffi::Function& function, const std::vector<ffi::Any>& arguments) {
  std::vector<ffi::AnyView> views(arguments.begin(), arguments.end());
  TVMFFIAny answer{};
  TVM_FFI_CHECK_SAFE_CALL(TVMFFIFunctionCall(
      ffi::details::ObjectUnsafe::TVMFFIObjectPtrFromObjectRef(function),
      reinterpret_cast<TVMFFIAny*>(views.data()), static_cast<int32_t>(views.size()), &answer));
  return ffi::details::AnyUnsafe::MoveTVMFFIAnyToAny(&answer);
}

template <typename... T>
ffi::Any Call(const ffi::Function& function, const T&... arguments) {
  return Packed(function, {ffi::Any(arguments)...});
}

inline ffi::Function Global(const char* name) { return ffi::Function::GetGlobalRequired(name); }

inline ffi::Function Named(const ffi::Module& module, const std::string& name) {
  ffi::Any answer = Call(Global("ffi.ModuleGetFunction"), module, ffi::String(name), false);
  auto found = answer.as<ffi::Function>();
  if (!found || !found->defined()) throw InternalError("the compiled code has no function " + name);
  return *found;
}

/// What `load` makes of the verified bytes of a member: copied, compared again, sealed.
template <typename T>
T LoadMember(Bundle* bundle, const std::string& member,
             const std::function<T(const std::string&)>& load) {
  Span span = bundle->View(member);
  std::vector<uint8_t> bytes(span.data, span.data + span.size);
  if (Sha256(bytes.data(), bytes.size()) != bundle->manifest.members.at(member).sha256)
    throw BundleError("TC402", bundle->path + ": member " + member + " changed while it was loaded");
  try {
    return WithFile({bytes.data(), bytes.size()}, member.substr(member.rfind('/') + 1), load);
  } catch (const std::exception& error) {
    throw BundleError("TC404", bundle->path + ": the system cannot load " + member,
                      {std::string("as a memory file: ") + error.what()});
  }
}

/// The runtime that a bundle brings for this machine. Throws BundleError: TC404.
inline const Runtime& RuntimeFor(const Bundle& bundle, const Machine& machine) {
  std::vector<std::string> held;
  for (const Runtime& runtime : bundle.manifest.runtimes) {
    held.push_back(runtime.system + " " + runtime.machine);
    if (runtime.system == machine.system && runtime.machine == machine.machine) return runtime;
  }
  throw BundleError("TC404", bundle.path + " brings a runtime for " +
                                 (held.empty() ? "none" : Join(held, ", ")) + ", found " +
                                 machine.system + " " + machine.machine);
}

/// Lets the libraries of a bundle find libtvm_ffi, which they do not name: it is not seen by all where
/// the host was itself loaded with dlopen, as a plugin or by another language.
///
/// Throws BundleError: TC404. (Without, the loader would end the process at the first symbol.)
inline void ShowFfi(const std::string& path) {
  constexpr const char* kSymbol = "TVMFFIErrorSetRaisedFromCStrParts";
  Dl_info info{};
  void* all = dlopen(nullptr, RTLD_NOW);  // RTLD_DEFAULT would look into this library's own, too
  if (!dlsym(all, kSymbol) && dladdr(reinterpret_cast<void*>(&TVMFFIFunctionCall), &info) &&
      info.dli_fname)
    dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  bool shown = dlsym(all, kSymbol) != nullptr;
  dlclose(all);
  if (!shown)
    throw BundleError("TC404", path + ": its code cannot find libtvm_ffi.so in this process", {},
                      {"load libtvm_ffi.so with RTLD_GLOBAL"});
}

/// Makes sure that the process has the TVM runtime that the bundle was built for.
///
/// Throws BundleError: TC404, the system cannot load it; TC405, the process has another one.
inline void LoadRuntime(Bundle* bundle, const Runtime& wanted) {
  if (wanted.ffi != TCEXPORT_FFI_VERSION)
    throw BundleError("TC405",
                      bundle->path + " was built for apache-tvm-ffi " + wanted.ffi + ", found " +
                          TCEXPORT_FFI_VERSION,
                      {}, {"build the host with apache-tvm-ffi " + wanted.ffi});
  ShowFfi(bundle->path);
  std::string digest = bundle->manifest.members.at(wanted.library).sha256;
  static std::mutex loading;
  std::lock_guard<std::mutex> held(loading);
  setenv("TVM_BIND_THREADS", "0", 0);
  setenv("TVM_THREAD_POOL_SPIN_COUNT", "2000", 0);
  if (!ffi::Function::GetGlobal("runtime.NumThreads")) {
    LoadMember<bool>(bundle, wanted.library, [](const std::string& place) {
      if (!dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) throw std::runtime_error(dlerror());
      return true;
    });
    LoadedRuntime() = digest;
  }
  if (LoadedRuntime() != digest)
    throw BundleError("TC405",
                      bundle->path + " was built for the TVM runtime " + wanted.version +
                          "; this process has another",
                      {}, {"load this bundle in a process of its own"});
}

/// A library, its weights, and a virtual machine, which one thread may use at a time. It keeps what its
/// last call has computed.
class Code {
 public:
  /// `weights`: those of the bundle, by name.
  Code(Bundle* bundle, const std::string& library, std::vector<Terms> routes,
       std::map<std::string, ffi::Tensor> weights)
      : routes_(std::move(routes)),
        weights_(std::move(weights)),
        library_(LoadMember<ffi::Module>(bundle, library, [](const std::string& place) {
          return Call(Global("ffi.Module.load_from_file.so"), ffi::String(place), ffi::String("so"))
              .cast<ffi::Module>();
        })) {
    if (!weights_.empty()) {
      Span span = bundle->View(kWeights);
      low_ = span.data, high_ = span.data + span.size;
    }
    Start();
  }

  const std::vector<Terms>& routes() const { return routes_; }
  const std::map<std::string, ffi::Tensor>& weights() const { return weights_; }

  /// Whether an address lies in the weights, which are nobody's to write to.
  bool InWeights(const void* place) const { return low_ <= place && place < high_; }

  /// The tensors that a route's function returns. After an exception the machine is made anew: it
  /// stopped in the middle.
  std::vector<ffi::Tensor> Run(size_t route, const std::vector<ffi::Any>& arguments) {
    try {
      ffi::Any answer = Packed(functions_[route], arguments);
      if (auto several = answer.as<ffi::Array<ffi::Tensor>>())
        return {several->begin(), several->end()};
      return {answer.cast<ffi::Tensor>()};
    } catch (...) {
      Start();
      throw;
    }
  }

  /// Makes the machine anew.
  void Start() {
    ffi::Module vm = Call(Named(library_, "vm_load_executable")).cast<ffi::Module>();
    constexpr int kNaive = 1;  // TVM's pooled allocator keeps what one large call took for ever
    Call(Named(vm, "vm_initialization"), static_cast<int>(kDLCPU), 0, kNaive);
    std::vector<ffi::Function> functions;
    for (const Terms& route : routes_) {
      std::string name = route.function;
      if (!route.weights.empty()) {
        name += " with weights";
        std::vector<ffi::Any> bound = {ffi::String(route.function), ffi::String(name), true};
        for (const auto& weight : route.weights) bound.push_back(weights_.at(weight));
        Packed(Named(vm, "save_function"), bound);
      }
      functions.push_back(Named(vm, name));
    }
    vm_ = vm;
    functions_ = std::move(functions);
  }

 private:
  std::vector<Terms> routes_;
  std::map<std::string, ffi::Tensor> weights_;
  const void *low_ = nullptr, *high_ = nullptr;
  ffi::Module library_;
  ffi::Module vm_{ffi::UnsafeInit()};
  std::vector<ffi::Function> functions_;
};

/// Sets the calling thread's pool of worker threads, which TVM makes at the first use.
///
/// Throws InternalError: TC601, the process was forked since, and the threads stayed behind: TVM would
/// wait for them for ever.
inline void SetThreads(int threads) {
  static thread_local int set = 0, made = 0;
  static thread_local pid_t process = 0;
  if (!made) made = threads, process = getpid();
  if (threads > 1 && made > 1 && process != getpid())
    throw InternalError("the process was forked after this thread had called a model with " +
                            std::to_string(made) + " threads, which do not exist in the child",
                        "TC601",
                        {"call the model in a new thread of the child",
                         "fork before the first call, or load with threads=1"});
  if (set == threads) return;
  ffi::Array<ffi::String> cores;
  for (int number = 0; number < threads; ++number) cores.push_back(std::to_string(number));
  Call(Global("runtime.config_threadpool"), 1, threads, cores);
  set = threads;
}

}  // namespace detail
}  // namespace tcexport
