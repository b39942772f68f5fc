// The contract of a call (runtime/explain.py): the same conditions in the same order, the same words.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tvm/ffi/container/tensor.h>

#include "contract.hpp"
#include "error.hpp"
#include "expr.hpp"
#include "tensors.hpp"
#include "value.hpp"

namespace tcexport {
namespace detail {

/// Holds calls against a contract. Throws GuardError.
class Checks {
 public:
  using Tensors = std::vector<const ffi::Tensor*>;

  explicit Checks(const Terms& terms) : terms_(terms) {}

  /// The tensors by the numbers of their inputs; fixed values are compared.
  Tensors Look(const Arguments& arguments) const {
    std::set<std::string> known;
    for (const Input& input : terms_.inputs) known.insert(input.path);
    std::string call = "(";
    for (const Input& input : terms_.inputs) call += (call.size() > 1 ? ", " : "") + input.path;
    call += ")";
    for (const auto& [path, value] : arguments)
      if (!known.count(path))
        throw Unbound(path, "is not an input of this model", "to be left out", call);
    Tensors leaves;
    for (size_t index = 0; index < terms_.inputs.size(); ++index) {
      const Input& input = terms_.inputs[index];
      auto found = arguments.find(input.path);
      leaves.push_back(nullptr);
      if (found == arguments.end()) {
        if (terms_.optional.count(index) && !input.tensor) continue;
        throw Unbound(input.path, "is missing", "one argument", call);
      }
      const Plain* plain = std::get_if<Plain>(&found->second);
      if (!input.tensor) {
        static const Origin origin{"fixed at export"};
        Plain wanted{input.dtype, input.text};
        if (!plain || !(*plain == wanted))
          Refuse("TC308", input.path, "", plain ? plain->Shown(80) : "a Tensor", wanted.Shown(),
                 &origin);
        continue;
      }
      if (plain)
        Refuse("TC303", input.path, "", plain->Shown(),
               "a tensor of " + input.dtype + " " + AxesOf(input), nullptr);
      const ffi::Tensor& tensor = std::get<ffi::Tensor>(found->second);
      if (!OnCpu(tensor))
        Refuse("TC310", input.path, "", DeviceName(tensor.device()), "cpu", nullptr, {},
               {"move the tensor to the CPU"});
      leaves.back() = &tensor;
    }
    return leaves;
  }

  /// The values of the dims, where the call meets every condition.
  Dims Explain(const Tensors& leaves) const {
    for (size_t index = 0; index < leaves.size(); ++index)
      if (leaves[index]) CheckTensor(terms_.inputs[index], *leaves[index]);
    Dims dims;
    for (const Dim& dim : terms_.dims) dims[dim.name] = Read(dim, leaves);
    for (const Dim& dim : terms_.dims) CheckRange(dim, dims.at(dim.name), leaves);
    for (size_t index = 0; index < leaves.size(); ++index)
      if (leaves[index]) CheckAxes(terms_.inputs[index], *leaves[index], dims);
    for (const Guard& guard : terms_.guards)
      if (!guard.expr.Holds(dims)) Violated(guard, dims, leaves);
    for (const IndexGuard& guard : terms_.index_guards)
      CheckIndex(guard, *leaves[guard.input], dims);
    return dims;
  }

  /// Whether there are values of the sizes that the code and the results need.
  void CheckSizes(const Dims& dims, const Tensors& leaves) const {
    for (const Expr& size : terms_.sizes) CheckValue(size, dims, leaves);
    for (const Output& output : terms_.outputs)
      if (output.kind == 's') CheckValue(output.size, dims, leaves);
  }

  /// Throws the GuardError of a check in the compiled code, if `message` is of one.
  void Computed(const std::string& message) const {
    const std::string mark = "tcexport check ";
    size_t at = message.find(mark);
    if (at == std::string::npos) return;
    size_t number = std::strtoul(message.c_str() + at + mark.size(), nullptr, 10);
    if (number >= terms_.computed_guards.size()) return;
    const ComputedGuard& guard = terms_.computed_guards[number];
    std::vector<std::string> notes = {"from: " + guard.origin.text};
    if (!terms_.dims.empty()) notes.push_back("the bundle serves: " + terms_.Serves());
    if (guard.assertion) {
      const std::string &what = guard.what, told = what.empty() ? guard.origin.text : what;
      throw GuardError("TC311",
                       guard.origin.reason + " does not hold" + (what.empty() ? "" : ": " + what),
                       notes, {},
                       {"", "false", what.empty() ? "true" : what, "assertion: " + told});
    }
    std::string size = guard.size ? guard.size->Render() : "the size of what they index", lowest = "0";
    if (guard.wraps && guard.size)
      lowest = guard.size->operands.empty() ? "-" + size : "-(" + size + ")";
    const std::string needs = lowest + " <= index < " + size;
    throw GuardError("TC309", guard.what + ": one is out of range, needs " + needs, notes, {},
                     {"", "out of range", needs, guard.what + ": " + needs});
  }

 private:
  static GuardError Unbound(const std::string& path, const std::string& got,
                            const std::string& needs, const std::string& call) {
    return GuardError("TC302", path + ": " + got + ", needs " + needs, {"the call is " + call}, {},
                      {path, got, needs, "the arguments and their structure"});
  }

  /// `guard` says what is needed without the sizes of this call, where `needs` holds them.
  [[noreturn]] void Refuse(const std::string& code, std::string place, const std::string& label,
                           const std::string& got, const std::string& needs,
                           const Origin* origin, std::vector<std::string> notes = {},
                           std::vector<std::string> tries = {}, std::string guard = "") const {
    const std::string where = place;
    if (!label.empty() && label != place) place += " (" + label + ")";
    if (origin) notes.push_back("from: " + origin->text);
    if (!terms_.dims.empty()) notes.push_back("the bundle serves: " + terms_.Serves());
    if (guard.empty()) guard = needs;
    throw GuardError(code, place + ": got " + got + ", needs " + needs, notes, tries,
                     {where, got, needs, place + ": " + guard});
  }

  static std::string At(const std::string& path, size_t axis) {
    return path + " axis " + std::to_string(axis);
  }

  static std::string AxesOf(const Input& input) {
    std::vector<std::string> sizes;
    for (const auto& size : input.shape) sizes.push_back(size.Render());
    return "(" + Join(sizes, ", ") + ")";
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

  void CheckTensor(const Input& input, const ffi::Tensor& tensor) const {
    std::string dtype = DtypeName(tensor.dtype());
    if (dtype != input.dtype)
      Refuse("TC304", input.path, "", dtype, input.dtype, nullptr);
    std::vector<int64_t> shape = ShapeOf(tensor);
    if (shape.size() != input.shape.size())
      Refuse("TC305", input.path, "", Count(shape.size()) + " " + Tuple(shape),
             Count(input.shape.size()) + " " + AxesOf(input), nullptr);
    if (input.contiguous && !tensor.IsContiguous()) {
      static const Origin origin{
          "the model asks for the layout of tensors, and the trace kept the answer"};
      Refuse("TC312", input.path, "", "a tensor that is not contiguous", "a contiguous one", &origin,
             {}, {"copy it, row by row"});
    }
    static const Origin fixed{"this axis is fixed"};
    for (size_t axis = 0; axis < shape.size(); ++axis)
      if (input.shape[axis].constant() && input.shape[axis].number != shape[axis])
        Refuse("TC306", At(input.path, axis), "", std::to_string(shape[axis]),
               input.shape[axis].Render(), &fixed);
  }

  Wide Read(const Dim& dim, const Tensors& leaves) const {
    const ffi::Tensor& tensor = *leaves[dim.input];
    if (dim.by_value) {
      if (tensor.numel() != 1)
        Refuse("TC306", terms_.inputs[dim.input].path, "", "shape " + Tuple(ShapeOf(tensor)),
               "one element", nullptr);
      return Integer(tensor, 0);
    }
    Wide over = static_cast<Wide>(tensor.size(static_cast<int>(dim.axis))) - dim.offset;
    return over / dim.scale - (over % dim.scale < 0 ? 1 : 0);
  }

  /// Argument and axis, label, and what came, of the place that a dim is read from.
  struct Place {
    std::string where, label, got;
  };

  Place PlaceOf(const Dim& dim, const Tensors& leaves) const {
    const Input& input = terms_.inputs[dim.input];
    if (dim.by_value)
      return {input.path, dim.name, Text(Integer(*leaves[dim.input], 0))};
    return {At(input.path, dim.axis), input.shape[dim.axis].Render(),
            std::to_string(leaves[dim.input]->size(static_cast<int>(dim.axis)))};
  }

  void CheckRange(const Dim& dim, Wide value, const Tensors& leaves) const {
    std::string needs;
    const Origin* origin = nullptr;
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

  static std::string Values(const Expr& expr, const Dims& dims) {
    std::vector<std::string> names, parts;
    expr.Names(&names);
    for (const auto& name : std::set<std::string>(names.begin(), names.end()))
      parts.push_back(name + " = " + Text(dims.at(name)));
    return Join(parts, ", ");
  }

  const Dim& DimOf(const std::string& name) const {
    for (const auto& dim : terms_.dims)
      if (dim.name == name) return dim;
    throw std::logic_error("no dim " + name);
  }

  void CheckAxes(const Input& input, const ffi::Tensor& tensor,
                 const Dims& dims) const {
    for (size_t axis = 0; axis < input.shape.size(); ++axis) {
      const Expr& size = input.shape[axis];
      std::string got = std::to_string(tensor.size(static_cast<int>(axis)));
      Wide needed;
      try {
        needed = size.Value(dims);
      } catch (const NoValue& error) {
        Refuse("TC306", At(input.path, axis), size.Render(), got,
               size.Render() + ", which has no value (" + error.what() + ")", nullptr, {}, {},
               size.Render());
      }
      if (needed == tensor.size(static_cast<int>(axis))) continue;
      std::string shown = size.Render() + " = " + Text(needed);
      if (size.dim()) {
        const Dim& dim = DimOf(size.name);
        const std::string& path = terms_.inputs[dim.input].path;
        shown += ", as " + (dim.by_value ? path : At(path, dim.axis));
      } else {
        shown += " (" + Values(size, dims) + ")";
      }
      Refuse("TC306", At(input.path, axis), size.Render(), got, shown, nullptr, {}, {},
             size.Render());
    }
  }

  [[noreturn]] void Violated(const Guard& guard, const Dims& dims,
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

  void CheckIndex(const IndexGuard& guard, const ffi::Tensor& tensor,
                  const Dims& dims) const {
    const std::string& path = terms_.inputs[guard.input].path;
    const std::string within = guard.lo.Render() + " <= each value <= " + guard.hi.Render();
    std::vector<int64_t> to = ShapeOf(tensor), from(to.size(), 0), shift(to.size(), 0);
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
    } catch (const NoValue& error) {
      Refuse("TC309", path, "", "sizes",
             guard.lo.Render() + " <= " + path + " <= " + guard.hi.Render() + " (" + error.what() + ")",
             &guard.origin, {}, {}, within);
    }
    ForEach(tensor, from, to, [&](int64_t offset, const std::vector<int64_t>& at) {
      Wide value = Integer(tensor, offset);
      if (lo <= value && value <= hi) return true;
      std::string got = Text(value);
      for (size_t axis = 0; axis < at.size(); ++axis)
        got += (axis ? ", " : " at [") + std::to_string(at[axis] + shift[axis]);
      Refuse("TC309", path, "", got + (at.empty() ? "" : "]"),
             Text(lo) + " <= " + path + " <= " + Text(hi), &guard.origin, {}, {}, within);
    });
  }

  void CheckValue(const Expr& size, const Dims& dims, const Tensors& leaves) const {
    try {
      size.Value(dims);
    } catch (const NoValue& error) {
      std::vector<std::string> names;
      size.Names(&names);
      Place place = PlaceOf(DimOf(names.at(0)), leaves);
      Refuse("TC307", place.where, place.label, place.got,
             "a value of " + size.Render() + " (" + error.what() + ")", nullptr,
             {"with " + Values(size, dims)}, {}, size.Render());
    }
  }

  const Terms& terms_;
};

/// A size that the compiled code can be given. Throws GuardError: TC307.
inline int64_t Sized(Wide size) {
  if (size == static_cast<int64_t>(size)) return static_cast<int64_t>(size);
  const std::string where = "the call", got = "a size of " + Text(size), needs = "sizes of 64 bits";
  throw GuardError("TC307", where + ": got " + got + ", needs " + needs, {}, {}, {where, got, needs, where + ": " + needs});
}

}  // namespace detail
}  // namespace tcexport
