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

struct Entry {
  std::string name;
  uint64_t size = 0;
  uint32_t crc = 0;
  uint64_t start = 0;
};

inline void Put(std::string* into, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) *into += static_cast<char>(value >> (8 * i));
}

inline uint64_t Take(const Span& file, uint64_t at, int bytes) {
  uint64_t value = 0;
  for (int i = bytes; i-- > 0;) value = value << 8 | file.data[at + i];
  return value;
}

/// The members of a file, which has exactly one form for their names, sizes and CRCs: it is built again
/// and compared.
inline std::vector<Entry> ReadZip(const Span& file) {
  constexpr uint64_t k32 = 0xFFFFFFFFu;
  auto fail = [](const std::string& reason) -> void { throw Malformed(reason); };
  if (file.size < 22 || Take(file, 0, 4) != 0x04034b50) fail("it does not start like a ZIP file");
  uint64_t end = file.size - 22;
  if (Take(file, end, 4) != 0x06054b50)
    fail("the end of the ZIP directory is missing: cut short, or bytes behind it");
  uint64_t count = Take(file, end + 10, 2), at = Take(file, end + 16, 4), stop = end;
  if (at == k32) {
    if (end < 76 || Take(file, end - 76, 4) != 0x06064b50)
      fail("the ZIP64 end of the directory is missing");
    stop = end - 76;
    at = Take(file, stop + 48, 8);
  }
  if (at > stop || stop - at != Take(file, end + 12, 4))
    fail("the ZIP directory is not where its end says");
  std::vector<Entry> entries;
  for (uint64_t number = 0; number < count; ++number) {
    if (stop - at < 46 || Take(file, at, 4) != 0x02014b50) fail("the ZIP directory is damaged");
    uint64_t name = Take(file, at + 28, 2), extra = Take(file, at + 30, 2);
    if (stop - at < 46 + name + extra) fail("the ZIP directory is damaged");
    Entry entry;
    entry.name.assign(reinterpret_cast<const char*>(file.data + at + 46), name);
    entry.crc = static_cast<uint32_t>(Take(file, at + 16, 4));
    entry.size = Take(file, at + 24, 4);
    if (entry.size == k32 && extra >= 12) entry.size = Take(file, at + 46 + name + 4, 8);
    if (entry.size > file.size) fail("member '" + entry.name + "' lies about its size");
    entries.push_back(entry);
    at += 46 + name + extra;
  }
  if (entries.empty() || entries[0].name != "manifest.json") fail("the first member is no manifest");

  std::string directory;
  uint64_t position = 0;
  auto same = [&](uint64_t where, const std::string& bytes) {
    return where + bytes.size() <= file.size &&
           !std::memcmp(file.data + where, bytes.data(), bytes.size());
  };
  for (Entry& entry : entries) {
    bool large = entry.size >= k32;
    uint64_t here = position, size32 = large ? k32 : entry.size;
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
    if (!same(here, head)) fail("the header of member '" + entry.name + "' is not as the directory says");
    entry.start = here + head.size();
    position = entry.start + entry.size;
    if (position > file.size) fail("member '" + entry.name + "' is cut short");
    std::string values;
    if (large) Put(&values, entry.size, 8), Put(&values, entry.size, 8);
    if (here >= k32) Put(&values, here, 8);
    if (!values.empty()) Put(&wide, 1, 2), Put(&wide, values.size(), 2), wide += values;
    int version = wide.empty() ? 20 : 45;
    Put(&directory, 0x02014b50, 4), Put(&directory, 3 << 8 | version, 2), Put(&directory, version, 2);
    Put(&directory, 0, 4), Put(&directory, 0, 2), Put(&directory, 0x21, 2), Put(&directory, entry.crc, 4);
    Put(&directory, size32, 4), Put(&directory, size32, 4), Put(&directory, entry.name.size(), 2);
    Put(&directory, wide.size(), 2), Put(&directory, 0, 6);
    Put(&directory, 0100644ull << 16, 4), Put(&directory, std::min(here, k32), 4);
    directory += entry.name + wide;
  }
  std::string tail = directory;
  if (position >= k32) {
    Put(&tail, 0x06064b50, 4), Put(&tail, 44, 8), Put(&tail, 3 << 8 | 45, 2), Put(&tail, 45, 2);
    Put(&tail, 0, 8), Put(&tail, count, 8), Put(&tail, count, 8), Put(&tail, directory.size(), 8);
    Put(&tail, position, 8), Put(&tail, 0x07064b50, 4), Put(&tail, 0, 4);
    Put(&tail, position + directory.size(), 8), Put(&tail, 1, 4);
  }
  Put(&tail, 0x06054b50, 4), Put(&tail, 0, 4), Put(&tail, count, 2), Put(&tail, count, 2);
  Put(&tail, directory.size(), 4), Put(&tail, std::min(position, k32), 4), Put(&tail, 0, 2);
  if (position + tail.size() != file.size || !same(position, tail))
    fail("the ZIP directory is not in the form of a bundle");
  return entries;
}

}  // namespace detail
}  // namespace tcexport
