import pytest
import torch

from tcexport.artifacts.errors import ExportError
from tcexport.lowering import converters  # noqa: F401  (registers them)
from tcexport.lowering.converters.registry import _NEAREST, CONVERTERS
from tcexport.lowering.ops import KEPT, NOT_KEPT

from .conftest import trace


def test_an_op_is_kept_whole_exactly_if_it_has_a_converter() -> None:
    decomposed = {str(op) for op in torch.export.default_decompositions()}
    assert decomposed & set(CONVERTERS) - NOT_KEPT == KEPT


def test_every_converter_is_for_an_op_of_torch() -> None:
    for name in CONVERTERS:
        namespace, packet, overload = name.split(".")
        assert getattr(getattr(getattr(torch.ops, namespace), packet), overload) is not None


def test_a_hint_is_for_an_op_without_converter() -> None:
    assert not set(_NEAREST) & set(CONVERTERS)


def test_an_op_that_is_refused_names_the_nearest_form(compile_program) -> None:
    class Histogram(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.histc(x, 4, 0, 1)

    with pytest.raises(ExportError, match=r"TC501.*aten\.histc[\s\S]*one_hot"):
        compile_program(trace(Histogram(), (torch.rand(5),)))
