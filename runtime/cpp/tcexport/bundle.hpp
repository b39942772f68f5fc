// An open bundle: its manifest and its members, compared with their digests (artifacts/container.py).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"
#include "file.hpp"
#include "json.hpp"
#include "manifest.hpp"
#include "signature.hpp"
#include "tensors.hpp"

namespace tcexport {
namespace detail {

constexpr int kFormatVersion = 1;

class Bundle {
 public:
  std::string path;
  Manifest manifest;

  /// Reads the directory and the manifest. With keys, the file is read into memory and its signature
  /// verified before a byte of it is believed.
  ///
  /// Throws BundleError: TC401, TC403, TC404, TC408, TC409.
  Bundle(const std::string& given, const Keys* keys)
      : path(std::filesystem::absolute(given).lexically_normal().string()), keys_(keys) {
    try {
      file_ = std::make_shared<Mapped>(path, keys != nullptr);
    } catch (const std::runtime_error& error) {
      NotABundle(path, error.what());
    }
    if (keys) VerifySignature(path, file_->span(), *keys);
    try {
      Read();
    } catch (const Malformed& error) {
      NotABundle(path, error.what());
    }
  }

  /// The bytes of a member where they lie. Not verified.
  ///
  /// Throws BundleError: TC410, the weights are not beside the bundle.
  Span View(const std::string& name) {
    if (name == kWeights && !manifest.beside.empty()) return Beside().span();
    return spans_.at(name);
  }

  /// Throws BundleError: TC402, a member is not what the manifest was written for; TC410.
  void Verify() {
    for (const auto& [name, member] : manifest.members) {
      Span span = View(name);
      if (Sha256(span.data, span.size) != member.sha256)
        throw BundleError("TC402",
                          path + ": member " + name + " is not what the manifest was written for",
                          {"the file was damaged or changed"}, {"fetch or export it again"});
    }
  }

  /// The weights by their names, where they lie; each keeps the file that it lies in. Among them are all
  /// that the routes take and that the states start as.
  ///
  /// Throws BundleError: TC401; TC410.
  std::map<std::string, ffi::Tensor> Weights(const std::vector<Terms>& routes) {
    std::vector<std::string> names;
    for (const Terms& route : routes)
      names.insert(names.end(), route.weights.begin(), route.weights.end());
    for (const StateTensor& state : manifest.states)
      if (!state.initial.empty()) names.push_back(state.initial);
    if (names.empty()) return {};
    Span span = View(kWeights);
    try {
      auto found = ReadWeights(span, manifest.beside.empty() ? file_ : beside_);
      for (const auto& name : names)
        if (!found.count(name))
          throw Malformed(std::string(kWeights) + " has no tensor " + Quoted(name));
      for (const StateTensor& state : manifest.states)
        if (!state.initial.empty() &&
            (DtypeName(found.at(state.initial).dtype()) != state.dtype ||
             ShapeOf(found.at(state.initial)) != state.shape))
          throw Malformed("state " + Quoted(state.name) + " has no initial value that fits it");
      return found;
    } catch (const Malformed& error) {
      NotABundle(path, error.what());
    }
  }

 private:
  void Read() {
    std::vector<Entry> entries = ReadZip(file_->span());
    auto part = [&](const Entry& entry) {
      return Span{file_->span().data + entry.start, static_cast<size_t>(entry.size)};
    };
    try {
      ReadHead(part(entries[0]), entries[0].crc);
    } catch (const Malformed& error) {
      throw Malformed(std::string(kManifest) + ": " + error.what());
    }
    CheckMembers(entries);
    for (size_t at = 1; at < entries.size(); ++at)
      spans_.emplace(entries[at].name, part(entries[at]));
  }

  void ReadHead(const Span& head, uint32_t crc) {
    if (head.size > (64u << 20)) throw Malformed("too large");
    if (Crc32(head.data, head.size) != crc) throw Malformed("damaged, its CRC differs");
    Json data = Json::Parse(head.text());
    int64_t version = data["format_version"].Int();
    if (version > kFormatVersion)
      throw BundleError("TC403",
                        path + ": format version " + std::to_string(version) +
                            " is newer than this tcexport reads",
                        {}, {"pip install --upgrade tcexport"});
    if (version < 1)
      throw Malformed("format version " + std::to_string(version) + " does not exist");
    manifest = ManifestReader::Read(data);
  }

  /// That the file holds what the manifest lists, in its order.
  void CheckMembers(const std::vector<Entry>& entries) const {
    std::map<std::string, uint64_t> sizes;
    for (size_t at = 1; at < entries.size(); ++at) sizes[entries[at].name] = entries[at].size;
    std::set<std::string> names;
    for (const Member& member : manifest.listed) {
      names.insert(member.name);
      auto found = sizes.find(member.name);
      if (found == sizes.end())
        throw Malformed("member " + Quoted(member.name) + " of the manifest is not in the file");
      if (found->second != member.size)
        throw Malformed("member " + Quoted(member.name) + " has " +
                        std::to_string(found->second) + " bytes, the manifest says " +
                        std::to_string(member.size));
    }
    for (const auto& [name, size] : sizes)
      if (!names.count(name)) throw Malformed("member " + Quoted(name) + " is not in the manifest");
    bool ordered = manifest.listed.size() + 1 == entries.size();
    for (size_t at = 1; ordered && at < entries.size(); ++at)
      ordered = manifest.listed[at - 1].name == entries[at].name;
    if (!ordered) throw Malformed("the members are not in the manifest's order");
  }

  /// The file of the weights: beside the path that was given, or beside what a link leads to.
  const Mapped& Beside() {
    if (beside_) return *beside_;
    namespace fs = std::filesystem;
    std::error_code ignored;
    fs::path place = fs::path(path).replace_filename(manifest.beside);
    fs::path behind = fs::canonical(path, ignored).replace_filename(manifest.beside);
    if (!fs::exists(place, ignored) && fs::exists(behind, ignored)) place = behind;
    try {
      auto found = std::make_shared<Mapped>(place.string(), keys_ != nullptr);
      uint64_t wanted = manifest.members.at(kWeights).size;
      if (found->span().size != wanted)
        throw std::runtime_error("it has " + std::to_string(found->span().size) + " bytes, and " +
                                 std::to_string(wanted) + " are needed");
      beside_ = std::move(found);
    } catch (const std::runtime_error& error) {
      throw BundleError("TC410", path + " needs " + manifest.beside + " beside it: " + error.what(),
                        {}, {"fetch it from where the bundle came from"});
    }
    return *beside_;
  }

  const Keys* keys_;
  std::shared_ptr<Mapped> file_, beside_;
  std::map<std::string, Span> spans_;
};

}  // namespace detail
}  // namespace tcexport
