"""What kernels assert of their data: a divisor that is not zero, offsets within their indices.

Eager mode raises in its kernels, too, and says so nowhere in the graph. The message of each assertion
holds a number, by which the contract knows it.
"""

from __future__ import annotations

import msgspec


class Asserted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``what`` holds of the data, where the kernel of ``node`` runs; ``number`` is its place in the
    contract, behind the checks that the graph has itself."""

    number: int
    node: str
    what: str
