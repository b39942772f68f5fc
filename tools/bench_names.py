"""The runtimes that can be timed, by name, and what each of them needs."""

from __future__ import annotations

BUNDLE = "bundle"
BUNDLE_TORCH = "bundle-torch"  # with torch tensors; `small_calls` alone asks for it
EAGER = "eager"
COMPILE = "compile"
COMPILE_DYNAMIC = "compile-dynamic"
COMPILE_AUTO = (
    "compile-auto"  # torch.compile as it is: static first, dynamic from the second size on
)
COMPILE_WARMED = "compile-warmed"  # dynamic=False, called at every size before anything is timed
BUNDLE_GENERAL = "bundle-general"  # one code for all sizes, no variant
AOTI = "aoti"
ONNXRUNTIME = "onnxruntime"
EXECUTORCH = "executorch"  # with XNNPACK; `small_calls` alone asks for it
RUNTIMES = (BUNDLE, EAGER, COMPILE, COMPILE_DYNAMIC, AOTI, ONNXRUNTIME)

# What there is to do about sizes that differ, see `bench_strategies`.
STRATEGIES = (BUNDLE, BUNDLE_GENERAL, EAGER, COMPILE_AUTO, COMPILE_DYNAMIC, COMPILE_WARMED)

# What is built before it is loaded, by a process of its own, and the file that comes out.
BUILT = {AOTI: "model.pt2", ONNXRUNTIME: "model.onnx", EXECUTORCH: "model.pte"}

# Packages, beside those that this one requires.
NEEDS = {
    BUNDLE: (),
    BUNDLE_TORCH: ("torch",),
    EAGER: ("torch",),
    COMPILE: ("torch",),
    COMPILE_DYNAMIC: ("torch",),
    COMPILE_AUTO: ("torch",),
    COMPILE_WARMED: ("torch",),
    BUNDLE_GENERAL: (),
    AOTI: ("torch",),
    ONNXRUNTIME: ("torch", "onnxruntime", "onnx", "onnxscript"),
    EXECUTORCH: ("torch", "executorch"),
}
