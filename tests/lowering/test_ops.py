import torch

from tcexport.lowering import converters  # noqa: F401  (registers them)
from tcexport.lowering.converters.registry import CONVERTERS
from tcexport.lowering.ops import KEPT, NOT_KEPT


def test_an_op_is_kept_whole_exactly_if_it_has_a_converter() -> None:
    decomposed = {str(op) for op in torch.export.default_decompositions()}
    assert decomposed & set(CONVERTERS) - NOT_KEPT == KEPT


def test_every_converter_is_for_an_op_of_torch() -> None:
    for name in CONVERTERS:
        namespace, packet, overload = name.split(".")
        assert getattr(getattr(getattr(torch.ops, namespace), packet), overload) is not None
