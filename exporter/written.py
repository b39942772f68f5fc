"""Tensors that a call writes in place: saved just before the first write, and put back after it.

Nothing is copied for a model that writes nothing. Writes are seen below autograd, so that those
through ``.data`` count; memory that is handed to other code (``.numpy()``) is saved when it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..artifacts.errors import Location


@dataclass(frozen=True)
class Write:
    """``name``: the parameter, buffer or attribute, or the input's path."""

    name: str
    location: Location | None


class Written(TorchDispatchMode):
    """While active, sees every write to the tensors named; `restore` undoes them.

    Args:
        tensors: what to watch, by name.
        here: gives the user's line that is running.
        read: called where a Python number is read out of a tensor.
        drew: called where torch's own generator has given random numbers.
        nested: called where nn.TransformerEncoder asks whether a padding mask lets it pack its rows.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        here: Callable[[], Location | None],
        read: Callable[[], None] = lambda: None,
        drew: Callable[[], None] = lambda: None,
        nested: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._nested = nested
        self._drew = drew
        self._here = here
        self._read = read
        self._saved: dict[int, torch.UntypedStorage] = {}
        self._lines: dict[int, Location | None] = {}
        self._tensors = {
            name: (each, each.untyped_storage(), each.storage_offset(), each.size(), each.stride())
            for name, each in tensors.items()
            if each.layout is torch.strided and not each.is_meta
        }
        self._watched = {storage._cdata for _, storage, *_ in self._tensors.values()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = getattr(func, "_schema", None)
        if schema is not None and schema.is_mutable:
            for position, argument in enumerate(schema.arguments):
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                if position < len(args):
                    value = args[position]
                else:
                    value = kwargs.get(argument.name)
                for each in value if isinstance(value, (list, tuple)) else (value,):
                    if isinstance(each, torch.Tensor):
                        self.save(each)
        if func is torch.ops.aten._local_scalar_dense.default:
            self._read()
        if func is torch.ops.aten._nested_tensor_from_mask_left_aligned.default:
            self._nested()
        if torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
            return func(*args, **kwargs)
        before = torch.get_rng_state()
        result = func(*args, **kwargs)
        if not torch.equal(before, torch.get_rng_state()):
            self._drew()
        return result

    def save(self, tensor: torch.Tensor) -> None:
        """Keep what a tensor holds now, if it is watched and not saved yet."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._watched and key not in self._saved:
            self._saved[key] = storage.clone()
            self._lines[key] = self._here()

    def writes(self) -> list[Write]:
        """The tensors that hold something else than before, and who wrote."""
        found = []
        for name, (tensor, storage, offset, size, stride) in self._tensors.items():
            key = storage._cdata
            moved = tensor.untyped_storage()._cdata != key or (
                tensor.storage_offset(),
                tensor.size(),
                tensor.stride(),
            ) != (offset, size, stride)
            if moved or (key in self._saved and not _equal(storage, self._saved[key])):
                found.append(Write(name, self._lines.get(key)))
        return found

    def restore(self) -> None:
        """Make every watched tensor what it was: its memory, and its place in it."""
        with torch.no_grad():
            for tensor, storage, offset, size, stride in self._tensors.values():
                if storage._cdata in self._saved:
                    storage.copy_(self._saved[storage._cdata])
                if tensor.untyped_storage()._cdata != storage._cdata or tensor.stride() != stride:
                    tensor.set_(storage, offset, size, stride)
        self._saved.clear()


def _equal(one: torch.UntypedStorage, other: torch.UntypedStorage) -> bool:
    left, right = (torch.empty(0, dtype=torch.uint8).set_(each) for each in (one, other))
    return bool(torch.equal(left, right))


def tensors_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every tensor that a model keeps: parameters, buffers and plain attributes."""
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                found[f"{prefix}.{name}" if prefix else name] = value
    return found
