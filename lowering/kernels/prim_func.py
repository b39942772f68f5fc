"""Writing a kernel: a PrimFunc built statement by statement, with vectors as values.

Kernels are Python functions that emit TIR through TVM's IR builder. What Python decides (a width, a
loop that is unrolled, an optional operand) is decided when the kernel is written; what ``serial``,
``parallel`` and ``If`` say is decided when it runs. All indices are int64, so that no product of
dynamic sizes can overflow.

A vector is a TIR value with ``lanes`` elements: ``load`` and ``store`` move it from and to the last
axis of a buffer, and ordinary arithmetic works on it. One lane makes a scalar, so that the code for
a vector also serves the elements left over at an edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

# Without this annotation, TVM takes even four bytes from its heap, at each turn of the loop around;
# StorageRewrite loses it. So code from here is compiled within PassContext(**PASS_CONFIG).
ON_STACK = {"disable_lower_builtin": tirx.IntImm("bool", 1)}
PASS_CONFIG: dict[str, Any] = {
    "config": {"tirx.disable_storage_rewrite": True},
    # It looks for the parts of buffers that are used, in time that explodes with the number of
    # dynamic sizes; ours are all used.
    "disabled_pass": ["s_tir.CompactBufferAllocation"],
}

Expr = Any
Size = int | None

FLOAT = "float32"

WORTH_THREADS = 16384  # elements; less is done sooner than another thread is woken

_ATTRIBUTES = {
    # One function of a module without noalias takes it from all of them, at five times the time.
    "tirx.noalias": True,
    # kOpaque: FuseOps must leave the function alone.
    "op_pattern": 8,
    "tcexport.scheduled": 1,
}


def prim_func(name: str, declare: Callable[[], Callable[[], None]]) -> tirx.PrimFunc:
    """Build a private, already scheduled PrimFunc.

    ``declare`` declares the parameters (``param``) and returns the function that emits the body.
    The body stands in a root block: RewriteDataflowReshape needs one.
    """
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_name(name)
        T.func_attr(_ATTRIBUTES)
        body = declare()
        with T.sblock("root"):
            T.reads()
            T.writes()
            body()
    return builder.get()


def dim(size: Size, name: str) -> Expr:
    """An extent: a constant, or a variable that the caller's shapes decide."""
    return T.int64(size) if size is not None else tirx.Var(name, "int64")


def param(name: str, shape: Sequence[Expr], dtype: str = FLOAT) -> tirx.Buffer:
    """Declare the next parameter, a row-major buffer."""
    handle = T.arg(name + "_handle", T.handle())
    buffer = T.match_buffer(handle, [index(extent) for extent in shape], dtype)
    IRBuilder.name(name, buffer)
    return buffer


def local(shape: Sequence[int], dtype: str = FLOAT) -> tirx.Buffer:
    """A small buffer of one thread: registers or stack, so keep it under some ten kilobytes."""
    return T.alloc_buffer(tuple(shape), dtype, scope="local", annotations=ON_STACK)


def workspace(shape: Sequence[Expr], dtype: str = FLOAT) -> tirx.Buffer:
    """A buffer on the heap, for what is too big for the stack or has a dynamic shape."""
    return T.alloc_buffer([index(extent) for extent in shape], dtype, scope="global")


def index(value: Expr) -> Expr:
    return T.int64(value) if isinstance(value, int) else value


_BINDERS: list[Callable[[Expr], Expr]] = []


def let(value: Expr, name: str | None = None) -> Expr:
    """Name a value that is used more than once; TIR would repeat the expression."""
    if _BINDERS:
        return _BINDERS[-1](value)
    variable = T.Bind(value)
    if name is not None:
        IRBuilder.name(name, variable)
    return variable


@contextmanager
def lets_by(binder: Callable[[Expr], Expr]) -> Iterator[None]:
    """Let ``binder`` do what ``let`` does, for code that transforms functions outside a builder."""
    _BINDERS.append(binder)
    try:
        yield
    finally:
        _BINDERS.pop()


def as_expression(emit: Callable[[], Expr]) -> Expr:
    """What ``emit`` returns, as one expression: its ``let``s go inside, as TIR's Let."""
    bindings: list[tuple[tirx.Var, Expr]] = []

    def bind(value: Expr) -> Expr:
        bindings.append((tirx.Var("value", value.ty), value))
        return bindings[-1][0]

    with lets_by(bind):
        value = emit()
    for variable, bound in reversed(bindings):
        value = tirx.Let(variable, bound, value)
    return value


def parallel(extent: Expr) -> Any:
    return T.parallel(index(extent))


def parallel_tasks(tasks: Expr, elements: Expr, body: Callable[[Expr], None]) -> None:
    """Run ``body`` for each task, in parallel where there are elements enough to wake a thread."""
    tasks, elements = index(tasks), index(elements)
    with T.If(elements < index(WORTH_THREADS)):
        with T.Then(), T.serial(tasks) as task:
            body(task)
        with T.Else(), T.parallel(tasks) as task:
            body(task)


def serial(extent: Expr) -> Any:
    return T.serial(index(extent))


def div(a: Expr, b: Expr) -> Expr:
    """Division of what is never negative; by 0 as by 1.

    ``//`` of TIR rounds down, which takes a page of selects when TVM can't see the signs, and
    exponential time when such divisions are nested. And TVM moves divisions out of loops that never
    run, as those over an empty batch.
    """
    return tirx.truncdiv(index(a), _at_least_one(b))


def mod(a: Expr, b: Expr) -> Expr:
    """The remainder of ``div``."""
    return tirx.truncmod(index(a), _at_least_one(b))


def _at_least_one(divisor: Expr) -> Expr:
    return tirx.max(index(divisor), index(1))  # of numbers, TVM gives the number


def ceil_div(value: Expr, divisor: int) -> Expr:
    return div(value + T.int64(divisor - 1), divisor)


def vector(value: Expr, lanes: int, dtype: str = FLOAT) -> Expr:
    """``value`` (a number or a scalar expression) in every lane."""
    scalar = tirx.const(value, dtype) if isinstance(value, (int, float)) else value
    return scalar if lanes == 1 else tirx.Broadcast(scalar, lanes)


def iota(start: Expr, lanes: int) -> Expr:
    """``start, start + 1, …``: the int64 positions of a vector's elements."""
    return index(start) if lanes == 1 else tirx.Ramp(index(start), T.int64(1), lanes)


def load(buffer: tirx.Buffer, *position: Expr, lanes: int) -> Expr:
    """``lanes`` elements along the last axis, beginning at ``position``."""
    *outer, last = position
    return buffer[(*(index(i) for i in outer), iota(last, lanes))]


def store(buffer: tirx.Buffer, value: Expr, *position: Expr, lanes: int) -> None:
    """The counterpart of ``load``."""
    *outer, last = position
    T.buffer_store(buffer, value, [*(index(i) for i in outer), iota(last, lanes)])


def hidden(value: Expr) -> Expr:
    """A number that TVM does not look into: it takes exponential time over what is made of several
    dynamic sizes."""
    slot = local((1,), "int64")
    store(slot, value, 0, lanes=1)
    return let(slot[0])


def prefetch(buffer: tirx.Buffer, *position: Expr, cache: int = 2) -> None:
    """Ask for the cache line of an element in the level-one or level-two ``cache``, to be used soon.

    The position may lie beyond the buffer: nothing is read where nothing is.
    """
    address = T.address_of(buffer[tuple(index(i) for i in position)])
    locality = {1: 3, 2: 2}[cache]
    read, locality, data = (tirx.IntImm("int32", value) for value in (0, locality, 1))
    T.evaluate(tirx.call_llvm_intrin("void", "llvm.prefetch", address, read, locality, data))


def select(condition: Expr, yes: Expr, no: Expr) -> Expr:
    """A branch-free choice. ``T.if_then_else`` would undo vectorization."""
    return tirx.Select(condition, yes, no)
