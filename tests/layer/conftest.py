"""Small sizes made to take the paths of large ones."""

from __future__ import annotations

import pytest

from hessianlens.layer import dense, expansion, scores
from hessianlens.operators import inner_products, term


@pytest.fixture
def as_if_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shortcut for small sizes: factored row derivatives, one token at a time, symmetric norms, sliced workspace."""
    monkeypatch.setattr(dense, "_WORKSPACE_BYTES", 0)
    monkeypatch.setattr(expansion, "_SMALL", 0)
    monkeypatch.setattr(scores, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(inner_products, "_HALVING_PAYS", 0.0)
    monkeypatch.setattr(term, "WORKSPACE_BYTES", 256)
