import pytest
from tvm import relax

from tcexport.artifacts.errors import ExportError
from tcexport.lowering.pipeline import compile_module
from tcexport.lowering.targets import CPU_TARGETS


def test_a_function_that_the_runtime_lacks_is_refused() -> None:
    builder = relax.BlockBuilder()
    ty = relax.TensorType((4,), "float32")
    x = relax.Var("x", ty)
    with builder.function("main", [x]):
        with builder.dataflow():
            call = relax.call_dps_packed("tvm.contrib.sort.sort", relax.Tuple([x]), ty)
            output = builder.emit_output(relax.Tuple([builder.emit(call)]))
        builder.emit_func_output(output)
    with pytest.raises(ExportError, match=r"tvm\.contrib\.sort\.sort"):
        compile_module(builder.finalize(), CPU_TARGETS["x86-64-v3"])
