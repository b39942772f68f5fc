// A host program without Python:
//   tcexport_run m.tcpkg x=x.npy k=3 -o FOLDER [--key team.pub] [--seed 1234] [--device cpu]
//       [--variant few]
//
// Inputs are .npy files, or the values of inputs that were fixed at export (None, True, 3, text).
// Outputs go to FOLDER as .npy, by their paths, or as text on stdout. Exit statuses as `tcexport run`.

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>

#include "tcexport.hpp"

namespace {

namespace ffi = tvm::ffi;

struct Usage : std::runtime_error {
  using std::runtime_error::runtime_error;
};

const std::map<std::string, DLDataType>& Kinds() {
  static const std::map<std::string, DLDataType> kinds = {
      {"|b1", {kDLBool, 8, 1}}, {"|i1", {kDLInt, 8, 1}}, {"|u1", {kDLUInt, 8, 1}},
      {"<i2", {kDLInt, 16, 1}}, {"<u2", {kDLUInt, 16, 1}}, {"<i4", {kDLInt, 32, 1}},
      {"<u4", {kDLUInt, 32, 1}}, {"<i8", {kDLInt, 64, 1}}, {"<u8", {kDLUInt, 64, 1}},
      {"<f2", {kDLFloat, 16, 1}}, {"<f4", {kDLFloat, 32, 1}}, {"<f8", {kDLFloat, 64, 1}},
      {"<c8", {kDLComplex, 64, 1}}, {"<c16", {kDLComplex, 128, 1}}};
  return kinds;
}

// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
ffi::Tensor ReadNpy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string data((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (data.size() < 12 || data.compare(0, 6, "\x93NUMPY")) throw Usage(path + " is no .npy file");
  size_t wide = data[6] == 1 ? 2 : 4, length = 0;
  for (size_t i = wide; i-- > 0;) length = length << 8 | static_cast<unsigned char>(data[8 + i]);
  size_t begin = 8 + wide + length;
  if (begin > data.size()) throw Usage(path + " is cut short");
  std::string head = data.substr(8 + wide, length);
  auto after = [&](const std::string& key) {
    size_t at = head.find("'" + key + "':");
    if (at == std::string::npos) throw Usage(path + ": no " + key);
    return head.substr(at + key.size() + 4);
  };
  std::string kind = after("descr");
  size_t open = kind.find('\'');
  auto found = Kinds().find(kind.substr(open + 1, kind.find('\'', open + 1) - open - 1));
  if (found == Kinds().end()) throw Usage(path + ": a dtype that this program does not read");
  std::vector<int64_t> shape;
  std::string sizes = after("shape");
  for (size_t at = sizes.find('('); sizes[at] != ')'; ++at)
    if (std::isdigit(static_cast<unsigned char>(sizes[at]))) {
      char* end = nullptr;
      shape.push_back(std::strtoll(sizes.c_str() + at, &end, 10));
      at = static_cast<size_t>(end - sizes.c_str()) - 1;
    }
  if (after("fortran_order").find("True") < 3 && shape.size() > 1)
    throw Usage(path + " is in Fortran's order; write numpy.ascontiguousarray(x)");
  ffi::Tensor made = tcexport::detail::Empty(shape, found->second);
  size_t size = tcexport::detail::BytesOf(made);
  if (data.size() - begin != size) throw Usage(path + ": its shape and its bytes do not agree");
  std::memcpy(made.data_ptr(), data.data() + begin, size);
  return made;
}

void WriteNpy(const std::string& path, const ffi::Tensor& given) {
  ffi::Tensor tensor = given.IsContiguous() ? given : tcexport::detail::Copy(given);
  DLDataType type = tensor.dtype();
  if (type.code == kDLBfloat) type.code = kDLUInt;  // numpy has no bfloat16: the bits
  std::string descr, shape;
  for (const auto& [name, kind] : Kinds())
    if (kind.code == type.code && kind.bits == type.bits) descr = name;
  if (descr.empty()) throw Usage(path + ": numpy has no such dtype");
  for (int axis = 0; axis < tensor.ndim(); ++axis) shape += std::to_string(tensor.size(axis)) + ", ";
  std::string head = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  head.append(64 - (10 + head.size() + 1) % 64, ' ');
  head += '\n';
  std::ofstream file(path, std::ios::binary);
  file.write("\x93NUMPY\x01\x00", 8);
  file.put(static_cast<char>(head.size() & 255)).put(static_cast<char>(head.size() >> 8));
  file << head;
  file.write(static_cast<const char*>(tensor.data_ptr()),
             static_cast<std::streamsize>(tcexport::detail::BytesOf(tensor)));
  if (!file.flush()) throw Usage("cannot write " + path);
}

tcexport::Plain PlainOf(const std::string& text) {
  if (text == "None") return tcexport::Plain::None();
  if (text == "True" || text == "False") return tcexport::Plain::Of(text == "True");
  char* end = nullptr;
  std::strtoll(text.c_str(), &end, 10);
  if (!text.empty() && !*end) return {"int", text};
  std::strtod(text.c_str(), &end);
  if (!text.empty() && !*end) return {"float", text};
  return tcexport::Plain::Of(text);
}

int64_t SeedOf(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  int64_t seed = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end || errno) throw Usage("--seed " + text + ": needs an integer of 64 bits");
  return seed;
}

int Run(const std::vector<std::string>& typed) {
  if (typed.empty())
    throw Usage(
        "tcexport_run m.tcpkg x=x.npy k=3 -o FOLDER [--key team.pub] [--seed 1234] [--device cpu]"
        " [--variant few]");
  tcexport::Arguments arguments;
  std::string folder;
  std::optional<int64_t> seed;
  tcexport::Options options;
  for (size_t at = 1; at < typed.size(); ++at) {
    if (typed[at] == "-o" && at + 1 < typed.size()) {
      folder = typed[++at];
      continue;
    }
    if (typed[at] == "--key" && at + 1 < typed.size()) {
      if (!options.require_signature) options.require_signature.emplace();
      options.require_signature->push_back(typed[++at]);
      continue;
    }
    if (typed[at] == "--seed" && at + 1 < typed.size()) {
      seed = SeedOf(typed[++at]);
      continue;
    }
    if (typed[at] == "--device" && at + 1 < typed.size()) {
      options.device = typed[++at];
      continue;
    }
    if (typed[at] == "--variant" && at + 1 < typed.size()) {
      options.variant = typed[++at];
      continue;
    }
    size_t equals = typed[at].find('=');
    if (equals == std::string::npos) throw Usage(typed[at] + " is no INPUT=VALUE");
    std::string name = typed[at].substr(0, equals), value = typed[at].substr(equals + 1);
    bool file = value.size() > 4 && value.substr(value.size() - 4) == ".npy";
    if (file)
      arguments.emplace(name, ReadNpy(value));
    else
      arguments.emplace(name, PlainOf(value));
  }
  tcexport::Model model(typed[0], options);
  tcexport::Session session(model);  // of a model without state, too
  if (seed) session.Seed(*seed);
  tcexport::Results results = session(arguments);
  if (!results.variant.empty()) std::cout << "variant: " << results.variant << "\n";
  for (const auto& [path, value] : results) {
    if (const auto* tensor = std::get_if<ffi::Tensor>(&value)) {
      std::cout << path << ": " << tcexport::detail::DtypeName(tensor->dtype()) << " [";
      for (int axis = 0; axis < tensor->ndim(); ++axis)
        std::cout << (axis ? ", " : "") << tensor->size(axis);
      std::cout << "]\n";
      if (!folder.empty()) WriteNpy(folder + "/" + path + ".npy", *tensor);
    } else {
      std::cout << path << ": " << std::get<tcexport::Plain>(value).Shown() << "\n";
    }
  }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  try {
    return Run(std::vector<std::string>(words + 1, words + count));
  } catch (const tcexport::BundleError& error) {
    std::cerr << error.what() << "\n";
    return 3;
  } catch (const tcexport::GuardError& error) {
    std::cerr << error.what() << "\n";
    return 4;
  } catch (const tcexport::UsageError& error) {
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const Usage& error) {
    std::cerr << error.what() << "\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 5;
  }
}
