// A stand-in for NVIDIA's driver and runtime libraries that runs kernels on the CPU, for tests of
// exported libraries on machines without a GPU. It is strict where a device is: host code that
// touches device memory ends in a fault, new memory holds NaN, memory around an allocation is
// watched, and with STANDIN_LAZY=1 nothing runs before something waits for it.
//
// A kernel image is found by its checksum and size: $STANDIN_KERNELS/<crc32>-<size>.so holds its
// kernels compiled for the CPU (see kernels.h). Threads of a block are fibers, run in ascending or
// (STANDIN_ORDER=reverse) descending order between the points at which they meet.
//
// STANDIN_DEVICES  capabilities, "9.0,8.0" (default "9.0"; "" for no device)
// STANDIN_DRIVER   what cuDriverGetVersion answers (13000)
// STANDIN_MEMORY   bytes of each device (1 GiB)
// STANDIN_FAIL     a part of a kernel's name: it ends in an illegal access when it runs
// STANDIN_CAPTURE  "0": no stream can be captured

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"

namespace {

enum {
  OK = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  NO_BINARY_FOR_GPU = 209,
  UNSUPPORTED_PTX = 222,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,  // what waits, on a stream that is captured
  CAPTURE_INVALIDATED = 901,
  CAPTURE_UNMATCHED = 903,
};

std::recursive_mutex lock;
using Guard = std::lock_guard<std::recursive_mutex>;

const char* setting(const char* name, const char* otherwise) {
  const char* found = getenv(name);
  return found ? found : otherwise;
}

[[noreturn]] void stop(const char* reason, const char* what = "") {
  fprintf(stderr, "stand-in driver: %s %s\n", reason, what);
  abort();
}

// --- devices ------------------------------------------------------------------------------------

std::vector<std::pair<int, int>> devices() {
  std::vector<std::pair<int, int>> found;
  const char* text = setting("STANDIN_DEVICES", "9.0");
  if (!*setting("CUDA_VISIBLE_DEVICES", "0")) return found;
  int major, minor, used;
  while (sscanf(text, "%d.%d%n", &major, &minor, &used) == 2) {
    found.push_back({major, minor});
    text += used;
    if (*text == ',') text++;
  }
  return found;
}

size_t memory_size() { return strtoull(setting("STANDIN_MEMORY", "1073741824"), nullptr, 10); }

int shared_limit(int device) {  // per block, with the attribute set; CUDA's programming guide
  auto [major, minor] = devices()[device];
  int kib = major == 7 ? 64 : major == 8 ? (minor == 0 ? 163 : 99) : major == 12 ? 99 : 227;
  return kib << 10;
}

thread_local int current = 0;
int sticky = OK;  // an error that a kernel ended in stays, as on a device
long counts[7];   // launches, bytes to devices, bytes from devices, waits, allocations,
                  // launches of graphs, graphs that can be launched now
enum { LAUNCHES, TO_DEVICE, FROM_DEVICE, WAITS, ALLOCATIONS, REPLAYS, GRAPHS };

// --- memory -------------------------------------------------------------------------------------

constexpr size_t ARENA = size_t(1) << 36, ZONE = 256;
constexpr unsigned char POISON = 0xff;  // floats of any width: NaN
unsigned char* arena = nullptr;
size_t reached = 0;  // the arena was used up to here

struct Block {
  size_t size;
  int device;
};
std::map<unsigned char*, Block> blocks;              // device memory, by address
std::map<size_t, size_t> holes;                      // freed parts of the arena: offset -> size
std::map<unsigned char*, size_t> pinned;             // host memory that copies are not staged from
std::map<int, size_t> used;                          // by device

// Device memory is only there while something runs on the device.
int visible = 0;
struct OnDevice {
  OnDevice() { show(+1); }
  ~OnDevice() { show(-1); }
  static void show(int change) {
    bool before = visible > 0;
    visible += change;
    if (before != (visible > 0) && reached)
      mprotect(arena, (reached + 4095) & ~size_t(4095),
               visible ? PROT_READ | PROT_WRITE : PROT_NONE);
  }
};

size_t footprint(size_t size) { return (size + 255) / 256 * 256 + 2 * ZONE; }

void drain_everything();

int allocate(void** out, size_t size) {
  if (sticky) return sticky;
  size_t whole = footprint(size), offset = ARENA;
  if (used[current] + size > memory_size()) return OUT_OF_MEMORY;
  if (!arena) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    arena = (unsigned char*)mmap(nullptr, ARENA, PROT_NONE, flags, -1, 0);
    if (arena == MAP_FAILED) stop("no address space");
  }
  for (auto& [start, length] : holes)
    if (length >= whole) {
      offset = start;
      size_t rest = length - whole;
      holes.erase(start);
      if (rest) holes[offset + whole] = rest;
      break;
    }
  if (offset == ARENA) {
    offset = reached;
    if (reached + whole > ARENA) return OUT_OF_MEMORY;
    mprotect(arena + reached / 4096 * 4096, whole + 4096,
             visible ? PROT_READ | PROT_WRITE : PROT_NONE);
    reached += whole;
  }
  OnDevice here;
  memset(arena + offset, POISON, whole);
  unsigned char* start = arena + offset + ZONE;
  blocks[start] = {size, current};
  used[current] += size;
  counts[ALLOCATIONS]++;
  *out = start;
  return OK;
}

void check_zones(unsigned char* start, size_t size) {
  for (unsigned char* at = start - ZONE; at < start; at++)
    if (*at != POISON) stop("a kernel wrote before the beginning of an allocation");
  for (unsigned char* at = start + size; at < start + footprint(size) - ZONE; at++)
    if (*at != POISON) stop("a kernel wrote behind the end of an allocation");
}

void check_all_zones() {
  OnDevice here;
  for (auto& [start, block] : blocks) check_zones(start, block.size);
}

int release(void* memory) {
  if (!memory) return OK;
  drain_everything();  // as cudaFree does
  auto found = blocks.find((unsigned char*)memory);
  if (found == blocks.end()) return INVALID_VALUE;
  OnDevice here;
  check_zones(found->first, found->second.size);
  memset(found->first, POISON, found->second.size);
  used[found->second.device] -= found->second.size;
  size_t offset = found->first - ZONE - arena, length = footprint(found->second.size);
  blocks.erase(found);
  auto next = holes.lower_bound(offset);
  if (next != holes.end() && next->first == offset + length) {
    length += next->second;
    next = holes.erase(next);
  }
  if (next != holes.begin() && std::prev(next)->first + std::prev(next)->second == offset)
    std::prev(next)->second += length;
  else
    holes[offset] = length;
  return sticky;
}

template <class Map>
bool within(const Map& map, const void* pointer, size_t size, size_t (*length)(typename Map::mapped_type)) {
  auto at = (unsigned char*)pointer;
  auto next = map.upper_bound(at);
  if (next == map.begin()) return false;
  --next;
  return at + size <= next->first + length(next->second);
}
bool on_device(const void* pointer, size_t size) {
  return within(blocks, pointer, size, +[](Block block) { return block.size; });
}
bool is_pinned(const void* pointer, size_t size) {
  return within(pinned, pointer, size, +[](size_t length) { return length; });
}

// --- streams and events -------------------------------------------------------------------------

struct Stream;
struct Point {  // a place in a stream: what was queued before it is done
  Stream* stream;
  long number;
};
struct Work {
  std::function<void()> run;
  std::vector<Point> after;
};
// What was put on a stream while it was captured. None of it has run.
enum NodeType { KERNEL_NODE = 0, MEMCPY_NODE = 1, EMPTY_NODE = 5 };
struct Node {
  NodeType type;
  std::function<void()> run;
};
struct Graph {
  std::vector<Node*> nodes;
  bool valid = true;
};
struct Executable {
  std::vector<std::function<void()>> runs;
  long pending = 0;  // launches that have not run to their end
};
struct Stream {
  bool blocking;  // waits for the default stream, and it waits for this one
  std::deque<Work> queue;
  long queued = 0, done = 0;
  Graph* captured = nullptr;
};
struct Event {
  Point point{nullptr, 0};
};

Stream default_stream{true};
std::vector<Stream*> streams{&default_stream};

Stream* stream_of(void* handle) {
  return handle == nullptr || handle == (void*)1 ? &default_stream : (Stream*)handle;
}

void drain(Stream* stream, long until) {
  while (stream->done < until) {
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    for (auto& point : work.after) drain(point.stream, point.number);
    if (!sticky) work.run();
    stream->done++;
  }
}

void drain_everything() {
  for (auto* stream : streams) drain(stream, stream->queued);
}

void enqueue(Stream* stream, std::function<void()> run, std::vector<Point> after = {},
             NodeType type = EMPTY_NODE) {
  if (stream->captured) {
    stream->captured->nodes.push_back(new Node{type, std::move(run)});
    return;
  }
  if (stream == &default_stream) {
    for (auto* other : streams)
      if (other != stream && other->blocking) after.push_back({other, other->queued});
  } else if (stream->blocking) {
    after.push_back({&default_stream, default_stream.queued});
  }
  stream->queue.push_back({std::move(run), std::move(after)});
  stream->queued++;
  if (*setting("STANDIN_LAZY", "") != '1') drain(stream, stream->queued);
}

// What cannot be done on a stream that is captured spoils the capture.
int not_captured(Stream* stream) {
  if (!stream || !stream->captured) return OK;
  stream->captured->valid = false;
  return CAPTURE_UNSUPPORTED;
}

int wait_for(Stream* stream) {
  if (int problem = not_captured(stream)) return problem;
  counts[WAITS]++;
  drain(stream, stream->queued);
  return sticky;
}

int copy(void* to, const void* from, size_t size, Stream* stream) {
  if (sticky) return sticky;
  if (!size) return OK;
  bool writes = on_device(to, size), reads = on_device(from, size);
  if (writes && !reads) counts[TO_DEVICE] += size;
  if (reads && !writes) counts[FROM_DEVICE] += size;
  if (writes && !reads && !is_pinned(from, size)) {  // staged: the source is free at once
    if (int problem = not_captured(stream)) return problem;
    std::string staged((const char*)from, size);
    enqueue(stream, [=, staged = std::move(staged)] {
      OnDevice here;
      memcpy(to, staged.data(), size);
    });
    return OK;
  }
  enqueue(stream, [=] {
    OnDevice here;
    memcpy(to, from, size);
  }, {}, MEMCPY_NODE);
  if (!writes && !is_pinned(to, size)) return wait_for(stream);
  return OK;
}

// --- kernels ------------------------------------------------------------------------------------

Runner runner;

enum State { READY, AT_WARP, AT_BLOCK, DONE };

#if defined(__x86_64__)
// Saves what a function must preserve, and goes on where the other side stopped: fifty times faster
// than swapcontext, which asks the system for the signal mask.
extern "C" void standin_switch(void** save, void* load);
asm(R"(
.text
.type standin_switch, @function
standin_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size standin_switch, .-standin_switch
)");
struct Context {
  void* stack = nullptr;
};
void change(Context& from, Context& to) { standin_switch(&from.stack, to.stack); }
void prepare(Context& context, unsigned char* low, size_t size, void (*entry)()) {
  auto top = (void**)(((uintptr_t)low + size) & ~uintptr_t(15));
  *--top = nullptr;  // keeps the stack of `entry` aligned as behind a call
  *--top = (void*)entry;
  for (int each = 0; each < 6; each++) *--top = nullptr;
  context.stack = top;
}
#else
struct Context {
  ucontext_t saved;
};
void change(Context& from, Context& to) { swapcontext(&from.saved, &to.saved); }
void prepare(Context& context, unsigned char* low, size_t size, void (*entry)()) {
  getcontext(&context.saved);
  context.saved.uc_stack.ss_sp = low;
  context.saved.uc_stack.ss_size = size;
  context.saved.uc_link = nullptr;
  makecontext(&context.saved, entry, 0);
}
#endif

constexpr size_t STACK = 1 << 18, GUARD = 4096;
constexpr int MOST = 1024, WARP = 32;

struct Fiber {
  Context context;
  State state;
  Index3 thread;
  unsigned long long slots[2];
  int turn;
};

Fiber fibers[MOST];
unsigned char* stacks = nullptr;
Context home;
int running = 0;
const Kernel* kernel_now = nullptr;
void** arguments_now = nullptr;

void leave(State state) {
  fibers[running].state = state;
  change(fibers[running].context, home);
}

void fiber_main() {
  kernel_now->run(arguments_now);
  leave(DONE);
}

void barrier() { leave(AT_BLOCK); }

unsigned long long exchange(unsigned long long value, int from) {
  Fiber& self = fibers[running];
  int turn = self.turn;
  self.turn ^= 1;  // a lane may be one exchange ahead, no more
  self.slots[turn] = value;
  int first = running / WARP * WARP;
  leave(AT_WARP);
  return fibers[first + from].slots[turn];
}

sigjmp_buf escape;
struct sigaction before;
void on_fault(int, siginfo_t*, void*) { siglongjmp(escape, 1); }

void set_thread(int number) {
  const Index3& size = runner.threads;
  runner.thread = {number % size.x, number / size.x % size.y, number / (size.x * size.y)};
  runner.lane = number % WARP;
}

void run_block(int threads, bool reverse) {
  if (!kernel_now->meets) {
    for (int each = 0; each < threads; each++) {
      set_thread(reverse ? threads - 1 - each : each);
      kernel_now->run(arguments_now);
    }
    return;
  }
  for (int each = 0; each < threads; each++) {
    unsigned char* low = stacks + each * (STACK + GUARD) + GUARD;
    prepare(fibers[each].context, low, STACK, fiber_main);
    fibers[each].state = READY;
    fibers[each].turn = 0;
    fibers[each].slots[0] = fibers[each].slots[1] = ~0ull;
  }
  int warps = (threads + WARP - 1) / WARP, done = 0;
  while (done < threads) {
    done = 0;
    for (int step = 0; step < warps; step++) {
      int warp = reverse ? warps - 1 - step : step;
      int first = warp * WARP, last = std::min(threads, first + WARP);
      bool again = true;
      while (again) {
        for (int each = first; each < last; each++) {
          running = reverse ? last - 1 - (each - first) : each;
          if (fibers[running].state != READY) continue;
          set_thread(running);
          change(home, fibers[running].context);
        }
        again = false;
        for (int each = first; each < last; each++)
          if (fibers[each].state == AT_WARP) fibers[each].state = READY, again = true;
      }
      for (int each = first; each < last; each++) done += fibers[each].state == DONE;
    }
    for (int each = 0; each < threads; each++)
      if (fibers[each].state == AT_BLOCK) fibers[each].state = READY;
  }
}

struct Launch {
  const Kernel* kernel;
  Index3 grid, block;
  unsigned dynamic;
  std::vector<std::vector<unsigned char>> arguments;
};

void execute(const Launch& launch) {
  const char* fails = setting("STANDIN_FAIL", "");
  if (*fails && strstr(launch.kernel->name, fails)) {
    sticky = ILLEGAL_ADDRESS;
    return;
  }
  if (!stacks) {  // each behind a page that faults
    size_t size = MOST * (STACK + GUARD);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    stacks = (unsigned char*)mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (stacks == MAP_FAILED) stop("no memory for stacks");
    for (int each = 0; each < MOST; each++)
      mprotect(stacks + each * (STACK + GUARD), GUARD, PROT_NONE);
  }
  std::vector<void*> pointers;
  for (auto& each : launch.arguments) pointers.push_back((void*)each.data());
  std::vector<unsigned char> dynamic(launch.dynamic + 1024, POISON);
  kernel_now = launch.kernel;
  arguments_now = pointers.data();
  runner.threads = launch.block;
  runner.blocks = launch.grid;
  runner.dynamic = (unsigned char*)(((uintptr_t)dynamic.data() + 1023) & ~uintptr_t(1023));
  runner.barrier = barrier;
  runner.exchange = exchange;
  bool reverse = !strcmp(setting("STANDIN_ORDER", ""), "reverse");
  OnDevice here;
  struct sigaction fault {};
  fault.sa_sigaction = on_fault;
  fault.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &fault, &before);
  if (sigsetjmp(escape, 1) == 0) {
    for (unsigned z = 0; z < launch.grid.z; z++)
      for (unsigned y = 0; y < launch.grid.y; y++)
        for (unsigned x = 0; x < launch.grid.x; x++) {
          runner.block = {x, y, z};
          if (launch.dynamic) memset(runner.dynamic, POISON, launch.dynamic);
          if (kernel_now->shared)
            memset(kernel_now->shared, POISON, kernel_now->shared_end - kernel_now->shared);
          run_block(launch.block.x * launch.block.y * launch.block.z, reverse);
        }
  } else {
    fprintf(stderr, "stand-in driver: illegal access in %s\n", launch.kernel->name);
    sticky = ILLEGAL_ADDRESS;
  }
  sigaction(SIGSEGV, &before, nullptr);
}

struct Function {
  const Kernel* kernel;
  int dynamic_limit = 48 << 10;
};
struct Module {
  std::map<std::string, Function> functions;
};

unsigned checksum(const unsigned char* data, size_t size) {  // CRC-32, as zlib's
  unsigned value = ~0u;
  for (size_t at = 0; at < size; at++) {
    value ^= data[at];
    for (int bit = 0; bit < 8; bit++) value = (value >> 1) ^ (0xedb88320u & -(value & 1));
  }
  return ~value;
}

template <class T>
T field(const unsigned char* at) {
  T value;
  memcpy(&value, at, sizeof value);
  return value;
}

// The bytes of a fat binary; 0 when it is none.
size_t image_size(const unsigned char* image) {
  return field<uint32_t>(image) == 0xba55ed50 ? field<uint16_t>(image + 6) + field<uint64_t>(image + 8) : 0;
}

// As a driver chooses: machine code of the same major capability and at most the same minor, or PTX
// for at most this capability, of a version that the driver knows.
int choose(const unsigned char* image, size_t size) {
  auto [major, minor] = devices()[current];
  int driver = atoi(setting("STANDIN_DRIVER", "13000")), newest = 90 + (driver % 1000) / 10;
  if (driver < 13000) newest = 80 + (driver % 1000) / 10;
  bool ptx = false;
  for (size_t at = field<uint16_t>(image + 6); at + 64 <= size;) {
    const unsigned char* entry = image + at;
    unsigned arch = field<uint32_t>(entry + 28);
    int isa = field<uint16_t>(entry + 26) * 10 + field<uint16_t>(entry + 24);
    if (field<uint16_t>(entry) == 2 && int(arch / 10) == major && int(arch % 10) <= minor) return OK;
    if (field<uint16_t>(entry) == 1 && int(arch) <= major * 10 + minor) {
      if (isa <= newest) return OK;
      ptx = true;
    }
    at += field<uint32_t>(entry + 4) + field<uint64_t>(entry + 8);
  }
  return ptx ? UNSUPPORTED_PTX : NO_BINARY_FOR_GPU;
}

int load(Module** out, const unsigned char* image) {
  if (sticky) return sticky;
  size_t size = image_size(image);
  if (!size) return INVALID_IMAGE;
  if (int problem = choose(image, size)) return problem;
  char name[64];
  snprintf(name, sizeof name, "/%08x-%zu.so", checksum(image, size), size);
  std::string path = setting("STANDIN_KERNELS", ".") + std::string(name);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "stand-in driver: %s\n", dlerror());
    return NO_BINARY_FOR_GPU;
  }
  auto kernels = (const Kernel* (*)(Runner*))dlsym(library, "standin_kernels");
  auto* module = new Module;
  for (const Kernel* each = kernels(&runner); each->name; each++)
    module->functions[each->name] = {each};
  *out = module;
  return OK;
}

int launch(Function* function, Index3 grid, Index3 block, unsigned dynamic, void* stream,
           void** arguments) {
  if (sticky) return sticky;
  const Kernel* kernel = function->kernel;
  unsigned threads = block.x * block.y * block.z;
  if (!threads || threads > MOST || block.z > 64) return INVALID_VALUE;
  if (kernel->most_threads && threads > unsigned(kernel->most_threads)) return INVALID_VALUE;
  if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535) return INVALID_VALUE;
  int fixed = int(kernel->shared_end - kernel->shared);
  if (fixed > 48 << 10 || fixed + int(dynamic) > function->dynamic_limit) return INVALID_VALUE;
  Launch work{kernel, grid, block, dynamic, {}};
  for (int each = 0; each < kernel->arguments; each++) {
    auto from = (unsigned char*)arguments[each];
    work.arguments.emplace_back(from, from + kernel->sizes[each]);
  }
  counts[LAUNCHES]++;
  enqueue(stream_of(stream), [work = std::move(work)] { execute(work); }, {}, KERNEL_NODE);
  return OK;
}

int attribute(int* value, int which, int device) {
  if (device < 0 || size_t(device) >= devices().size()) return INVALID_DEVICE;
  switch (which) {
    case 1: case 2: case 3: *value = MOST; break;       // threads of a block, along x, along y
    case 4: *value = 64; break;                         // along z
    case 5: *value = 2147483647; break;                 // blocks along x
    case 6: case 7: *value = 65535; break;              // along y, z
    case 8: *value = 48 << 10; break;                   // shared memory of a block
    case 10: *value = WARP; break;
    case 12: *value = 65536; break;                     // registers of a block
    case 13: *value = 1000000; break;                   // kHz
    case 16: *value = 1; break;                         // multiprocessors
    case 75: *value = devices()[device].first; break;
    case 76: *value = devices()[device].second; break;
    case 97: *value = shared_limit(device); break;      // shared memory, with the attribute set
    default: *value = 0;
  }
  return OK;
}

const char* name_of(int error) {
  switch (error) {
    case OK: return "cudaSuccess";
    case INVALID_VALUE: return "cudaErrorInvalidValue";
    case OUT_OF_MEMORY: return "cudaErrorMemoryAllocation";
    case NO_DEVICE: return "cudaErrorNoDevice";
    case INVALID_DEVICE: return "cudaErrorInvalidDevice";
    case INVALID_IMAGE: return "cudaErrorInvalidKernelImage";
    case NO_BINARY_FOR_GPU: return "cudaErrorNoKernelImageForDevice";
    case UNSUPPORTED_PTX: return "cudaErrorUnsupportedPtxVersion";
    case NOT_READY: return "cudaErrorNotReady";
    case ILLEGAL_ADDRESS: return "cudaErrorIllegalAddress";
    case NOT_SUPPORTED: return "cudaErrorNotSupported";
    case CAPTURE_UNSUPPORTED: return "cudaErrorStreamCaptureUnsupported";
    case CAPTURE_INVALIDATED: return "cudaErrorStreamCaptureInvalidated";
    case CAPTURE_UNMATCHED: return "cudaErrorStreamCaptureUnmatched";
    default: return "cudaErrorUnknown";
  }
}

}  // namespace

// --- what the libraries export ------------------------------------------------------------------

struct LaunchConfig {
  Index3 grid, block;
  unsigned dynamic;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

#pragma GCC visibility push(default)
extern "C" {

// For tests.
long standin_count(int which) { return counts[which]; }
size_t standin_used(int device) { return used[device]; }
void standin_check() { Guard held(lock); drain_everything(); check_all_zones(); }
void standin_recover() { sticky = OK; }

int cuInit(unsigned) { return devices().empty() ? NO_DEVICE : OK; }
int cuDriverGetVersion(int* version) { *version = atoi(setting("STANDIN_DRIVER", "13000")); return OK; }
int cuDeviceGetCount(int* count) { *count = int(devices().size()); return OK; }
int cuDeviceGet(int* device, int number) {
  *device = number;
  return number >= 0 && size_t(number) < devices().size() ? OK : INVALID_DEVICE;
}
int cuDeviceGetAttribute(int* value, int which, int device) { return attribute(value, which, device); }
int cuDeviceGetName(char* name, int size, int device) { snprintf(name, size, "stand-in %d", device); return OK; }
int cuDeviceTotalMem_v2(size_t* size, int) { *size = memory_size(); return OK; }
int cuGetErrorName(int error, const char** name) { *name = name_of(error); return OK; }
int cuGetErrorString(int error, const char** text) { *text = name_of(error); return OK; }
int cuModuleLoadData(void** out, const void* image) { Guard held(lock); return load((Module**)out, (const unsigned char*)image); }
int cuModuleUnload(void* module) { delete (Module*)module; return OK; }
int cuModuleGetFunction(void** out, void* module, const char* name) {
  auto& functions = ((Module*)module)->functions;
  auto found = functions.find(name);
  if (found == functions.end()) return NOT_FOUND;
  *out = &found->second;
  return OK;
}
int cuFuncSetAttribute(void* function, int which, int value) {
  if (which == 8) {  // dynamic shared memory
    if (value > shared_limit(current)) return INVALID_VALUE;
    ((Function*)function)->dynamic_limit = value;
  }
  return OK;
}
int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** arguments, void**) {
  Guard held(lock);
  return launch((Function*)function, config->grid, config->block, config->dynamic, config->stream, arguments);
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned dynamic, void* stream, void** arguments, void**) {
  Guard held(lock);
  return launch((Function*)function, {gx, gy, gz}, {bx, by, bz}, dynamic, stream, arguments);
}
int cuTensorMapEncodeTiled() { return NOT_SUPPORTED; }

int cudaGetDeviceCount(int* count) {
  *count = int(devices().size());
  return *count ? OK : NO_DEVICE;
}
int cudaGetDevice(int* device) { *device = current; return OK; }
int cudaSetDevice(int device) {
  if (device < 0 || size_t(device) >= devices().size()) return INVALID_DEVICE;
  current = device;
  return OK;
}
int cudaDeviceGetAttribute(int* value, int which, int device) { return attribute(value, which, device); }
int cudaGetDeviceProperties(void*, int) { return NOT_SUPPORTED; }
int cudaDriverGetVersion(int* version) { return cuDriverGetVersion(version); }
int cudaRuntimeGetVersion(int* version) { *version = 13000; return OK; }
const char* cudaGetErrorName(int error) { return name_of(error); }
const char* cudaGetErrorString(int error) { return name_of(error); }
int cudaGetLastError() { return sticky; }
int cudaPeekAtLastError() { return sticky; }

int cudaMalloc(void** out, size_t size) { Guard held(lock); return allocate(out, size); }
int cudaFree(void* memory) { Guard held(lock); return release(memory); }
int cudaMallocHost(void** out, size_t size) {
  Guard held(lock);
  if (posix_memalign(out, 4096, size + 1)) return OUT_OF_MEMORY;
  memset(*out, POISON, size);
  pinned[(unsigned char*)*out] = size;
  return OK;
}
int cudaFreeHost(void* memory) {
  Guard held(lock);
  drain_everything();
  pinned.erase((unsigned char*)memory);
  free(memory);
  return OK;
}
int cudaMemGetInfo(size_t* available, size_t* total) {
  Guard held(lock);
  *total = memory_size();
  *available = *total - std::min(*total, used[current]);
  return OK;
}
int cudaMemcpyAsync(void* to, const void* from, size_t size, int, void* stream) {
  Guard held(lock);
  return copy(to, from, size, stream_of(stream));
}
int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, void* stream) {
  Guard held(lock);
  return copy(to, from, size, stream_of(stream));
}

int cudaStreamCreateWithFlags(void** out, unsigned flags) {
  Guard held(lock);
  auto* stream = new Stream{!(flags & 1)};
  streams.push_back(stream);
  *out = stream;
  return OK;
}
int cudaStreamCreate(void** out) { return cudaStreamCreateWithFlags(out, 0); }
int cudaStreamDestroy(void*) { return OK; }  // kept: events may point to it
int cudaStreamSynchronize(void* stream) { Guard held(lock); return wait_for(stream_of(stream)); }
int cudaStreamQuery(void* handle) {
  Guard held(lock);
  auto* stream = stream_of(handle);
  if (int problem = not_captured(stream)) return problem;
  return sticky ? sticky : stream->done == stream->queued ? OK : NOT_READY;
}
int cudaDeviceSynchronize() { Guard held(lock); counts[WAITS]++; drain_everything(); return sticky; }
int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  Guard held(lock);
  if (int problem = not_captured(stream_of(stream))) return problem;
  auto point = ((Event*)event)->point;
  if (point.stream) enqueue(stream_of(stream), [] {}, {point});
  return OK;
}
int cudaEventCreateWithFlags(void** out, unsigned) { *out = new Event; return OK; }
int cudaEventCreate(void** out) { return cudaEventCreateWithFlags(out, 0); }
int cudaEventDestroy(void* event) { delete (Event*)event; return OK; }
int cudaEventRecord(void* event, void* stream) {
  Guard held(lock);
  auto* on = stream_of(stream);
  if (int problem = not_captured(on)) return problem;
  enqueue(on, [] {});
  ((Event*)event)->point = {on, on->queued};
  return sticky;
}
int cudaEventSynchronize(void* event) {
  Guard held(lock);
  counts[WAITS]++;
  auto point = ((Event*)event)->point;
  if (point.stream) drain(point.stream, point.number);
  return sticky;
}
int cudaEventQuery(void* event) {
  Guard held(lock);
  auto point = ((Event*)event)->point;
  return sticky ? sticky : !point.stream || point.stream->done >= point.number ? OK : NOT_READY;
}
int cudaEventElapsedTime(float* milliseconds, void*, void*) { *milliseconds = 1; return sticky; }

// As on a device: the stream of whoever names none cannot be captured, and while a stream is, what it
// is given is kept and not run. A graph that was made is the launches with the arguments they had.
int cudaStreamBeginCapture(void* handle, int) {
  Guard held(lock);
  auto* stream = stream_of(handle);
  if (sticky) return sticky;
  if (*setting("STANDIN_CAPTURE", "1") == '0') return NOT_SUPPORTED;
  if (stream == &default_stream || stream->captured) return CAPTURE_UNSUPPORTED;
  stream->captured = new Graph;
  return OK;
}
int cudaStreamEndCapture(void* handle, void** out) {
  Guard held(lock);
  auto* stream = stream_of(handle);
  *out = nullptr;
  auto* graph = stream->captured;
  if (!graph) return CAPTURE_UNMATCHED;
  stream->captured = nullptr;
  if (!graph->valid) return CAPTURE_INVALIDATED;
  *out = graph;
  return OK;
}
int cudaGraphGetNodes(void* graph, void** out, size_t* count) {
  auto& nodes = ((Graph*)graph)->nodes;
  if (out)
    for (size_t each = 0; each < *count; each++)
      out[each] = each < nodes.size() ? nodes[each] : nullptr;
  else
    *count = nodes.size();
  return OK;
}
int cudaGraphNodeGetType(void* node, int* type) { *type = ((Node*)node)->type; return OK; }
int cudaGraphInstantiate(void** out, void* graph, unsigned long long) {
  Guard held(lock);
  auto* made = new Executable;
  for (auto* node : ((Graph*)graph)->nodes) made->runs.push_back(node->run);
  *out = made;
  counts[GRAPHS]++;
  return OK;
}
int cudaGraphLaunch(void* graph, void* handle) {
  Guard held(lock);
  if (sticky) return sticky;
  auto* stream = stream_of(handle);
  if (int problem = not_captured(stream)) return problem;
  counts[REPLAYS]++;
  auto* made = (Executable*)graph;
  made->pending++;
  for (auto& run : made->runs) enqueue(stream, run);
  enqueue(stream, [made] { made->pending--; });
  return OK;
}
int cudaGraphDestroy(void* graph) {
  for (auto* node : ((Graph*)graph)->nodes) delete node;
  delete (Graph*)graph;
  return OK;
}
int cudaGraphExecDestroy(void* graph) {
  Guard held(lock);
  auto* made = (Executable*)graph;
  if (made->pending && !sticky) stop("a graph is destroyed that has not run");
  counts[GRAPHS]--;
  delete made;
  return OK;
}
}
#pragma GCC visibility pop
