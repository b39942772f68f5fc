"""The GPUs of this machine, asked of the driver alone."""

from __future__ import annotations

import ctypes

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


def devices_here() -> tuple[tuple[tuple[int, int], ...], str]:
    """The compute capability of each GPU; where there is none, why."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (), "it has no NVIDIA driver (libcuda.so.1)"
    status = driver.cuInit(0)
    if status:
        return (), f"the driver answers with error {status}"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    found = []
    for number in range(count.value):
        values = (ctypes.c_int(), ctypes.c_int())
        device = ctypes.c_int()
        failed = driver.cuDeviceGet(ctypes.byref(device), number)
        for value, attribute in zip(values, (_MAJOR, _MINOR), strict=True):
            failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        if failed:
            return (), f"the driver does not say what GPU {number} is (error {failed})"
        found.append((values[0].value, values[1].value))
    return tuple(found), "the driver counts none"
