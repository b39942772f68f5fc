"""Inverses, solutions, determinants and factors of small matrices."""

import pytest
import torch


def test_systems_of_any_size(agree) -> None:
    functions = [
        lambda a, b: torch.linalg.inv(a),
        lambda a, b: torch.inverse(a[0]),
        lambda a, b: torch.linalg.det(a),
        lambda a, b: tuple(torch.linalg.slogdet(a)),
        lambda a, b: torch.linalg.solve(a, b),
        lambda a, b: torch.linalg.solve(a[0], b[0, :, 0]),
        lambda a, b: torch.linalg.cholesky(a @ a.mT + torch.eye(a.shape[1])),
        lambda a, b: torch.linalg.cholesky(a @ a.mT + torch.eye(a.shape[1]), upper=True),
        lambda a, b: torch.linalg.solve_triangular(a.flip(1), b, upper=True),
        lambda a, b: torch.linalg.solve_triangular(a.flip(1), b, upper=False, unitriangular=True),
    ]

    def system(n: int, k: int, m: int) -> tuple[torch.Tensor, torch.Tensor]:
        # Far from singular, and with rows in an order that asks for pivots.
        return (torch.randn(n, k, k) + 3 * torch.eye(k)).flip(1), torch.randn(n, k, m)

    agree(functions, system(4, 3, 2), system(1, 1, 1), system(3, 8, 5), tolerance=2e-3)


def test_a_singular_matrix_is_refused(agree) -> None:
    good = (torch.eye(3)[None] * 2,)
    compiled = agree([lambda a: torch.linalg.inv(a)], good)
    with pytest.raises(Exception, match="can be inverted"):
        compiled((torch.ones(1, 3, 3),))
