// What the driver and a compiled kernel library know of each other. See driver.cc.
#pragma once

struct Index3 {
  unsigned x, y, z;
};

// What a running kernel may ask of the driver.
struct Runner {
  Index3 thread, block, blocks, threads;  // threadIdx, blockIdx, gridDim, blockDim
  unsigned lane;
  unsigned char* dynamic;                                       // dynamic shared memory
  void (*barrier)();                                            // of the block
  unsigned long long (*exchange)(unsigned long long, int from);  // a lane's value, within a warp
};

struct Kernel {
  const char* name;
  void (*run)(void** arguments);
  int arguments;
  const int* sizes;      // bytes of each argument
  int most_threads;      // __launch_bounds__, or 0
  int meets;             // whether its threads wait for one another
  unsigned char *shared, *shared_end;  // static shared memory
};

// Each kernel library exports: extern "C" const Kernel* standin_kernels(Runner*), ended by a null name.
