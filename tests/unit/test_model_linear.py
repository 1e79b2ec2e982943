"""Products of packed weights: few row counts for oneDNN, and the right rows back."""

from __future__ import annotations

import pytest
import torch

from service.models.torch_linear import Linear, LinearMode, padded_rows


def test_a_step_of_512_tokens_meets_few_row_counts() -> None:
    counts = {padded_rows(rows) for rows in range(1, 513)}
    assert len(counts) <= 24
    assert all(0 <= padded_rows(rows) - rows < max(8, rows / 4 + 8) for rows in range(1, 2049))


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 65, 300])
@pytest.mark.parametrize("bias", [False, True])
def test_packed_products_equal_a_float64_reference(rows: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(48, 32, generator=generator)
    added = torch.randn(48, generator=generator) if bias else None
    x = torch.randn(rows, 32, generator=generator)
    product = Linear(weight, added, LinearMode.PACKED)(x)
    expected = x.double() @ weight.double().T + (0 if added is None else added.double())
    assert product.shape == (rows, 48)
    assert product.isfinite().all()
    torch.testing.assert_close(product.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(960, 576), (3072, 576), (576, 1536)])
def test_a_row_has_the_same_bits_among_any_number_of_rows(shape: tuple[int, int]) -> None:
    """With shapes of SmolLM2. The exact attention kernel rests on it, and so do resumed streams."""
    generator = torch.Generator().manual_seed(3)
    linear = Linear(torch.randn(shape, generator=generator), None, LinearMode.PACKED)
    x = torch.randn(300, shape[1], generator=generator)
    alone = torch.cat([linear(row[None]) for row in x])
    for rows in (2, 7, 8, 9, 33, 64, 65, 200, 300):
        assert torch.equal(linear(x[-rows:]), alone[-rows:]), rows
