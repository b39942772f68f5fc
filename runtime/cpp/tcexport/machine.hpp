// The machine, and which binary it can run (runtime/machine.py, artifacts/platforms.py).
#pragma once

#include <gnu/libc-version.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cuda.hpp"
#include "error.hpp"
#include "manifest.hpp"

namespace tcexport {
namespace detail {

struct Level {
  int rank;
  std::string machine;
  std::vector<std::string> flags;
};

inline const std::map<std::string, Level>& Levels() {
  static const std::map<std::string, Level> levels = [] {
    std::vector<std::string> v2 = {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"};
    std::vector<std::string> v3 = v2, more3 = {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c",
                                               "fma", "movbe", "xsave"};
    v3.insert(v3.end(), more3.begin(), more3.end());
    std::vector<std::string> v4 = v3, more4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq",
                                               "avx512vl"};
    v4.insert(v4.end(), more4.begin(), more4.end());
    return std::map<std::string, Level>{{"x86-64-v2", {2, "x86_64", v2}},
                                        {"x86-64-v3", {3, "x86_64", v3}},
                                        {"x86-64-v4", {4, "x86_64", v4}},
                                        {"aarch64", {1, "aarch64", {"asimd", "fp"}}},
                                        {"arm64-macos", {1, "arm64", {}}}};
  }();
  return levels;
}

struct Machine {
  std::string system, machine, libc;
  std::set<std::string> flags;  // that every CPU has

  static Machine This() {
    Machine made;
    utsname names{};
    uname(&names);
    made.system = names.sysname;
    std::transform(made.system.begin(), made.system.end(), made.system.begin(), ::tolower);
    made.machine = names.machine;
    made.libc = gnu_get_libc_version();
    std::ifstream file("/proc/cpuinfo");
    std::string line, word;
    bool first = true;
    while (std::getline(file, line)) {
      if (line.rfind("flags", 0) && line.rfind("Features", 0)) continue;
      std::istringstream words(line.substr(line.find(':') + 1));
      std::set<std::string> here, both;
      while (words >> word) here.insert(word);
      std::set_intersection(here.begin(), here.end(), made.flags.begin(), made.flags.end(),
                            std::inserter(both, both.begin()));
      made.flags = first ? here : both;
      first = false;
    }
    return made;
  }

  std::vector<std::string> Missing(const Level& level) const {
    std::vector<std::string> missing;
    for (const auto& flag : level.flags)
      if (!flags.count(flag)) missing.push_back(flag);
    return missing;
  }

  /// Why a binary cannot run here; "" when it can.
  std::string Unfit(const Target& target) const {
    if (target.system != system || target.machine != machine)
      return "needs " + target.system + " " + target.machine;
    if (Version(target.libc) > Version(libc))
      return "needs glibc " + target.libc + " or later, found " + libc;
    auto level = Levels().find(target.level);
    if (level == Levels().end())
      return "needs the CPU level " + target.level + ", which this tcexport does not know";
    if (level->second.machine != machine) return "needs a " + level->second.machine + " CPU";
    auto missing = Missing(level->second);
    return missing.empty() ? "" : "the CPU lacks " + Join(missing, " ");
  }

 private:
  /// The numbers in a text.
  static std::vector<long long> Version(const std::string& text) {
    constexpr const char* kDigits = "0123456789";
    std::vector<long long> parts;
    for (size_t at = 0; (at = text.find_first_of(kDigits, at)) != std::string::npos;) {
      parts.push_back(std::strtoll(text.c_str() + at, nullptr, 10));
      at = text.find_first_not_of(kDigits, at);
    }
    return parts;
  }
};

/// Whether text is `cuda` or `cuda:N`.
inline bool IsGpu(const std::string& device) {
  return device == "cuda" || (device.rfind("cuda:", 0) == 0 && IsDigits(device.substr(5), 1, 4));
}

/// Throws BundleError: TC407, the bundle is not to run, or not made to run, on the CPU.
inline void CheckDevice(const Manifest& manifest, const std::string& device,
                        const std::string& path) {
  auto has = [&](bool cuda) {
    return std::any_of(manifest.targets.begin(), manifest.targets.end(),
                       [&](const Target& target) { return target.cuda == cuda; });
  };
  const std::string asked = "device=" + Quoted(device, std::string::npos) + ": ";
  const std::string in_python = "load it in Python, which runs code on GPUs";
  const bool any = device == "auto";
  if (device == "cpu" || (any && !has(true))) {
    if (has(true) && !has(false))
      throw BundleError("TC407", asked + path + " holds binaries for GPUs alone", {}, {in_python});
    return;
  }
  if (!any && !IsGpu(device))
    throw BundleError("TC407", asked + "there is no such device", {}, {"device='cpu'"});
  if (!has(true))
    throw BundleError("TC407", asked + path + " holds binaries for the CPU alone", {},
                      {"device='cpu'"});
  std::vector<std::string> tries = {in_python};
  if (has(false)) tries.insert(tries.begin(), "device='cpu'");
  throw BundleError("TC407", asked + "this host runs on the CPU alone", {}, tries);
}

inline const Target& Choose(const Manifest& manifest, const Machine& machine,
                            const std::string& path) {
  const char* level = std::getenv("TCEXPORT_CPU_LEVEL");
  std::string asked = level ? level : "";
  const Target* best = nullptr;
  std::vector<std::string> built, notes, tries;
  std::set<std::string> held;
  for (const Target& target : manifest.targets) {
    if (target.cuda) continue;
    held.insert(target.level);
    if (!asked.empty() && target.level != asked) continue;
    built.push_back(target.name);
    std::string unfit = machine.Unfit(target);
    if (!unfit.empty())
      notes.push_back(target.name + ": " + unfit);
    else if (!best || Levels().at(best->level).rank < Levels().at(target.level).rank)
      best = &target;
  }
  if (best) return *best;
  if (!asked.empty()) tries = {"unset TCEXPORT_CPU_LEVEL"};
  if (!asked.empty() && built.empty()) {
    std::vector<std::string> levels(held.begin(), held.end());
    throw BundleError("TC404",
                      "TCEXPORT_CPU_LEVEL=" + asked + ": " + path + " holds the levels " +
                          (levels.empty() ? "none" : Join(levels, ", ")),
                      {}, tries);
  }
  if (asked.empty()) {
    const Level* fitting = nullptr;
    std::string name;
    for (const auto& [each, known] : Levels())
      if (known.machine == machine.machine && machine.Missing(known).empty() &&
          (!fitting || fitting->rank < known.rank))
        fitting = &known, name = each;
    if (fitting) tries = {"export with --target cpu:" + name};
  }
  throw BundleError("TC404",
                    path + " was built for " + (built.empty() ? "nothing" : Join(built, ", ")) +
                        "; this machine is " + machine.system + " " + machine.machine + ", glibc " +
                        machine.libc,
                    notes, tries);
}

}  // namespace detail
}  // namespace tcexport
