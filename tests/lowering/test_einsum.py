"""`torch.einsum` over sizes that vary, 1 among them."""

import torch

AUTO = torch.export.Dim.AUTO

EQUATIONS = [
    lambda x, y: torch.einsum("bij,bkj->bik", x, y),
    lambda x, y: torch.einsum("bij,bkj->ki", x, y),
    lambda x, y: torch.einsum("bij,bij->b", x, x * 2),
    lambda x, y: torch.einsum("b...,b...->...", x, x),
    lambda x, y: torch.einsum("...ij,...kj", x, y),
    lambda x, y: torch.einsum("bij,bkj->bikj", x, y),
    lambda x, y: torch.einsum("bij->ji", x),
    lambda x, y: torch.einsum("bij->", x),
    lambda x, y: torch.einsum("bij,bkj,bkl->il", x, y, y),
    lambda x, y: torch.einsum("bij,jkl->bikl", x, torch.ones(4, 2, 3).tril()),
    lambda x, y: torch.einsum("bij,cj->bic", x, torch.ones(3, 1)),
    lambda x, y: torch.einsum("bij,bkj->bik", x.long(), y.long()),
    lambda x, y: torch.einsum("bii->b", (x @ y.mT) @ (y @ x.mT)),
]


def test_products_of_any_size(agree) -> None:
    sizes = [(2, 3, 5), (1, 1, 1), (3, 1, 2), (1, 6, 4)]
    calls = [(torch.randn(b, i, 4), torch.randn(b, k, 4)) for b, i, k in sizes]
    agree(EQUATIONS, *calls, dynamic=(({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}),))


def test_the_order_of_products_is_as_asked(agree) -> None:
    def by_path(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        tensors = [x, y, torch.ones(5, 2)]
        return torch.ops.aten.einsum.default("ij,jk,kl->il", tensors, path=[1, 2, 0, 1])

    agree([by_path], (torch.randn(2, 3), torch.randn(3, 5)), (torch.randn(1, 3), torch.randn(3, 5)))
