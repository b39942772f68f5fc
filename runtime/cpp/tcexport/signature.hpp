// Signatures: who vouches for a bundle (artifacts/signature.py; format: docs/security.md).
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"
#include "file.hpp"
#include "json.hpp"

namespace tcexport {
namespace detail {

/// Ed25519 (RFC 8032) by the system's OpenSSL, which is looked for when a signature is asked for.
class Crypto {
 public:
  /// Throws UsageError: TC011, it is not there.
  static const Crypto& Get() {
    static const Crypto found;
    return found;
  }

  /// Whether a key of 32 bytes signed `text`.
  bool Holds(const std::string& key, const std::string& signature, const std::string& text) const {
    constexpr int kEd25519 = 1087;  // EVP_PKEY_ED25519
    std::unique_ptr<void, void (*)(void*)> made(
        new_key_(kEd25519, nullptr, Bytes(key), key.size()), free_key_);
    std::unique_ptr<void, void (*)(void*)> context(new_context_(), free_context_);
    return made && context && begin_(context.get(), nullptr, nullptr, nullptr, made.get()) == 1 &&
           verify_(context.get(), Bytes(signature), signature.size(), Bytes(text), text.size()) == 1;
  }

 private:
  Crypto() {
    for (const char* name : {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"})
      if ((library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
    Find("EVP_PKEY_new_raw_public_key", &new_key_);
    Find("EVP_PKEY_free", &free_key_);
    Find("EVP_MD_CTX_new", &new_context_);
    Find("EVP_MD_CTX_free", &free_context_);
    Find("EVP_DigestVerifyInit", &begin_);
    Find("EVP_DigestVerify", &verify_);
  }

  template <typename T>
  void Find(const char* name, T* into) {
    *into = reinterpret_cast<T>(library_ ? dlsym(library_, name) : nullptr);
    if (!*into)
      throw UsageError("TC011",
                       "signatures need what is not installed here: libcrypto of OpenSSL 1.1.1 or later",
                       {"nothing was taken for signed"}, {"apt-get install libssl3"});
  }

  static const unsigned char* Bytes(const std::string& text) {
    return reinterpret_cast<const unsigned char*>(text.data());
  }

  void* library_ = nullptr;
  void* (*new_key_)(int, void*, const unsigned char*, size_t);
  void (*free_key_)(void*);
  void* (*new_context_)();
  void (*free_context_)(void*);
  int (*begin_)(void*, void*, const void*, void*, void*);
  int (*verify_)(void*, const unsigned char*, size_t, const unsigned char*, size_t);
};

/// RFC 4648, padded, and nothing else.
inline std::optional<std::string> FromBase64(const std::string& text) {
  static const std::string letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  size_t end = text.find_last_not_of('=') + 1;
  if (text.size() % 4 || text.size() - end > 2) return std::nullopt;
  std::string bytes;
  uint32_t held = 0;
  int bits = 0;
  for (size_t at = 0; at < end; ++at) {
    size_t digit = letters.find(text[at]);
    if (digit == std::string::npos) return std::nullopt;
    held = (held << 6 | static_cast<uint32_t>(digit)) & 0xFFFFFF;
    if ((bits += 6) >= 8) bytes += static_cast<char>(held >> (bits -= 8));
  }
  return bytes;
}

inline bool IsDigest(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// The bytes of a regular file of at most 1 MiB; never waits, as for a pipe.
///
/// Throws std::runtime_error with the reason. `missing` is told where there is none.
inline std::string ReadSmall(const std::string& path, bool* missing = nullptr) {
  constexpr size_t kMost = 1 << 20;
  int handle = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (handle < 0) {
    if (missing) *missing = errno == ENOENT;
    throw std::runtime_error(Lower(std::strerror(errno)));
  }
  std::unique_ptr<int, void (*)(int*)> closing(&handle, [](int* each) { close(*each); });
  struct stat status {};
  if (fstat(handle, &status)) throw std::runtime_error(Lower(std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) throw std::runtime_error("it is not a regular file");
  std::string data(kMost + 1, '\0');
  size_t size = 0;
  while (size < data.size()) {
    ssize_t count = read(handle, &data[size], data.size() - size);
    if (count < 0) throw std::runtime_error(Lower(std::strerror(errno)));
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  if (size > kMost) throw std::runtime_error("it is too large");
  data.resize(size);
  return data;
}

/// Public keys (32 bytes each) by their ids, and what is revoked, with the reason.
class Keys {
 public:
  std::map<std::string, std::string> trusted, revoked;

  /// Reads PEM files and key lists.
  ///
  /// Throws UsageError: TC014, a file is no such thing, or there is no key at all; TC011.
  explicit Keys(const std::vector<std::string>& paths) {
    Crypto::Get();
    for (const auto& path : paths) {
      std::string text;
      try {
        text = ReadSmall(path);
      } catch (const std::runtime_error& error) {
        Bad("cannot read " + path + ": " + error.what());
      }
      text.erase(std::remove(text.begin(), text.end(), '\r'), text.end());
      Add(std::move(text), path);
    }
    if (trusted.empty()) Bad("there is no public key among what is to be trusted");
  }

 private:
  [[noreturn]] static void Bad(const std::string& message) {
    throw UsageError("TC014", message, {}, {"tcexport keygen NAME   (NAME.pub, NAME.key)"});
  }

  void Add(std::string text, const std::string& where) {
    const std::string begin = "-----BEGIN ", dashes = "-----";
    for (size_t at = 0; (at = text.find(begin, at)) != std::string::npos;) {
      size_t from = at + begin.size(), to = text.find(dashes + "\n", from);
      std::string label = to == std::string::npos ? "" : text.substr(from, to - from);
      bool named = !label.empty() &&
                   label.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ ") == std::string::npos;
      std::string last = dashes + "END " + label + dashes;
      size_t end = named ? text.find(last, to) : std::string::npos;
      if (end == std::string::npos) {
        at = from;  // no block: as a line it is refused below
        continue;
      }
      size_t body = to + dashes.size() + 1;
      std::string key = KeyOf(text.substr(body, end - body), label, where);
      trusted[Sha256(reinterpret_cast<const uint8_t*>(key.data()), key.size())] = key;
      text.erase(at, end + last.size() - at);
    }
    for (size_t at = 0; at < text.size();) {
      size_t end = std::min(text.find('\n', at), text.size());
      Line(text.substr(at, end - at), where);
      at = end + 1;
    }
  }

  /// The key of a PEM block: SubjectPublicKeyInfo of Ed25519 is this head and 32 bytes (RFC 8410).
  static std::string KeyOf(std::string body, const std::string& label, const std::string& where) {
    if (label.find("PRIVATE") != std::string::npos)
      Bad(where + " holds a private key; what is trusted is the public one");
    body.erase(std::remove(body.begin(), body.end(), '\n'), body.end());
    static const std::string head("\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00", 12);
    auto bytes = FromBase64(body);
    if (label != "PUBLIC KEY" || !bytes || bytes->size() != head.size() + 32 ||
        bytes->compare(0, head.size(), head))
      Bad(where + ": not an Ed25519 key");
    return bytes->substr(head.size());
  }

  void Line(std::string line, const std::string& where) {
    line = line.substr(0, line.find('#'));
    auto trim = [](std::string text) {
      size_t from = text.find_first_not_of(" \t");
      return from == std::string::npos ? ""
                                       : text.substr(from, text.find_last_not_of(" \t") + 1 - from);
    };
    line = trim(line);
    if (line.empty()) return;
    const std::string word = "revoked";
    std::string rest = line.compare(0, word.size(), word) ? "" : line.substr(word.size());
    std::string digest = trim(rest).substr(0, 64), reason = trim(rest).substr(digest.size());
    bool apart = !rest.empty() && (rest[0] == ' ' || rest[0] == '\t');
    if (!apart || !IsDigest(digest) || (!reason.empty() && reason[0] != ' ' && reason[0] != '\t'))
      Bad(where + ": '" + line.substr(0, 60) + "' is neither a PEM key nor `revoked SHA256 reason`");
    revoked[digest] = reason.empty() ? "no reason is given" : trim(reason);
  }
};

struct Signatures {
  std::string sha256;
  std::vector<std::pair<std::string, std::string>> each;  // id of the key, Base64
};

[[noreturn]] inline void NotTrusted(const std::string& path, const std::string& reason,
                                    std::vector<std::string> notes = {}) {
  throw BundleError("TC408", path + " is not trusted: " + reason, std::move(notes),
                    {"tcexport sign " + path + " --key NAME.key   (if you vouch for it)"});
}

inline Signatures ReadSignatures(const std::string& path) {
  std::string name = path.substr(path.rfind('/') + 1) + ".sig", data;
  bool missing = false;
  try {
    data = ReadSmall(path + ".sig", &missing);
  } catch (const std::runtime_error& error) {
    if (missing) NotTrusted(path, "it is not signed: there is no " + name + " beside it");
    NotTrusted(path, "cannot read " + name + ": " + error.what());
  }
  Signatures found;
  try {
    Json json = Json::Parse(data);
    json.Only({"format", "sha256", "signatures"});
    if (json["format"].String() != "tcexport signature 1") throw Malformed("of an unknown format");
    found.sha256 = json["sha256"].String();
    for (const Json& one : json["signatures"].Items())
      found.each.emplace_back(one.Only({"key", "value"})["key"].String(), one["value"].String());
  } catch (const Malformed& error) {
    NotTrusted(path, name + " is not a signature: " + error.what());
  }
  std::set<std::string> ids;
  bool digests = IsDigest(found.sha256);
  for (const auto& [key, value] : found.each) ids.insert(key), digests = digests && IsDigest(key);
  if (found.each.empty() || found.each.size() > 16 || ids.size() != found.each.size())
    NotTrusted(path, name + ": none, too many, or two signatures of one key");
  if (!digests) NotTrusted(path, name + ": a SHA-256 that is none");
  return found;
}

/// Whether a trusted key signed every byte of the bundle.
///
/// Throws BundleError: TC408, none did; TC409, the bundle is revoked, or every trusted key that did.
inline void VerifySignature(const std::string& path, const Span& file, const Keys& keys) {
  std::string digest = Sha256(file.data, file.size);
  if (keys.revoked.count(digest))
    throw BundleError("TC409", path + " is revoked: " + keys.revoked.at(digest));
  Signatures found = ReadSignatures(path);
  if (found.sha256 != digest)
    NotTrusted(path, "its signature is of other bytes",
               {"signed: sha256 " + found.sha256, "here:   sha256 " + digest});
  std::string text = "tcexport bundle signature 1\n";
  for (size_t at = 0; at < digest.size(); at += 2)
    text += static_cast<char>(std::stoi(digest.substr(at, 2), nullptr, 16));
  std::string candidate, revoked;
  for (const auto& [key, value] : found.each) {
    if (keys.revoked.count(key)) {
      if (revoked.empty()) revoked = key;
    } else if (keys.trusted.count(key)) {
      auto signature = FromBase64(value);
      if (signature && signature->size() == 64 &&
          Crypto::Get().Holds(keys.trusted.at(key), *signature, text))
        return;
      if (candidate.empty()) candidate = key;
    }
  }
  if (!candidate.empty()) NotTrusted(path, "the signature by key " + candidate + " is not valid");
  if (!revoked.empty())
    throw BundleError("TC409",
                      path + " is signed by key " + revoked + ", which is revoked: " +
                          keys.revoked.at(revoked),
                      {}, {"fetch a file that is signed by another key"});
  std::vector<std::string> notes;
  for (const auto& [key, value] : found.each) notes.push_back("signed by key " + key);
  size_t told = 0;
  for (const auto& [key, bytes] : keys.trusted)
    if (!keys.revoked.count(key) && ++told <= 8) notes.push_back("trusted: key " + key);
  NotTrusted(path, "it is not signed by a trusted key", notes);
}

}  // namespace detail
}  // namespace tcexport
