"""Signs of zeros: to which ops 0.0 and -0.0 are the same, so that their results are, bit by bit.

A causal mask of one token is -0.0 where a model multiplies it (``-1e38 * False``), and 0.0 where it
is cut out of a triangle. Added to scores below a softmax, or compared with 0, both are the same.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten

# exp(0) is exp(-0), and IEEE 754 compares 0.0 and -0.0 as equal. A softmax takes its maximum off first:
# whatever of that is a zero goes into exp as well.
_HIDE = frozenset(
    {
        *(aten.softmax.int, aten._softmax.default, aten._safe_softmax.default),
        *(aten.exp.default, aten.sigmoid.default, aten.cos.default, aten.cosh.default),
        *(aten.abs.default, aten.isnan.default, aten.isinf.default),
        *(aten.logical_not.default, aten.logical_and.default, aten.logical_or.default),
        *(aten.any.default, aten.any.dim, aten.all.default, aten.all.dim),
        *(
            getattr(getattr(aten, name), kind)
            for name in ("eq", "ne", "lt", "le", "gt", "ge")
            for kind in ("Tensor", "Scalar")
        ),
    }
)
# With other signs of zeros among the operands, the result has other signs of zeros, and is the same
# beside: what only moves elements, chooses or rounds them, and sums of products.
_CARRY = frozenset(
    {
        *(aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default),
        *(aten.permute.default, aten.transpose.int, aten.t.default, aten.unsqueeze.default),
        *(aten.squeeze.dims, aten.squeeze.dim, aten.slice.Tensor, aten.select.int),
        *(aten.cat.default, aten.stack.default, aten.repeat.default, aten.flip.default),
        *(aten.slice_scatter.default, aten.copy.default, aten.clone.default, aten.alias.default),
        *(aten.where.self, aten.masked_fill.Scalar, aten.masked_fill.Tensor),
        *(aten.tril.default, aten.triu.default, aten.relu.default, aten.neg.default),
        *(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar),
        *(aten.mul.Tensor, aten.mul.Scalar, aten.sum.default, aten.sum.dim_IntList),
        *(aten.mm.default, aten.bmm.default, aten.matmul.default, aten.linear.default),
        *(aten.addmm.default, aten.baddbmm.default, aten._to_copy.default),
    }
)
# Query, key and mask go through the softmax; values are summed.
_ATTENTION_HIDES = (0, 1, 3)


def sign_shows(node: torch.fx.Node, position: int, asked: bool) -> bool:
    """Whether the sign of a zero in an operand of a node can show in its result.

    Args:
        position: of the operand in the op's schema.
        asked: whether the signs of zeros in the result count.
    """
    op: Any = node.target
    if op is aten.scaled_dot_product_attention.default:
        return asked and position not in _ATTENTION_HIDES
    if op is aten._to_copy.default and not _has_zeros_with_signs(node):
        return False
    if op in _HIDE:
        return False
    if op in (aten.div.Tensor, aten.div.Scalar):  # 1 / -0.0 is -inf
        return asked or position != 0
    return asked or op not in _CARRY


def _has_zeros_with_signs(node: torch.fx.Node) -> bool:
    dtype = node.meta["val"].dtype
    return bool(dtype.is_floating_point or dtype.is_complex)


def without_signs(values: Any) -> Any:
    """The same numbers with 0.0 in the place of -0.0; what is no tensor of floats is as it was."""
    plain = isinstance(values, torch.Tensor) and values.layout is torch.strided
    return values + 0.0 if plain and values.dtype.is_floating_point else values
