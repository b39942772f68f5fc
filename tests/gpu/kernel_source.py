"""A script: ``python kernel_source.py REQUEST FILE`` writes the CUDA source that the compiler of
GPU code is given for a request of `lowering.lower`, and compiles nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tcexport.lowering import worker
from tcexport.lowering.cuda import pack


def main(request: str, file: str) -> None:
    def written(source: str, *_: Any) -> bytes:
        Path(file).write_text(source)
        sys.exit(0)

    pack.compile_kernels = written
    worker.main(request)
    sys.exit("the request compiled no kernels")


if __name__ == "__main__":
    main(*sys.argv[1:])
