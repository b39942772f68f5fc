// Tensors on the CPU, weights on the mapped file, and libraries from memory files.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>

#include "file.hpp"
#include "json.hpp"

namespace tcexport {
namespace detail {

namespace ffi = tvm::ffi;
constexpr size_t kAlignment = 64;

inline std::string DtypeName(DLDataType type) {
  static const std::map<int, std::string> of_bits = {
      {kDLInt, "int"},       {kDLUInt, "uint"},       {kDLFloat, "float"},
      {kDLBfloat, "bfloat"}, {kDLComplex, "complex"}};
  static const std::map<int, std::string> of_one_byte = {
      {kDLBool, "bool"},
      {kDLFloat8_e4m3fn, "float8_e4m3fn"},
      {kDLFloat8_e5m2, "float8_e5m2"},
      {kDLFloat8_e4m3fnuz, "float8_e4m3fnuz"},
      {kDLFloat8_e5m2fnuz, "float8_e5m2fnuz"}};
  const std::string lanes = type.lanes == 1 ? "" : "x" + std::to_string(type.lanes);
  if (auto found = of_bits.find(type.code); found != of_bits.end())
    return found->second + std::to_string(type.bits) + lanes;
  if (auto found = of_one_byte.find(type.code); found != of_one_byte.end() && type.bits == 8)
    return found->second + lanes;
  return "dtype " + std::to_string(type.code) + " of " + std::to_string(type.bits) + " bits" + lanes;
}

/// As `tensors.device_name` of Python: "cpu", "cuda:0".
inline std::string DeviceName(DLDevice device) {
  static const std::map<int, std::string> names = {
      {kDLCPU, "cpu"},     {kDLCUDA, "cuda"}, {kDLCUDAHost, "cuda_host"},
      {kDLMetal, "metal"}, {kDLROCM, "rocm"}, {kDLCUDAManaged, "cuda_managed"}};
  if (device.device_type == kDLCPU && !device.device_id) return "cpu";
  auto found = names.find(device.device_type);
  return (found == names.end() ? "device " + std::to_string(device.device_type) : found->second) +
         ":" + std::to_string(device.device_id);
}

inline bool OnCpu(const ffi::Tensor& tensor) {
  return tensor.device().device_type == kDLCPU && tensor.device().device_id == 0;
}

/// The dtype of that name. Throws Malformed: there is none.
inline DLDataType TypeOf(const std::string& name) {
  for (uint8_t code : {kDLInt, kDLUInt, kDLFloat, kDLBfloat, kDLBool, kDLComplex, kDLFloat8_e4m3fn,
                       kDLFloat8_e5m2, kDLFloat8_e4m3fnuz, kDLFloat8_e5m2fnuz})
    for (uint8_t bits : {8, 16, 32, 64, 128})
      if (DLDataType type{code, bits, 1}; DtypeName(type) == name) return type;
  throw Malformed("unknown dtype '" + name + "'");
}

/// A product as a stride: of a tensor without elements it may be beyond 64 bits, and means nothing.
inline int64_t Times(int64_t one, int64_t other) {
  return static_cast<int64_t>(static_cast<uint64_t>(one) * static_cast<uint64_t>(other));
}

struct HostMemory {
  void AllocData(DLTensor* tensor) {
    size_t size = std::max<size_t>(ffi::GetDataSize(*tensor), 1);
    tensor->data = std::aligned_alloc(kAlignment, (size + kAlignment - 1) / kAlignment * kAlignment);
    if (!tensor->data) throw std::bad_alloc();
  }
  void FreeData(DLTensor* tensor) { std::free(tensor->data); }
};

inline std::vector<int64_t> ShapeOf(const ffi::Tensor& tensor) {
  std::vector<int64_t> shape;
  for (int axis = 0; axis < tensor.ndim(); ++axis) shape.push_back(tensor.size(axis));
  return shape;
}

/// Calls `visit(offset in elements, position)` for each element, row-major.
template <typename F>
void ForEach(const ffi::Tensor& tensor, const std::vector<int64_t>& from,
             const std::vector<int64_t>& to, F visit) {
  int rank = tensor.ndim();
  for (int axis = 0; axis < rank; ++axis)
    if (from[axis] >= to[axis]) return;
  std::vector<int64_t> strides(rank, 1), at = from;
  for (int axis = rank - 2; axis >= 0; --axis)
    strides[axis] = Times(strides[axis + 1], tensor.size(axis + 1));
  if (tensor.strides().data()) std::copy_n(tensor.strides().begin(), rank, strides.begin());
  while (true) {
    int64_t offset = 0;
    for (int axis = 0; axis < rank; ++axis) offset += at[axis] * strides[axis];
    if (!visit(offset, at)) return;
    int axis = rank - 1;
    while (axis >= 0 && ++at[axis] == to[axis]) at[axis] = from[axis], --axis;
    if (axis < 0) return;
  }
}

inline ffi::Tensor Empty(const std::vector<int64_t>& shape, DLDataType type) {
  return ffi::Tensor::FromNDAlloc(HostMemory(), ffi::ShapeView(shape.data(), shape.size()), type,
                                  DLDevice{kDLCPU, 0});
}

inline size_t BytesOf(const ffi::Tensor& tensor) {
  return static_cast<size_t>(tensor.numel()) * ((tensor.dtype().bits * tensor.dtype().lanes + 7) / 8);
}

inline const char* DataOf(const ffi::Tensor& tensor) {
  return static_cast<const char*>(tensor.data_ptr()) + tensor.byte_offset();
}

/// The same elements, contiguous, aligned, in memory of their own.
inline ffi::Tensor Copy(const ffi::Tensor& tensor) {
  std::vector<int64_t> shape = ShapeOf(tensor);
  ffi::Tensor made = Empty(shape, tensor.dtype());
  size_t width = (tensor.dtype().bits * tensor.dtype().lanes + 7) / 8;
  char* into = static_cast<char*>(made.data_ptr());
  ForEach(tensor, std::vector<int64_t>(shape.size(), 0), shape,
          [&](int64_t offset, const std::vector<int64_t>&) {
            std::memcpy(into, DataOf(tensor) + offset * static_cast<int64_t>(width), width);
            into += width;
            return true;
          });
  return made;
}

/// A contiguous tensor on memory that `owner` keeps.
template <typename Owner>
ffi::Tensor TensorOn(const void* place, DLDataType dtype, std::vector<int64_t> shape, Owner owner) {
  struct Holder {
    DLManagedTensor managed{};
    std::vector<int64_t> shape, strides;
    Owner owner;
  };
  auto holder = std::make_unique<Holder>(Holder{{}, std::move(shape), {}, std::move(owner)});
  holder->strides.assign(holder->shape.size(), 1);
  for (size_t axis = holder->shape.size(); axis-- > 1;)
    holder->strides[axis - 1] = Times(holder->strides[axis], holder->shape[axis]);
  DLTensor& tensor = holder->managed.dl_tensor;
  tensor.data = const_cast<void*>(place);
  tensor.device = {kDLCPU, 0};
  tensor.ndim = static_cast<int>(holder->shape.size());
  tensor.dtype = dtype;
  tensor.shape = holder->shape.data();
  tensor.strides = holder->strides.data();
  holder->managed.manager_ctx = holder.get();
  holder->managed.deleter = [](DLManagedTensor* self) {
    delete static_cast<Holder*>(self->manager_ctx);
  };
  return ffi::Tensor::FromDLPack(&holder.release()->managed);
}

inline bool IsComplex(const std::string& dtype) { return dtype.rfind("complex", 0) == 0; }

/// What compiled code takes for a contiguous complex tensor: real numbers, with a last axis of two.
inline ffi::Tensor InParts(const ffi::Tensor& tensor) {
  std::vector<int64_t> shape = ShapeOf(tensor);
  shape.push_back(2);
  DLDataType part{kDLFloat, static_cast<uint8_t>(tensor.dtype().bits / 2), 1};
  return TensorOn(DataOf(tensor), part, std::move(shape), tensor);
}

/// The complex tensor of `dtype` that compiled code gave in parts.
inline ffi::Tensor Together(const ffi::Tensor& parts, const std::string& dtype) {
  std::vector<int64_t> shape = ShapeOf(parts);
  DLDataType type = TypeOf(dtype);
  if (shape.empty() || shape.back() != 2 || parts.dtype().code != kDLFloat ||
      2 * parts.dtype().bits != type.bits)
    throw std::runtime_error("the code gives no parts of " + dtype);
  shape.pop_back();
  ffi::Tensor whole = parts.IsContiguous() ? parts : Copy(parts);
  return TensorOn(DataOf(whole), type, std::move(shape), whole);
}

inline Wide Integer(const ffi::Tensor& tensor, int64_t offset) {
  auto read = [&](auto kind) {
    decltype(kind) value;
    std::memcpy(&value, DataOf(tensor) + offset * static_cast<int64_t>(sizeof value), sizeof value);
    return static_cast<Wide>(value);
  };
  bool plain = tensor.dtype().code == kDLUInt;
  switch (tensor.dtype().bits) {
    case 8: return plain ? read(uint8_t()) : read(int8_t());
    case 16: return plain ? read(uint16_t()) : read(int16_t());
    case 32: return plain ? read(uint32_t()) : read(int32_t());
    default: return plain ? read(uint64_t()) : read(int64_t());
  }
}

/// A tensor of a safetensors file: its part of the data, held against its header.
struct Stored {
  DLDataType dtype;
  std::vector<int64_t> shape;
  uint64_t start = 0, stop = 0;

  static Stored From(const std::string& name, const Json& info) {
    static const std::map<std::string, DLDataType> kinds = {
        {"BOOL", {kDLBool, 8, 1}}, {"U8", {kDLUInt, 8, 1}}, {"I8", {kDLInt, 8, 1}},
        {"U16", {kDLUInt, 16, 1}}, {"I16", {kDLInt, 16, 1}}, {"U32", {kDLUInt, 32, 1}},
        {"I32", {kDLInt, 32, 1}}, {"U64", {kDLUInt, 64, 1}}, {"I64", {kDLInt, 64, 1}},
        {"F16", {kDLFloat, 16, 1}}, {"BF16", {kDLBfloat, 16, 1}}, {"F32", {kDLFloat, 32, 1}},
        {"F64", {kDLFloat, 64, 1}}, {"F8_E4M3", {kDLFloat8_e4m3fn, 8, 1}},
        {"F8_E5M2", {kDLFloat8_e5m2, 8, 1}}, {"C64", {kDLComplex, 64, 1}},
        {"C128", {kDLComplex, 128, 1}}};
    auto bad = [&](const std::string& reason) {
      return Malformed("tensor " + Quoted(name) + ": " + reason);
    };
    auto kind = kinds.find(info["dtype"].String());
    if (kind == kinds.end()) throw bad("unknown dtype " + Quoted(info["dtype"].String(), 20));
    const List& offsets = info["data_offsets"].Items();
    if (offsets.size() != 2 || offsets[0].Int() < 0 || offsets[1].Int() < offsets[0].Int())
      throw bad("a hole or an overlap before it");
    Stored made{kind->second, {}, static_cast<uint64_t>(offsets[0].Int()),
                static_cast<uint64_t>(offsets[1].Int())};
    if (info["shape"].Items().size() > 32) throw bad("bad shape");
    bool empty = false;
    for (const Json& axis : info["shape"].Items()) {
      if (axis.Int() < 0 || axis.Int() >= int64_t(1) << 62) throw bad("bad shape");
      made.shape.push_back(axis.Int());
      empty = empty || !axis.Int();
    }
    unsigned __int128 size = empty ? 0 : kind->second.bits / 8;
    for (int64_t axis : made.shape) {
      if (empty) break;
      size *= static_cast<uint64_t>(axis);
      if (size > made.stop - made.start) break;
    }
    if (size != made.stop - made.start) throw bad("its shape and its bytes do not agree");
    return made;
  }
};

/// What a safetensors file says of its tensors, in its order: their names, and fields of the right names.
inline Object ReadHeader(std::string_view text) {
  Object tensors;
  try {
    Json header = Json::Parse(text);
    for (const auto& [name, info] : header.Fields())
      if (name != "__metadata__")
        tensors.emplace_back(name, info.Only({"dtype", "shape", "data_offsets"}));
  } catch (const Malformed& error) {
    throw Malformed(std::string("the header cannot be read: ") + error.what());
  }
  return tensors;
}

/// The tensors of a safetensors file, where they lie (artifacts/weights.py).
inline std::map<std::string, ffi::Tensor> ReadWeights(const Span& file,
                                                      std::shared_ptr<Mapped> owner) {
  if (file.size < 8) throw Malformed("cut short");
  uint64_t length = Take(file, 0, 8), base = 8 + length;
  if (length > (100u << 20) || base > file.size)
    throw Malformed("the header is longer than the file");
  if (base % kAlignment) throw Malformed("the data is not aligned");
  if (!length || file.data[8] != '{') throw Malformed("the header is not a JSON object");
  std::map<std::string, ffi::Tensor> found;
  uint64_t position = 0;
  for (const auto& [name, info] : ReadHeader(file.text().substr(8, length))) {
    Stored stored = Stored::From(name, info);
    auto bad = [&, name = name](const std::string& reason) {
      return Malformed("tensor " + Quoted(name) + reason);
    };
    if (stored.start != position) throw bad(": a hole or an overlap before it");
    if (stored.stop > file.size - base) throw bad(": cut short");
    position = stored.stop;
    if (name.rfind(".padding.", 0) == 0) continue;
    if (stored.stop > stored.start && stored.start % kAlignment)
      throw bad(" is not " + std::to_string(kAlignment) + "-byte aligned");
    found.emplace(name, TensorOn(file.data + base + stored.start, stored.dtype, stored.shape, owner));
  }
  if (base + position != file.size) throw Malformed("bytes that belong to no tensor");
  return found;
}

// --- libraries (runtime/library.py) ---------------------------------------------------------------

/// How often this process has loaded a library: the loader takes a path that it has seen for what it
/// has, and descriptor numbers come again.
inline int NextNumber() {
  static std::atomic<int> number{0};
  return ++number;
}

/// Verified bytes as a sealed memory file, under a path that the loader has not seen before.
template <typename F>
auto WithFile(const Span& bytes, const std::string& name, F load) {
  int handle = memfd_create(("tcexport:" + name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (handle < 0) throw std::runtime_error(std::string("no memory file: ") + std::strerror(errno));
  std::unique_ptr<int, void (*)(int*)> closing(&handle, [](int* each) { close(*each); });
  for (size_t at = 0; at < bytes.size;) {
    ssize_t done = write(handle, bytes.data + at, bytes.size - at);
    if (done <= 0) throw std::runtime_error(std::string("no memory file: ") + std::strerror(errno));
    at += static_cast<size_t>(done);
  }
  fcntl(handle, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
  std::string path = "/proc/self/fd/";
  for (int rest = NextNumber(); rest; rest >>= 1) path += rest & 1 ? "./" : ".//";
  return load(path + std::to_string(handle));
}

/// The TVM runtime of this process: its digest, once a bundle has brought it.
inline std::string& LoadedRuntime() {
  static std::string digest;
  return digest;
}

}  // namespace detail
}  // namespace tcexport
