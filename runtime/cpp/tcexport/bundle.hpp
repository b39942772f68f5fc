// An open bundle: its manifest and its members, compared with their digests (artifacts/container.py).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "contract.hpp"
#include "error.hpp"
#include "file.hpp"
#include "json.hpp"
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
    } catch (const Unserved& error) {
      throw BundleError("TC404", path + ": " + error.what(), {}, {"load it from Python"});
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

  /// The weights by their names, where they lie; each keeps the file that it lies in.
  ///
  /// Throws BundleError: TC401.
  std::map<std::string, ffi::Tensor> Weights() {
    if (!manifest.HasWeights()) return {};
    Span span = View(kWeights);
    try {
      return ReadWeights(span, manifest.beside.empty() ? file_ : beside_);
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
    Span head = part(entries[0]);
    if (Crc32(head.data, head.size) != entries[0].crc)
      throw Malformed("manifest.json: damaged, its CRC differs");
    Json data = Json::Parse(head.text());
    int64_t version = data["format_version"].Int();
    if (version > kFormatVersion)
      throw BundleError("TC403",
                        path + ": format version " + std::to_string(version) +
                            " is newer than this tcexport reads",
                        {}, {"pip install --upgrade tcexport"});
    if (version < 1) throw Malformed("manifest.json: format version does not exist");
    try {
      manifest = ReadManifest(data);
    } catch (const Malformed& error) {
      throw Malformed(std::string("manifest.json: ") + error.what());
    }
    entries.erase(entries.begin());
    for (const Entry& entry : entries) {
      auto listed = manifest.members.find(entry.name);
      if (listed == manifest.members.end() || listed->second.size != entry.size)
        throw Malformed("member '" + entry.name + "' is not as the manifest says");
      if (!spans_.emplace(entry.name, part(entry)).second)
        throw Malformed("member '" + entry.name + "' is there twice");
    }
    size_t outside = manifest.beside.empty() ? 0 : 1;
    if (spans_.size() + outside != manifest.members.size())
      throw Malformed("a member of the manifest is not in the file");
    std::vector<std::string> named;
    for (const Target& target : manifest.targets) named.push_back(target.library);
    for (const Runtime& runtime : manifest.runtimes) named.push_back(runtime.library);
    if (manifest.HasWeights()) named.push_back(kWeights);
    for (const auto& name : named)
      if (!manifest.members.count(name)) throw Malformed("no member '" + name + "'");
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
