// The file: a ZIP with exactly one form for its members (artifacts/container.py), and digests.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "error.hpp"
#include "json.hpp"

namespace tcexport {
namespace detail {

inline std::string Sha256(const uint8_t* data, size_t size) {
  static const uint32_t k[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  auto turn = [](uint32_t x, int by) { return (x >> by) | (x << (32 - by)); };
  auto block = [&](const uint8_t* at) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i)
      w[i] = uint32_t(at[4 * i]) << 24 | at[4 * i + 1] << 16 | at[4 * i + 2] << 8 | at[4 * i + 3];
    for (int i = 16; i < 64; ++i) {
      uint32_t a = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ (w[i - 15] >> 3);
      uint32_t b = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    uint32_t s[8];
    std::copy(h, h + 8, s);
    for (int i = 0; i < 64; ++i) {
      uint32_t one = s[7] + (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) +
                     ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
      uint32_t two = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) +
                     ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      for (int j = 7; j > 0; --j) s[j] = s[j - 1];
      s[4] += one;
      s[0] = one + two;
    }
    for (int i = 0; i < 8; ++i) h[i] += s[i];
  };
  size_t whole = size / 64 * 64;
  for (size_t at = 0; at < whole; at += 64) block(data + at);
  uint8_t last[128] = {};
  size_t rest = size - whole, padded = rest < 56 ? 64 : 128;
  std::memcpy(last, data + whole, rest);
  last[rest] = 0x80;
  for (int i = 0; i < 8; ++i) last[padded - 1 - i] = static_cast<uint8_t>((size * 8ull) >> (8 * i));
  for (size_t at = 0; at < padded; at += 64) block(last + at);
  std::string text;
  for (uint32_t word : h)
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[(word >> shift) & 15];
  return text;
}

inline uint32_t Crc32(const uint8_t* data, size_t size) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < size; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

// --- the file (artifacts/container.py) ------------------------------------------------------------

struct Span {
  const uint8_t* data = nullptr;
  size_t size = 0;
  std::string_view text() const { return {reinterpret_cast<const char*>(data), size}; }
};

/// A file mapped read-only, or read once into memory of the process, as long as this lives.
class Mapped {
 public:
  /// Throws std::runtime_error with the reason why there is no such file.
  Mapped(const std::string& path, bool in_memory) {
    int handle = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (handle < 0) Fail(errno);
    std::unique_ptr<int, void (*)(int*)> closing(&handle, [](int* each) { close(*each); });
    struct stat status {};
    if (fstat(handle, &status)) Fail(errno);
    if (S_ISDIR(status.st_mode)) throw std::runtime_error("it is a directory");
    if (!S_ISREG(status.st_mode)) throw std::runtime_error("it is not a regular file");
    if (status.st_size == 0) throw std::runtime_error("the file is empty");
    size_t size = static_cast<size_t>(status.st_size);
    int flags = in_memory ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    int access = in_memory ? PROT_READ | PROT_WRITE : PROT_READ;
    void* place = mmap(nullptr, size, access, flags, in_memory ? -1 : handle, 0);
    if (place == MAP_FAILED) Fail(errno);
    span_ = {static_cast<const uint8_t*>(place), size};
    for (size_t at = 0; in_memory && at < size;) {
      ssize_t count = read(handle, static_cast<uint8_t*>(place) + at, size - at);
      int failed = errno;
      if (count <= 0) munmap(place, size);
      if (count < 0) Fail(failed);
      if (count == 0) throw std::runtime_error("cut short while it was read");
      at += static_cast<size_t>(count);
    }
    if (!in_memory) return;
    mprotect(place, size, PROT_READ);
    if (fstat(handle, &status) || static_cast<size_t>(status.st_size) != size) {
      munmap(place, size);
      throw std::runtime_error("it grew while it was read");
    }
  }
  ~Mapped() { munmap(const_cast<uint8_t*>(span_.data), span_.size); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  const Span& span() const { return span_; }

 private:
  [[noreturn]] static void Fail(int code) { throw std::runtime_error(Lower(std::strerror(code))); }
  Span span_;
};

inline void Put(std::string* into, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) *into += static_cast<char>(value >> (8 * i));
}

inline uint64_t Take(const Span& file, uint64_t at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | file.data[at + i];
  return value;
}

constexpr uint64_t kLimit32 = 0xFFFFFFFFu;

struct Entry {
  std::string name;
  uint64_t size = 0;
  uint32_t crc = 0;
  uint64_t start = 0;

  /// The entry of a member in the directory at `*at`, which is then behind it.
  static Entry Read(const Span& file, uint64_t* at, uint64_t stop) {
    uint64_t here = *at;
    if (stop - here < 46 || Take(file, here, 4) != 0x02014b50)
      throw Malformed("the ZIP directory is damaged");
    uint64_t flags = Take(file, here + 8, 2), stored = Take(file, here + 20, 4);
    uint64_t length = Take(file, here + 28, 2), extra = Take(file, here + 30, 2);
    uint64_t all = 46 + length + extra + Take(file, here + 32, 2), kind = Take(file, here + 40, 2);
    if (stop - here < all) throw Malformed("the ZIP directory is damaged");
    Entry made;
    made.name.assign(reinterpret_cast<const char*>(file.data + here + 46), length);
    made.crc = static_cast<uint32_t>(Take(file, here + 16, 4));
    made.size = Take(file, here + 24, 4);
    auto bad = [&](const char* reason) { return Malformed("member " + Quoted(made.name) + reason); };
    if (std::any_of(made.name.begin(), made.name.end(), [](char each) { return each & 0x80; }))
      throw Malformed("a member name that is not ASCII");
    if (Take(file, here + 10, 2)) throw bad(" is compressed; a bundle is stored");
    if (flags & 1) throw bad(" is encrypted");
    if (flags & 8) throw bad(" has a data descriptor");
    if ((kind & S_IFMT) && (kind & S_IFMT) != S_IFREG) throw bad(" is a link or a directory");
    if (made.size == kLimit32) {
      if (extra < 12 || Take(file, here + 46 + length, 2) != 1)
        throw bad(": its ZIP64 size is missing");
      stored = made.size = Take(file, here + 46 + length + 4, 8);
    }
    if (stored != made.size || made.size > file.size) throw bad(" lies about its size");
    *at += all;
    return made;
  }
};

/// Throws Malformed for a name, or a pair of names, that no system should have to extract.
inline void CheckMemberNames(const std::vector<Entry>& entries) {
  std::set<std::string> seen;
  for (const Entry& entry : entries) {
    char before = '/';
    bool sound = entry.name.size() <= 255 && !entry.name.empty() && entry.name.back() != '/';
    for (char each : entry.name) {
      bool plain = (each >= '0' && each <= '9') || ((each | 32) >= 'a' && (each | 32) <= 'z') ||
                   (each && std::strchr("_+-", each));
      sound = sound && (plain || (before != '/' && (each == '.' || each == '/')));
      before = each;
    }
    if (!sound)
      throw Malformed("bad member name " + Quoted(entry.name) +
                      ": allowed are relative paths of the characters A-Z a-z 0-9 . _ + - whose "
                      "parts do not start with a dot");
    if (!seen.insert(Lower(entry.name)).second)
      throw Malformed("member " + Quoted(entry.name) +
                      " is there twice (upper and lower case are the same)");
  }
  for (const std::string& name : seen)
    for (size_t at = name.find('/'); at != std::string::npos; at = name.find('/', at + 1))
      if (seen.count(name.substr(0, at)))
        throw Malformed("member " + Quoted(name) + " lies below another member");
}

/// Names, sizes and CRCs as the directory gives them, each in its bounds.
inline std::vector<Entry> ReadDirectory(const Span& file) {
  if (file.size < 4 || Take(file, 0, 4) != 0x04034b50)
    throw Malformed("it does not start like a ZIP file");
  uint64_t end = file.size - 22;
  if (file.size < 22 || Take(file, end, 4) != 0x06054b50)
    throw Malformed("the end of the ZIP directory is missing: cut short, or bytes behind it");
  uint64_t count = Take(file, end + 10, 2), at = Take(file, end + 16, 4), stop = end;
  if (at == kLimit32) {
    if (end < 76 || Take(file, end - 76, 4) != 0x06064b50)
      throw Malformed("the ZIP64 end of the directory is missing");
    stop = end - 76;
    at = Take(file, stop + 48, 8);
  }
  if (Take(file, end + 4, 4) || Take(file, end + 8, 2) != count || Take(file, end + 20, 2))
    throw Malformed("several disks or a comment");
  if (count < 1 || count > 4096)
    throw Malformed(std::to_string(count) + " members, allowed are 1..4096");
  if (at > stop || stop - at != Take(file, end + 12, 4))
    throw Malformed("the ZIP directory is not where its end says");
  std::vector<Entry> entries;
  for (uint64_t number = 0; number < count; ++number)
    entries.push_back(Entry::Read(file, &at, stop));
  if (at != stop) throw Malformed("bytes behind the last entry of the ZIP directory");
  CheckMemberNames(entries);
  if (entries[0].name != "manifest.json")
    throw Malformed("the first member is " + Quoted(entries[0].name) + ", not 'manifest.json'");
  return entries;
}

/// The members of a file, which has exactly one form for their names, sizes and CRCs: it is built again
/// and compared.
inline std::vector<Entry> ReadZip(const Span& file) {
  std::vector<Entry> entries = ReadDirectory(file);
  std::string directory, headers_differ;
  uint64_t position = 0;
  auto same = [&](uint64_t where, const std::string& bytes) {
    return where + bytes.size() <= file.size &&
           !std::memcmp(file.data + where, bytes.data(), bytes.size());
  };
  for (Entry& entry : entries) {
    bool large = entry.size >= kLimit32;
    uint64_t here = position, size32 = large ? kLimit32 : entry.size;
    std::string extra, head, wide;
    if (large) {
      Put(&extra, 1, 2), Put(&extra, 16, 2), Put(&extra, entry.size, 8), Put(&extra, entry.size, 8);
    }
    if (entry.name != "manifest.json") {
      uint64_t body = here + 30 + entry.name.size() + extra.size() + 6;
      uint64_t fill = (4096 - body % 4096) % 4096;
      Put(&extra, 0xD935, 2), Put(&extra, 2 + fill, 2), Put(&extra, 4096, 2);
      extra.append(fill, '\0');
    }
    Put(&head, 0x04034b50, 4), Put(&head, large ? 45 : 20, 2), Put(&head, 0, 4), Put(&head, 0, 2);
    Put(&head, 0x21, 2), Put(&head, entry.crc, 4), Put(&head, size32, 4), Put(&head, size32, 4);
    Put(&head, entry.name.size(), 2), Put(&head, extra.size(), 2);
    head += entry.name + extra;
    headers_differ = headers_differ.empty() && !same(here, head) ? entry.name : headers_differ;
    entry.start = here + head.size();
    position = entry.start + entry.size;
    std::string values;
    if (large) Put(&values, entry.size, 8), Put(&values, entry.size, 8);
    if (here >= kLimit32) Put(&values, here, 8);
    if (!values.empty()) Put(&wide, 1, 2), Put(&wide, values.size(), 2), wide += values;
    int version = wide.empty() ? 20 : 45;
    Put(&directory, 0x02014b50, 4), Put(&directory, 3 << 8 | version, 2), Put(&directory, version, 2);
    Put(&directory, 0, 4), Put(&directory, 0, 2), Put(&directory, 0x21, 2), Put(&directory, entry.crc, 4);
    Put(&directory, size32, 4), Put(&directory, size32, 4), Put(&directory, entry.name.size(), 2);
    Put(&directory, wide.size(), 2), Put(&directory, 0, 6);
    Put(&directory, 0100644ull << 16, 4), Put(&directory, std::min(here, kLimit32), 4);
    directory += entry.name + wide;
  }
  uint64_t count = entries.size();
  std::string tail = directory;
  if (position >= kLimit32) {
    Put(&tail, 0x06064b50, 4), Put(&tail, 44, 8), Put(&tail, 3 << 8 | 45, 2), Put(&tail, 45, 2);
    Put(&tail, 0, 8), Put(&tail, count, 8), Put(&tail, count, 8), Put(&tail, directory.size(), 8);
    Put(&tail, position, 8), Put(&tail, 0x07064b50, 4), Put(&tail, 0, 4);
    Put(&tail, position + directory.size(), 8), Put(&tail, 1, 4);
  }
  Put(&tail, 0x06054b50, 4), Put(&tail, 0, 4), Put(&tail, count, 2), Put(&tail, count, 2);
  Put(&tail, directory.size(), 4), Put(&tail, std::min(position, kLimit32), 4), Put(&tail, 0, 2);
  if (position + tail.size() != file.size)
    throw Malformed(std::to_string(file.size) + " bytes, but its members need " +
                    std::to_string(position + tail.size()) +
                    ": cut short, holes, overlaps, or bytes that belong to no member");
  if (!headers_differ.empty())
    throw Malformed("the header of member '" + headers_differ + "' is not as the directory says");
  if (!same(position, tail)) throw Malformed("the ZIP directory is not in the form of a bundle");
  return entries;
}

}  // namespace detail
}  // namespace tcexport
