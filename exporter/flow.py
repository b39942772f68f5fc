"""Where the values of a call's inputs go: into which tensors, and whether any comes out as a number.

Shapes are no values: `zeros_like` of an input holds nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..lowering.aliases import plain

aten = torch.ops.aten


class Flow(TorchDispatchMode):
    """While active, follows what is computed from the values of some tensors.

    Attributes:
        read: whether such a value became something else than a tensor: a number, a size.
    """

    supports_higher_order_operators = True

    def __init__(self, sources: Iterable[Any]) -> None:
        super().__init__()
        self.read = False
        # By memory, which views share; the references keep its address taken, not what it held.
        self._reached: set[StorageWeakRef] = set()
        self._mark(sources)

    def reaches(self, values: Iterable[Any]) -> bool:
        """Whether one of these is a tensor that may hold something of the sources: a sparse one may."""
        tensors = [each for each in values if isinstance(each, torch.Tensor)]
        return any(not _is_followed(each) or _storage(each) in self._reached for each in tensors)

    def _mark(self, values: Iterable[Any]) -> None:
        self._reached.update(_storage(each) for each in values if _is_followed(each))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        operands = pytree.tree_leaves((args, kwargs))
        if not self.reaches(operands) or getattr(func, "overloadpacket", None) in _OF_SHAPES:
            return result
        results = pytree.tree_leaves(result)
        self._mark(results)
        self._mark(_written(func, args, kwargs))
        numbers = any(each is not None and not isinstance(each, torch.Tensor) for each in results)
        self.read = self.read or numbers or _sizes_by_values(func, args)
        return result


class Reads(TorchFunctionMode):
    """Notes in a flow what reads memory without asking torch's dispatcher."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self._flow = flow

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in _OUTSIDE and self._flow.reaches(args[:1]):
            self._flow.read = True
        return func(*args, **(kwargs or {}))


_OUTSIDE = ("tolist", "numpy", "__array__", "data_ptr", "untyped_storage", "__dlpack__")
_OF_SHAPES = {
    aten.zeros_like,
    aten.ones_like,
    aten.full_like,
    aten.empty_like,
    aten.rand_like,
    aten.randn_like,
    aten.new_zeros,
    aten.new_ones,
    aten.new_full,
    aten.new_empty,
    aten.new_empty_strided,
}


def _is_followed(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _storage(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(plain(tensor).untyped_storage())


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The operands that an op writes to; of an op without a schema, all."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return list(pytree.tree_leaves((args, kwargs)))
    given = {each.name: value for each, value in zip(schema.arguments, args, strict=False)} | kwargs
    names = [each.name for each in schema.arguments if each.alias_info and each.alias_info.is_write]
    return list(pytree.tree_leaves([given.get(name) for name in names]))


def _sizes_by_values(func: Any, args: Any) -> bool:
    if torch.Tag.dynamic_output_shape not in getattr(func, "tags", ()):
        return False
    if func is not aten.index.Tensor:
        return True
    masks = (torch.bool, torch.uint8)
    return any(each is not None and each.dtype in masks for each in args[1])
