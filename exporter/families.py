"""The kinds of things that a trace cannot keep: what each is called, and how it is mended."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Family:
    """``message`` is filled with what was found; ``tries`` are things to type."""

    code: str
    message: str
    tries: tuple[str, ...] = ()
    severity: str = "error"


FAMILIES: dict[str, Family] = {
    "branch": Family(
        "TC102",
        "a branch depends on the values of a tensor",
        ("torch.where(condition, a, b) for values", "torch.cond(condition, f, g, (x,)) for blocks"),
    ),
    "causal": Family(
        "TC102",
        "the layer compares the values of the mask to find out whether it is causal",
        ("pass is_causal=True for a causal mask, is_causal=False for any other",),
    ),
    "nested": Family(
        "TC102",
        "nn.TransformerEncoder looks at the values of the padding mask: where it cuts off the ends of "
        "rows and nothing else, what is cut off becomes 0, and else it is computed",
        (
            "nn.TransformerEncoder(…, enable_nested_tensor=False)",
            "torch.backends.mha.set_fastpath_enabled(False), in the file of the model",
        ),
    ),
    "size": Family(
        "TC102",
        "a number of steps, or an argument that must be a fixed number, depends on the values of a "
        "tensor",
        ("compute it for every row or expert, and mask the result with torch.where",),
    ),
    "sized": Family(
        "TC102",
        "this line needs to know a size that depends on the values of a tensor",
        ("keep all rows, and mask those that are not meant: torch.where(keep, x, 0)",),
    ),
    "raise": Family(
        "TC102",
        "an exception is raised for some values of a tensor",
        ("assert x.isfinite().all(), which is kept: the bundle refuses such calls",),
    ),
    "loop": Family(
        "TC102",
        "a loop goes on for as long as the values of a tensor say",
        (
            "torch._higher_order_ops.while_loop(goes_on, step, (x,)), which is kept as a loop",
            "a fixed number of steps, each with x = torch.where(goes_on, step(x), x)",
            "a closed form, where there is one",
        ),
    ),
    "assert": Family(
        "TC102",
        "an assertion on the values of a tensor has a form that cannot be kept",
        ("assert (x > 0).all(): all() or any() of a tensor, without `not`, `and` and `or`",),
    ),
    "classes": Family(
        "TC107",
        "one_hot() without num_classes looks for the largest class in the data",
        ("say how many classes there are: one_hot(ids, num_classes)",),
    ),
    "number": Family(
        "TC107",
        "a tensor is turned into Python numbers",
        (
            "keep it a tensor: x > x.mean(), not x > x.mean().item()",
            "compute for every row or expert, and mask the result with torch.where",
            "what is no arithmetic (text, files, drawing) before or after the call",
        ),
    ),
    "lookup": Family(
        "TC107",
        "a Python object, or one row, is looked up by the value of a tensor",
        (
            "all of them in one tensor: torch.stack(rows).index_select(0, i.reshape(1))[0]",
            "a table as a buffer: self.table.index_select(0, i.reshape(1))[0]",
        ),
    ),
    "numpy": Family(
        "TC108",
        "{what} is numpy, which cannot be part of the graph",
        ("{torch}",),
    ),
    "c": Family(
        "TC109",
        "{what} is a C function that cannot be part of the graph",
        ("call it in __init__ and keep the result: self.value = …", "write it with torch"),
    ),
    "skipped": Family(
        "TC101",
        "{what} is a function that torch does not trace",
        (
            "call it in __init__ and keep the result: self.value = …",
            "do it before or after the call, on its inputs or results",
        ),
    ),
    "packed": Family(
        "TC101",
        "{what} packs a batch by lengths that are data, and no graph has sizes that are",
        (
            "give the layer the padded batch, and mask what it gives: torch.where(real, y, 0)",
            "pack before the call, and pass one sequence at a time",
        ),
    ),
    "text": Family(
        "TC101",
        "a size that is dynamic is turned into text",
        ("leave the dim out of --dynamic", "take the text as an argument of forward"),
    ),
    "plain": Family(
        "TC101",
        "{what} gives something other than a tensor, which the trace does not follow",
        ("do it before or after the call, on its inputs or results",),
    ),
    "caught": Family(
        "TC101",
        "an op fails here, and the error that is caught ends the trace",
        ("a condition on sizes in place of try: if x.shape[0] % 4 == 0",),
    ),
    "sides": Family(
        "TC101",
        "both sides of a torch.cond must give as many tensors, of the same dtypes and sizes, "
        "laid out in the same way",
        ("contiguous results from both sides: return y.t().contiguous()", "y.to(x.dtype)"),
    ),
    "shapeless": Family(
        "TC101",
        "{what} gives a kind of tensor, or a shape, that a trace cannot hold",
        ("write it for dense tensors",),
    ),
    "output": Family(
        "TC110",
        "{what} happens at export only, not when the bundle is called",
        severity="note",
    ),
    "stream": Family(
        "TC110",
        "{what} to a stream cannot be part of the graph",
        ("print(…), which is left out of the graph and reported",),
    ),
    "files": Family(
        "TC111",
        "{what}: a call reaches outside of the model",
        ("read files in __init__", "do it before or after the call, on its inputs or results"),
    ),
    "saving": Family(
        "TC112",
        "{what}() during a call cannot be part of the graph",
        ("return the tensor, and save it outside",),
    ),
    "setting": Family(
        "TC103",
        "{what} changes a setting of torch, which a bundle does not have",
        ("give each tensor its dtype and device: torch.ones(6, dtype=torch.float64)",),
    ),
    "loose": Family(
        "TC113",
        "a tensor that .data gives is not followed by the trace",
        ("x.detach() in place of x.data",),
    ),
    "array": Family(
        "TC108",
        "an array of numpy's that a call writes to is not followed by the trace",
        ("a tensor in its place, as an input, with the new value as a result",),
    ),
    "data": Family(
        "TC113",
        "a write through .data steps around the trace and would be lost",
        ("compute a new tensor: y = y + 1, not y.data.add_(1)",),
    ),
    "clock": Family(
        "TC114",
        "{what} reads the clock, and the time of the export would be kept",
        ("take the time as an input: def forward(self, x, now)",),
    ),
    "random": Family(
        "TC105",
        "{what} draws random numbers, and those of the export would be kept",
        ("take the random tensor as an input: def forward(self, x, noise)",),
    ),
    "random_": Family(
        "TC105",
        "the trace does not follow Tensor.random_(), which draws random numbers",
        ("torch.randint(low, high, x.shape), which a bundle draws at each call",),
    ),
    "dropout": Family(
        "TC105",
        "dropout is on in eval mode too, and draws random numbers at each call",
        ("F.dropout(x, p, self.training)", "an nn.Dropout as a part of the model"),
    ),
    "seed": Family(
        "TC105",
        "{what} sets a generator of random numbers, and a bundle's is set by who calls it",
        (
            "draw them once, in __init__: self.register_buffer('noise', torch.rand(6))",
            "take the random tensor as an input: def forward(self, x, noise)",
        ),
    ),
    "environment": Family(
        "TC106",
        "{what} was read at export and is kept as it was then",
        ("an argument of __init__ makes it part of the model",),
        severity="warning",
    ),
    "machine": Family(
        "TC106",
        "{what} was asked of the exporting machine, and the answer is kept",
        ("an argument of __init__ makes it part of the model",),
        severity="warning",
    ),
    "mode": Family(
        "TC115",
        "{what} was asked at export: the answer is kept",
        severity="note",
    ),
    "layout": Family(
        "TC116",
        "{what} was asked at export, and the answer for contiguous inputs is kept: calls with others "
        "are refused",
        severity="note",
    ),
    "offset": Family(
        "TC116",
        "{what} says where a tensor lies in memory, which the graph does not hold",
        ("do not compute with it",),
    ),
    "address": Family(
        "TC116",
        "{what} is an address in memory, which is another one at each call",
        ("do not compute with it",),
    ),
    "identity": Family(
        "TC105",
        "{what} is another number in each process, and that of the export would be kept",
        ("do not compute with it",),
    ),
    "constant": Family(
        "TC121",
        "{what} was read at export and is kept as it was then",
        severity="note",
    ),
    "autocast": Family(
        "TC118",
        "autocast casts in a way that the trace does not follow",
        ("cast where it is meant: self.inner(x.to(torch.bfloat16))", "model.to(torch.bfloat16)"),
    ),
    "context": Family(
        "TC118",
        "a context manager that cannot be part of the graph",
        ("enter it outside of forward, or write what it does into the model",),
    ),
    "generator": Family(
        "TC119",
        "a generator that cannot be part of the graph",
        ("a list: [f(x) for x in xs]",),
    ),
    "foreign": Family(
        "TC120",
        "{what} is not an op of torch's, and no bundle can compute it",
        (
            'lowerings = {"library::op": function} in the source: see docs/custom-ops.md',
            "write it with torch's own ops",
        ),
    ),
    "custom": Family(
        "TC120",
        "a custom op or autograd function that cannot be part of the graph",
        ("write it with torch's own ops",),
    ),
}

_CLOCK = {
    "time": {
        "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns",
        "process_time", "process_time_ns", "thread_time", "thread_time_ns", "localtime", "gmtime",
        "ctime", "strftime", "asctime", "clock_gettime",
    },
    "datetime": {"datetime.now", "datetime.utcnow", "datetime.today", "date.today"},
}  # fmt: skip
_RANDOM = ("random", "_random", "numpy.random", "secrets", "uuid")
_FILES_OF = (
    "io",
    "_io",
    "os",
    "posix",
    "pathlib",
    "socket",
    "_socket",
    "urllib",
    "http",
    "subprocess",
)
_LOGGING = {"debug", "info", "warning", "warn", "error", "exception", "critical", "log"}
_LAYOUT = {"is_contiguous", "stride", "storage_offset"}
_SEEDS = {"seed", "manual_seed", "set_rng_state", "setstate"}
_SETTINGS = {
    *("set_default_dtype", "set_default_device", "set_default_tensor_type"),
    *("set_flush_denormal", "set_num_threads", "use_deterministic_algorithms"),
}
_MODES = {"is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled"}
_MACHINE = {
    ("torch.cuda", "is_available"),
    ("torch.cuda", "device_count"),
    ("torch.cuda", "get_device_capability"),
    ("torch", "get_num_threads"),
    ("torch", "get_num_interop_threads"),
    ("torch", "get_float32_matmul_precision"),
    ("torch", "are_deterministic_algorithms_enabled"),
    ("torch", "get_default_dtype"),
    ("torch", "get_default_device"),
    *(("posix", name) for name in ("cpu_count", "getcwd", "getpid", "getppid", "getuid", "uname")),
    ("posix", "sched_getaffinity"),
    ("os", "cpu_count"),
    ("multiprocessing.context", "BaseContext.cpu_count"),
    ("posixpath", "expanduser"),
    ("posixpath", "expandvars"),
    ("tempfile", "gettempdir"),
    ("getpass", "getuser"),
    ("sys", "getrecursionlimit"),
    ("_socket", "gethostname"),
    ("socket", "gethostname"),
}
_SAVING = {
    ("torch.serialization", "save"),
    ("torch.serialization", "load"),
    ("torch.jit._serialization", "save"),
    ("_pickle", "dump"),
    ("_pickle", "dumps"),
    ("_pickle", "load"),
    ("_pickle", "loads"),
}


def classify_call(module: str, name: str, owner: Any) -> tuple[str, str] | None:
    """The family of a function that the user's code calls, and what to call it; None where it is
    none of those that are told by their name.

    Args:
        module: where the function says it is from.
        name: its qualified name.
        owner: what it is bound to.
    """
    short = name.rpartition(".")[2]
    if isinstance(owner, torch.Tensor):
        if short in ("numpy", "__array__"):
            return "numpy", f"Tensor.{short}()"
        if short == "data_ptr":
            return "address", "data_ptr()"
        return ("layout", f"{short}()") if short in _LAYOUT else None
    if module == "builtins" and name in ("id", "hash"):
        return "identity", f"{name}()"
    if isinstance(owner, type) and owner.__module__ == "datetime":
        module = "datetime"
    if name in _CLOCK.get(module, ()):
        return "clock", f"{module}.{name}()"
    if module.partition(".")[0] == "numpy" and not short.startswith("_"):
        public = [part for part in module.split(".") if not part.startswith("_")]
        if (
            "lib" in public or "_core" in module or "core" in public
        ):  # where it is defined is numpy's own business
            public = ["numpy"]
        return "numpy", f"{'.'.join(public)}.{name}()"
    if short in _SEEDS and (module in ("random", "numpy.random") or _is_torchs(module, owner)):
        return "seed", f"{module or 'torch'}.{short}()"
    if module == "random" and not short.startswith("_"):
        return "random", f"random.{short}()"
    if short in _SETTINGS and _is_torchs(module, owner):
        return "setting", f"torch.{short}()"
    if module == "builtins" and name == "print":
        return "output", "print()"
    if module == "secrets":
        return "random", f"secrets.{short}()"
    if name in ("urandom", "getrandom"):
        return "random", f"os.{name}()"
    if module in ("_warnings", "warnings") and name == "warn":
        return "output", "warnings.warn()"
    if module == "logging" and short in _LOGGING:
        return "output", f"logging: {short}()"
    if short in ("write", "writelines") and owner is not None and _is_standard_stream(owner):
        return "output", f"{short}() to the terminal"
    if short in _MODES and _is_torchs(module, owner):
        return "mode", f"torch.{short}()"
    if (
        module == "platform"
        or (module, name) in _MACHINE
        or (_is_torchs(module, owner) and ("torch", name) in _MACHINE)
    ):
        shown = {"posix": "os", "posixpath": "os.path", "_socket": "socket"}.get(
            module, module or "torch"
        )
        return "machine", f"{shown}.{name}()"
    if (module, name) in _SAVING:
        return "saving", f"{module.lstrip('_').partition('.')[0]}.{name}"
    return None


def tries_for(family: Family, what: str) -> tuple[str, ...]:
    """What to type in place of what was found."""
    return tuple(attempt.format(torch=_in_torch(what)) for attempt in family.tries)


def _in_torch(what: str) -> str:
    """``torch.fft.fft`` for ``numpy.fft.fft()``, where there is one."""
    path = what.removesuffix("()").split(".")[1:]
    value: Any = torch
    for part in path:
        value = getattr(value, part, None)
    if what.startswith("numpy.") and value is not None:
        return f"torch.{'.'.join(path)}"
    if what.startswith("numpy."):
        return "what torch has for it, or numpy after the call, on what the bundle gives"
    return "the function of the same name in torch"


def classify_function(module: str, name: str) -> tuple[str, str]:
    """The family of a function that Dynamo does not follow, told by where it is from."""
    found = classify_call(module, name, None)
    if found is not None:
        return found
    known = bool(module) and not module.startswith("<")
    public = {"posix": "os", "nt": "os"}.get(module, module.lstrip("_"))
    shown = f"{public}.{name}" if known and module != "builtins" else name
    root = module.partition(".")[0]
    if module.startswith(_RANDOM) or name.startswith(("Random.", "SystemRandom.", "RandomState.")):
        return "random", f"{shown}()"
    if root in _FILES_OF or name == "open":
        return "files", f"{shown}()"
    return "c", f"{shown}()"


def _is_standard_stream(owner: Any) -> bool:
    return owner in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)


def _is_torchs(module: str, owner: Any) -> bool:
    return module.startswith("torch") or (not module and owner is None)


_FILES = {"open", "os.remove", "os.rename", "os.mkdir", "os.listdir", "os.scandir", "os.truncate"}
_OUTSIDE = ("socket.connect", "socket.getaddrinfo", "urllib.", "http.", "ftplib.", "smtplib.")
_PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn")


def classify_event(event: str, arguments: tuple[Any, ...]) -> tuple[str, str] | None:
    """The same for an audit event (https://docs.python.org/3/library/audit_events.html)."""
    if event in _FILES:
        path = arguments[0] if arguments else ""
        if isinstance(path, int) or path is None:
            return None
        shown = os.fsdecode(path) if isinstance(path, (str, bytes)) else str(path)
        if event == "open" and shown.endswith((".py", ".pyc", ".so")):
            return None
        verb = "open" if event == "open" else event
        return "files", f"{verb}({shown!r})"
    if event.startswith(_OUTSIDE):
        return "files", f"the network ({event})"
    if event.startswith(_PROCESSES):
        return "files", f"another process ({event})"
    return None
