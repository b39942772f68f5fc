import torch
from torch import nn

from tcexport.lowering.locations import user_location


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return self.linear(y)


def test_points_at_the_users_line_and_not_into_torch() -> None:
    program = torch.export.export(Doubled(), (torch.ones(2, 4),), strict=True)
    locations = {
        node.name: user_location(node.meta.get("stack_trace"))
        for node in program.graph.nodes
        if node.op == "call_function"
    }
    assert locations["mul"].file == locations["linear"].file == __file__
    assert locations["mul"].text == "y = x * 2"
    assert locations["linear"].text == "return self.linear(y)"


def test_a_model_from_a_library_gives_its_innermost_frame() -> None:
    trace = (
        '  File "/x/site-packages/a.py", line 3, in forward\n    return g(x)\n'
        '  File "/x/site-packages/b.py", line 7, in g\n    return x\n'
    )
    location = user_location(trace)
    assert (location.file, location.line) == ("/x/site-packages/b.py", 7)


def test_no_trace_gives_no_location() -> None:
    assert user_location(None) is None
    assert user_location("") is None
