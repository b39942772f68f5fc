"""Which ops stay whole: those that torch would take apart, but that have a converter of their own.

A list of names, so that a program can be decomposed without loading a compiler. A test holds it against
the converters: an op with a converter that torch would decompose must stand here, and no other.
"""

from __future__ import annotations

KEPT = frozenset(
    {
        "aten._unsafe_index_put.default",
        "aten._unsafe_view.default",
        "aten._upsample_nearest_exact1d.vec",
        "aten._upsample_nearest_exact2d.vec",
        "aten._upsample_nearest_exact3d.vec",
        "aten.adaptive_avg_pool1d.default",
        "aten.adaptive_avg_pool2d.default",
        "aten.all.default",
        "aten.all.dim",
        "aten.all.dims",
        "aten.avg_pool1d.default",
        "aten.baddbmm.default",
        "aten.clamp_max.Tensor",
        "aten.clamp_max.default",
        "aten.clamp_min.Tensor",
        "aten.clamp_min.default",
        "aten.conv1d.default",
        "aten.conv2d.default",
        "aten.conv3d.default",
        "aten.detach.default",
        "aten.dot.default",
        "aten.eye.default",
        "aten.eye.m",
        "aten.floor_divide.default",
        "aten.group_norm.default",
        "aten.gru.input",
        "aten.hardsigmoid.default",
        "aten.hardswish.default",
        "aten.inverse.default",
        "aten.layer_norm.default",
        "aten.linalg_cholesky.default",
        "aten.linalg_inv.default",
        "aten.linalg_solve.default",
        "aten.linear.default",
        "aten.log_softmax.int",
        "aten.lstm.input",
        "aten.masked_fill.Scalar",
        "aten.masked_fill.Tensor",
        "aten.matmul.default",
        "aten.max_pool1d.default",
        "aten.max_pool2d.default",
        "aten.mv.default",
        "aten.new_full.default",
        "aten.pad.default",
        "aten.rms_norm.default",
        "aten.rnn_relu.input",
        "aten.rnn_tanh.input",
        "aten.roll.default",
        "aten.rsub.Scalar",
        "aten.rsub.Tensor",
        "aten.scaled_dot_product_attention.default",
        "aten.silu.default",
        "aten.softmax.int",
        "aten.softplus.default",
        "aten.split.Tensor",
        "aten.square.default",
        "aten.squeeze.default",
        "aten.squeeze.dim",
        "aten.stack.default",
        "aten.sum.default",
        "aten.t.default",
        "aten.transpose.int",
        "aten.tril.default",
        "aten.triu.default",
        "aten.unbind.int",
        "aten.upsample_bicubic2d.vec",
        "aten.upsample_linear1d.vec",
        "aten.upsample_nearest1d.vec",
        "aten.upsample_nearest3d.vec",
        "aten.upsample_trilinear3d.vec",
        "aten.var.dim",
        "aten.where.Scalar",
        "aten.where.ScalarOther",
        "aten.where.ScalarSelf",
    }
)

# Aliases under functionalization: torch cannot keep them, and takes them apart to views.
NOT_KEPT = frozenset({"aten.contiguous.default", "aten.reshape.default", "aten.flatten.using_ints"})

# Their content is part of the contract, which the runtime checks at every call.
CHECKS = frozenset(
    {
        "aten._assert_scalar.default",
        "aten._assert_async.default",
        "aten._assert_async.msg",
        "aten._assert_tensor_metadata.default",
        "aten.sym_constrain_range.default",
        "aten.sym_constrain_range_for_size.default",
    }
)
