// The plain C interface (tcexport.h) over the C++ host (tcexport.hpp).
#include "tcexport.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "tcexport.hpp"

namespace ffi = tvm::ffi;
using tcexport::Plain;

struct tcexport_error {
  std::string code, text, message;
  tcexport_kind kind;
};

struct tcexport_model {
  tcexport::Model model;
  std::vector<std::string> inputs;
};

struct tcexport_session {
  tcexport::Session session;
};

struct tcexport_results {
  tcexport::Results held;
  std::deque<DLTensor> tensors;
  std::vector<tcexport_value> values;
};

namespace {

tcexport_error* Refusal(const tcexport::Error& error, tcexport_kind kind) {
  return new tcexport_error{error.code, error.what(), tcexport::detail::Printable(error.message), kind};
}

/// An error that a listener answers.
struct Own {
  tcexport_error* error;
};

/// What `work` throws, as an error; NULL where it does not.
template <typename F>
tcexport_error* Guarded(F work) noexcept {
  try {
    work();
    return nullptr;
  } catch (const Own& own) {
    return own.error;
  } catch (const tcexport::UsageError& error) {
    return Refusal(error, TCEXPORT_USAGE);
  } catch (const tcexport::BundleError& error) {
    return Refusal(error, TCEXPORT_BUNDLE);
  } catch (const tcexport::GuardError& error) {
    return Refusal(error, TCEXPORT_CALL);
  } catch (const tcexport::InternalError& error) {
    return Refusal(error, TCEXPORT_INTERNAL);
  } catch (const std::bad_alloc&) {
    return Refusal(tcexport::InternalError("the system has not enough memory", "TC602"),
                   TCEXPORT_INTERNAL);
  } catch (const std::exception& error) {
    return Refusal(tcexport::InternalError(error.what()), TCEXPORT_INTERNAL);
  }
}

[[noreturn]] void Malformed(const std::string& what) { throw tcexport::UsageError("TC008", what); }

/// What a pointer leads to. Throws UsageError: TC008, it is NULL.
template <typename T>
T& Given(T* pointer, const char* what) {
  if (!pointer) Malformed(std::string(what) + " is NULL");
  return *pointer;
}

constexpr tcexport::Wide kMostElements = tcexport::Wide(1) << 56;

/// How many elements a tensor without empty axes has, or spans where its strides say more; beyond
/// `kMostElements` any number that is.
tcexport::Wide Reach(const DLTensor& tensor) {
  tcexport::Wide elements = 1, span = 0;
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    elements = std::min(elements * tensor.shape[axis], kMostElements + 1);
    tcexport::Wide stride = tensor.strides ? tensor.strides[axis] : 0;
    span += (tensor.shape[axis] - 1) * (stride < 0 ? -stride : stride);
    span = std::min(span, kMostElements + 1);
  }
  return std::max(elements, span);
}

/// A view of the caller's tensor, for as long as a call lasts.
ffi::Tensor Borrowed(const tcexport_value& value) {
  const DLTensor* given = value.tensor;
  if (!given || given->ndim < 0 || (given->ndim && !given->shape))
    Malformed(std::string(value.path) + ": a tensor without a shape");
  struct Holder {
    DLManagedTensor managed{};
    std::vector<int64_t> strides;
  };
  auto holder = std::make_unique<Holder>();
  DLTensor& tensor = holder->managed.dl_tensor;
  tensor = *given;
  bool empty = false;
  for (int axis = 0; axis < tensor.ndim; ++axis) {
    if (tensor.shape[axis] < 0) Malformed(std::string(value.path) + ": a size below 0");
    empty = empty || tensor.shape[axis] == 0;
  }
  if (!empty && Reach(tensor) > kMostElements)
    Malformed(std::string(value.path) + ": a tensor larger than memory can be");
  if (!tensor.data && !empty) Malformed(std::string(value.path) + ": a tensor without data");
  if (!tensor.strides) {
    holder->strides.assign(static_cast<size_t>(tensor.ndim), 1);
    for (int axis = tensor.ndim; axis-- > 1;)
      holder->strides[axis - 1] =
          tcexport::detail::Times(holder->strides[axis], tensor.shape[axis]);
    tensor.strides = holder->strides.data();
  }
  holder->managed.manager_ctx = holder.get();
  holder->managed.deleter = [](DLManagedTensor* self) {
    delete static_cast<Holder*>(self->manager_ctx);
  };
  return ffi::Tensor::FromDLPack(&holder.release()->managed);
}

/// The type of a value as a number: one that is none of the types, too.
int TypeOf(const tcexport_value& value) {
  static_assert(sizeof value.type == sizeof(int));
  int type = 0;
  std::memcpy(&type, &value.type, sizeof type);
  return type;
}

Plain PlainOf(const tcexport_value& value) {
  switch (TypeOf(value)) {
    case TCEXPORT_NONE: return Plain::None();
    case TCEXPORT_BOOL: return Plain::Of(value.integer != 0);
    case TCEXPORT_INT: return Plain::Of(value.integer);
    case TCEXPORT_FLOAT: return Plain::Of(value.real);
    case TCEXPORT_STR:
      if (!value.text) Malformed(std::string(value.path) + ": a text of NULL");
      return Plain::Of(value.text);
    default: Malformed(std::string(value.path) + ": there is no such type of value");
  }
}

void HaveName(const tcexport_value& value) {
  if (!value.path) Malformed("a value without a path");
}

tcexport::Arguments ArgumentsOf(const tcexport_value* values, size_t count) {
  tcexport::Arguments arguments;
  if (count) Given(values, "the arguments");
  for (size_t at = 0; at < count; ++at) {
    const tcexport_value& value = values[at];
    HaveName(value);
    bool tensor = TypeOf(value) == TCEXPORT_TENSOR;
    auto argument = tensor ? tcexport::Argument(Borrowed(value)) : tcexport::Argument(PlainOf(value));
    if (!arguments.emplace(value.path, std::move(argument)).second)
      Malformed(std::string(value.path) + " is given twice");
  }
  return arguments;
}

tcexport::Serves ServesOf(const tcexport_range* ranges, size_t count) {
  tcexport::Serves serves;
  for (size_t at = 0; at < count; ++at) {
    const tcexport_range& range = ranges[at];
    if (!range.dim) Malformed("a range without the name of its dim");
    serves.emplace_back(range.dim, tcexport::Range{range.lo, range.hi, range.step ? range.step : 1});
    if (range.endless) serves.back().second.hi.reset();
  }
  return serves;
}

/// Counts as values: `text` is what each is of.
tcexport_results* MetricsOf(const tcexport::Metrics& metrics) {
  auto made = std::make_unique<tcexport_results>();
  auto add = [&](const char* path, int64_t count, const std::string& label = "") {
    made->held.emplace_back(label, Plain::Of(count));
    made->values.push_back({path, TCEXPORT_INT, nullptr, count, 0, nullptr});
  };
  add("calls", metrics.calls);
  add("copies", metrics.copies);
  add("copied_bytes", metrics.copied_bytes);
  add("seconds", 0);
  made->values.back().type = TCEXPORT_FLOAT, made->values.back().real = metrics.seconds;
  for (const auto& [code, count] : metrics.violations) add("violations", count, code);
  for (const auto& [guard, count] : metrics.guards) add("guards", count, guard);
  for (const auto& [name, count] : metrics.variants) add("variants", count, name);
  for (size_t at = 0; at < made->values.size(); ++at)
    made->values[at].text = made->held[at].first.c_str();
  return made.release();
}

tcexport_results* ResultsOf(tcexport::Results held) {
  auto made = std::make_unique<tcexport_results>();
  made->held = std::move(held);
  for (const auto& [path, result] : made->held) {
    tcexport_value value{path.c_str(), TCEXPORT_TENSOR, nullptr, 0, 0, nullptr};
    if (const auto* tensor = std::get_if<ffi::Tensor>(&result)) {
      made->tensors.push_back(*tensor->GetDLTensorPtr());
      value.tensor = &made->tensors.back();
    } else {
      const Plain& plain = std::get<Plain>(result);
      value.text = plain.text.c_str();
      if (plain.type == "none") value.type = TCEXPORT_NONE;
      if (plain.type == "str") value.type = TCEXPORT_STR;
      if (plain.type == "bool") value.type = TCEXPORT_BOOL, value.integer = plain.text == "True";
      if (plain.type == "int") {
        value.type = TCEXPORT_INT;
        errno = 0;
        value.integer = std::strtoll(value.text, nullptr, 10);
        if (errno) value.integer = 0;
      }
      if (plain.type == "float")
        value.type = TCEXPORT_FLOAT, value.real = std::strtod(value.text, nullptr);
    }
    made->values.push_back(value);
  }
  return made.release();
}

/// What a listener makes of a refused call. Throws GuardError: nothing; or its own error.
tcexport::Results Answered(tcexport_violation call, void* context,
                           const tcexport::Arguments& arguments, const tcexport::GuardError& error) {
  tcexport::Results flat;
  for (const auto& [path, value] : arguments) flat.emplace_back(path, value);
  std::unique_ptr<tcexport_results> values(ResultsOf(std::move(flat)));
  std::unique_ptr<tcexport_error> refusal(Refusal(error, TCEXPORT_CALL));
  tcexport_results* given = nullptr;
  tcexport_error* own =
      call(context, values->values.data(), values->values.size(), refusal.get(), &given);
  std::unique_ptr<tcexport_results> answer(given);
  if (own && own != refusal.get()) throw Own{own};
  if (!answer || own) throw tcexport::GuardError(error);
  return std::move(answer->held);
}

tcexport::Options OptionsOf(const tcexport_options& given) {
  tcexport::Options asked;
  if (given.threads) asked.threads = given.threads;
  if (given.keys) {
    asked.require_signature.emplace();
    for (size_t at = 0; at < given.key_count; ++at)
      asked.require_signature->push_back(&Given(given.keys[at], "the path of a key"));
  }
  if (given.memory_limit) asked.memory_limit = given.memory_limit;
  if (given.serves) asked.serves = ServesOf(given.serves, given.serve_count);
  if (given.device) asked.device = given.device;
  if (given.variant) asked.variant = given.variant;
  if (given.on_violation)
    asked.on_violation = [call = given.on_violation, context = given.context](
                             const tcexport::Arguments& arguments, const tcexport::GuardError& error) {
      return Answered(call, context, arguments, error);
    };
  asked.count_sizes = given.count_sizes != 0;
  return asked;
}

/// Text as values.
tcexport_results* TextOf(const char* path, std::string text) {
  tcexport::Results held;
  held.emplace_back(path, Plain::Of(std::move(text)));
  return ResultsOf(std::move(held));
}

}  // namespace

int tcexport_abi(void) { return TCEXPORT_ABI; }

const char* tcexport_error_code(const tcexport_error* error) {
  return error ? error->code.c_str() : "";
}
const char* tcexport_error_text(const tcexport_error* error) {
  return error ? error->text.c_str() : "";
}
const char* tcexport_error_message(const tcexport_error* error) {
  return error ? error->message.c_str() : "";
}
tcexport_kind tcexport_error_kind(const tcexport_error* error) {
  return error ? error->kind : TCEXPORT_INTERNAL;
}
void tcexport_error_free(tcexport_error* error) { delete error; }

size_t tcexport_results_count(const tcexport_results* results) {
  return results ? results->values.size() : 0;
}
const tcexport_value* tcexport_results_at(const tcexport_results* results, size_t index) {
  return index < tcexport_results_count(results) ? &results->values[index] : nullptr;
}
const char* tcexport_results_variant(const tcexport_results* results) {
  return results ? results->held.variant.c_str() : "";
}
void tcexport_results_free(tcexport_results* results) { delete results; }

tcexport_error* tcexport_load(const char* path, const tcexport_options* options,
                              tcexport_model** model) {
  return Guarded([&] {
    Given(path, "the path of the bundle");
    Given(model, "the place for the model");
    tcexport::Model loaded(path, options ? OptionsOf(*options) : tcexport::Options{});
    auto inputs = loaded.Inputs();
    *model = new tcexport_model{std::move(loaded), std::move(inputs)};
  });
}

tcexport_error* tcexport_model_metrics(const tcexport_model* model, tcexport_results** metrics) {
  return Guarded([&] {
    Given(metrics, "the place for the metrics");
    *metrics = MetricsOf(Given(model, "the model").model.Metrics());
  });
}

tcexport_error* tcexport_model_seen(const tcexport_model* model, tcexport_results** sizes) {
  return Guarded([&] {
    Given(sizes, "the place for the sizes");
    *sizes = TextOf("seen", Given(model, "the model").model.Seen());
  });
}

tcexport_error* tcexport_release_memory(tcexport_model* model, int64_t* bytes) {
  return Guarded([&] {
    int64_t given = Given(model, "the model").model.ReleaseMemory().value_or(-1);
    if (bytes) *bytes = given;
  });
}

void tcexport_model_free(tcexport_model* model) { delete model; }

size_t tcexport_input_count(const tcexport_model* model) {
  return model ? model->inputs.size() : 0;
}
const char* tcexport_input_path(const tcexport_model* model, size_t index) {
  return index < tcexport_input_count(model) ? model->inputs[index].c_str() : nullptr;
}

tcexport_error* tcexport_call(tcexport_model* model, const tcexport_value* arguments, size_t count,
                              tcexport_results** results) {
  return Guarded([&] {
    Given(results, "the place for the results");
    *results = ResultsOf(Given(model, "the model").model(ArgumentsOf(arguments, count)));
  });
}

tcexport_error* tcexport_session_new(const tcexport_model* model, tcexport_session** session) {
  return Guarded([&] {
    Given(session, "the place for the session");
    *session = new tcexport_session{tcexport::Session(Given(model, "the model").model)};
  });
}

void tcexport_session_free(tcexport_session* session) { delete session; }

tcexport_error* tcexport_session_call(tcexport_session* session, const tcexport_value* arguments,
                                      size_t count, tcexport_results** results) {
  return Guarded([&] {
    Given(results, "the place for the results");
    *results = ResultsOf(Given(session, "the session").session(ArgumentsOf(arguments, count)));
  });
}

tcexport_error* tcexport_session_seed(tcexport_session* session, int64_t seed) {
  return Guarded([&] { Given(session, "the session").session.Seed(seed); });
}

tcexport_error* tcexport_session_reset(tcexport_session* session) {
  return Guarded([&] { Given(session, "the session").session.Reset(); });
}

tcexport_error* tcexport_session_keep(tcexport_session* session, tcexport_results** state) {
  return Guarded([&] {
    Given(state, "the place for the state");
    tcexport::Results kept;
    for (auto& [name, tensor] : Given(session, "the session").session.Kept()) kept.emplace_back(name, tensor);
    *state = ResultsOf(std::move(kept));
  });
}

tcexport_error* tcexport_session_restore(tcexport_session* session, const tcexport_value* state,
                                         size_t count) {
  return Guarded([&] {
    Given(session, "the session");
    if (count) Given(state, "the state");
    tcexport::State given;
    for (size_t at = 0; at < count; ++at) {
      HaveName(state[at]);
      if (TypeOf(state[at]) != TCEXPORT_TENSOR)
        throw tcexport::UsageError("TC324", std::string(state[at].path) + " is not a tensor");
      if (!given.emplace(state[at].path, Borrowed(state[at])).second)
        Malformed(std::string(state[at].path) + " is given twice");
    }
    session->session.Restore(given);
  });
}
