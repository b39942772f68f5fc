"""The runtimes that can be timed, by name, and what each of them needs."""

from __future__ import annotations

BUNDLE = "bundle"
BUNDLE_TORCH = "bundle-torch"  # with torch tensors; `small_calls` alone asks for it
EAGER = "eager"
COMPILE = "compile"
COMPILE_DYNAMIC = "compile-dynamic"
AOTI = "aoti"
ONNXRUNTIME = "onnxruntime"
EXECUTORCH = "executorch"  # with XNNPACK; `small_calls` alone asks for it
RUNTIMES = (BUNDLE, EAGER, COMPILE, COMPILE_DYNAMIC, AOTI, ONNXRUNTIME)

# What is built before it is loaded, by a process of its own, and the file that comes out.
BUILT = {AOTI: "model.pt2", ONNXRUNTIME: "model.onnx", EXECUTORCH: "model.pte"}

# Packages, beside those that this one requires.
NEEDS = {
    BUNDLE: (),
    BUNDLE_TORCH: ("torch",),
    EAGER: ("torch",),
    COMPILE: ("torch",),
    COMPILE_DYNAMIC: ("torch",),
    AOTI: ("torch",),
    ONNXRUNTIME: ("torch", "onnxruntime", "onnx", "onnxscript"),
    EXECUTORCH: ("torch", "executorch"),
}
