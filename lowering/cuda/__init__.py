"""Machine code for GPUs: schedules, the CUDA compiler, and its binaries in a library."""
