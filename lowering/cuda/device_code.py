"""The CUDA C++ in ``device/``: what kernels of `launch` call, and its way into their source."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent / "device"

_CALLED = re.compile(r"\btcexport::(gemm|attention_float|attention|scan|sort)(?:_\w+)?<")
_CALLING = re.compile(r"\b(\w+)\([^()]*\) \{\n[^}]*\btcexport::")


def with_device_code(source: str) -> str:
    """CUDA source of TVM's with the files included that its kernels call functions of.

    The compiler, which does not know how much shared memory a launch takes, would spill registers to
    have more blocks on a multiprocessor; that one is enough, says the second of the launch bounds.
    Source: CUDA C++ Programming Guide, "Launch Bounds".
    """
    files = sorted(set(_CALLED.findall(source)))
    if not files:
        return source
    for name in set(_CALLING.findall(source)):
        source = re.sub(rf"(__launch_bounds__\(\d+)\) {name}\(", rf"\1, 1) {name}(", source)
    includes = "".join(f"#include <tcexport/{name}.cuh>\n" for name in files)
    # Behind what TVM puts first: it says what the headers of half-precision floats build on.
    start = source.index('extern "C" __global__')
    return source[:start] + includes + source[start:]


def device_code(source: str) -> tuple[str, ...]:
    """The text of all files that the source may include; a change of one is a change of it."""
    if "#include <tcexport/" not in source:
        return ()
    return tuple(path.read_text() for path in sorted((FOLDER / "tcexport").iterdir()))
