// What a manifest says of code for GPUs (artifacts/manifest.py, artifacts/platforms.py): this host runs
// none of it, and holds it to what Python does.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "json.hpp"
#include "text.hpp"

namespace tcexport {
namespace detail {

/// Whether text is digits, `from` to `to` of them.
inline bool IsDigits(const std::string& text, size_t from, size_t to) {
  return text.size() >= from && text.size() <= to &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

/// Throws Malformed unless the GPU code of the target `name` is of known kinds.
inline void CheckCuda(const std::string& name, const Json& code) {
  code.Only({"architectures", "ptx", "driver", "ptx_driver", "compiler", "kernels"});
  std::vector<std::pair<std::string, std::string>> kinds;
  for (const Json& each : code["architectures"].Items()) kinds.emplace_back("sm_", each.String());
  std::vector<std::string> versions;
  if (!kinds.empty()) versions.push_back(code["driver"].String());
  if (!code["ptx"].String().empty()) {
    kinds.emplace_back("compute_", code["ptx"].String());
    versions.push_back(code["ptx_driver"].String());
  }
  for (const char* text : {"driver", "ptx_driver", "compiler"}) code[text].String();
  for (const Json& kernel : code["kernels"].Items()) kernel.String();
  const std::string target = Head(name, 80);
  if (kinds.empty()) throw Malformed(target + " holds neither machine code nor PTX");
  for (const auto& [kind, architecture] : kinds) {
    size_t at = architecture.rfind("sm_", 0) == 0        ? 3
                : architecture.rfind("compute_", 0) == 0 ? 8
                                                         : std::string::npos;
    const std::string digits = at == std::string::npos ? "" : architecture.substr(at);
    if (!IsDigits(digits, 2, 3) || digits[0] == '0')
      throw Malformed(target + ": " +
                      Head(Quoted(architecture, std::string::npos) + " is no CUDA architecture", 120));
    if (architecture.rfind(kind, 0))
      throw Malformed(target + ": " + architecture + " where " + kind + "… belongs");
  }
  for (const auto& version : versions) {
    size_t point = version.find('.');
    bool sound = point != std::string::npos && IsDigits(version.substr(0, point), 1, 3) &&
                 version[0] != '0' && IsDigits(version.substr(point + 1), 1, 2);
    if (!sound) throw Malformed(target + ": " + Quoted(version, 40) + " is no version of CUDA");
  }
}

}  // namespace detail
}  // namespace tcexport
