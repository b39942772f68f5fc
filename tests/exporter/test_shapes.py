"""trtexec's shapes: what they mean in dims, and what they cannot say."""

from __future__ import annotations

import pytest

from tcexport.artifacts.errors import UsageError
from tcexport.artifacts.prove import Span
from tcexport.exporter.options import DimRequest
from tcexport.exporter.profiles import Profile
from tcexport.exporter.shapes import dims_of_shapes, parse_shapes

AXES = {"ids": ("batch", "seq"), "image": ("batch", None, "2*h")}
EXAMPLE = {"ids": (4, 16), "image": (4, 3, 8)}


def meaning(least: str = "", best: str = "", most: str = ""):
    texts = zip(("--minShapes", "--optShapes", "--maxShapes"), (least, best, most), strict=True)
    found = [parse_shapes(option, text) if text else {} for option, text in texts]
    return dims_of_shapes(*found, AXES, EXAMPLE)


def test_the_ends_are_ranges_and_the_best_is_a_variant() -> None:
    dynamic, profile = meaning("ids:1x1", "ids:4x128", "ids:8x512")
    assert dynamic == {"batch": DimRequest(1, 8), "seq": DimRequest(1, 512)}
    assert profile == Profile("opt", {"batch": Span(4, 4), "seq": Span(128, 128)})


def test_what_does_not_vary_is_not_dynamic_and_has_no_place_in_the_variant() -> None:
    dynamic, profile = meaning("ids:4x1", "ids:4x8", "ids:4x512")
    assert dynamic == {"seq": DimRequest(1, 512)}
    assert profile == Profile("opt", {"seq": Span(8, 8)})
    assert meaning(best="ids:4x8")[0] == {}


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (("ids:1x1", "", ""), "must name the same inputs"),
        (("ids:1x1", "", "ids:8"), "has 2 axes, not 1"),
        (("ids:9x1", "", "ids:8x1"), "batch is 9 in --minShapes and 8"),
        (("ids:1x1", "ids:9x1", "ids:8x1"), "outside of 1..8"),
        (("ids:2x1", "", "ids:2x9"), "batch is fixed at 2, and 4 in the example"),
        (("ids:1x1,image:2x3x8", "", "ids:8x1,image:8x3x8"), "batch is 1 and 2"),
        (("image:1x4x8", "", "image:8x4x8"), "axis 1 of image has no name and is 3"),
        (("image:1x3x8", "", "image:8x3x16"), r"an axis 2\*h, whose dims no axis gives"),
        (("idx:1x1", "", "idx:8x1"), "there is no input idx"),
        (("ids:1x", "", "ids:8x1"), "cannot read"),
        (("ids:1x1,ids:1x1", "", "ids:8x1"), "cannot read"),
    ],
)
def test_what_cannot_be_said_in_dims_is_refused(shapes, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        meaning(*shapes)
