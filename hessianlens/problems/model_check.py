"""What is left to compare of a problem with the model that it was made of, at the first number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from torch import Tensor

from hessianlens.problems.batch import Batch


class ModelCheck(ABC):
    """A comparison that waits for outputs which are computed anyway."""

    @abstractmethod
    def seen(
        self,
        forward: Callable[[Mapping[str, Tensor], Batch], Tensor],
        params: Mapping[str, Tensor],
        batch: Batch,
        outputs: Tensor,
    ) -> None:
        """Compare outputs that somebody has computed, where these are what it waits for; `InputError` if wrong.

        Args:
            forward: What they were computed by.
            params: The parameters that derivatives are taken at.
            batch: One batch.
            outputs: Its outputs.
        """

    @abstractmethod
    def finish(self) -> None:
        """Compute and compare what nobody has computed yet; `InputError` if something is wrong."""
