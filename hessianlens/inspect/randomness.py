"""What a table of curvature cannot say, since something about it was drawn at random; and advice that says so."""

from __future__ import annotations

from hessianlens.inspect.data import Data
from hessianlens.inspect.loading import LoadedModel


def caveats(loaded: LoadedModel, data: Data) -> tuple[str, ...]:
    """What was drawn: weights, inputs, and what the outputs are compared with.

    >>> from hessianlens.inspect.data import prepare_data
    >>> from hessianlens.inspect.loading import load_model
    >>> toy = load_model("toy:d_model=4")
    >>> caveats(toy, prepare_data(toy))
    ('random weights',)
    """
    found = ["random weights"] if loaded.random_weights else []
    if data.random and loaded.task is None:
        found.append("random pixels" if loaded.model.main_input_name == "pixel_values" else "random token ids")
    return (*found, *([data.made_up] if data.made_up else []))


def advised(advice: str, loaded: LoadedModel, data: Data) -> str:
    """Advice behind what it cannot say; none at all where the loss itself was made up."""
    drawn = caveats(loaded, data)
    if loaded.head == "encoder" and data.made_up:
        return (
            f"Nothing: the loss is made up ({data.made_up}), and so are these scales. Give --data with labels, or a "
            "--head that has a loss."
        )
    if not drawn:
        return advice
    limit = (
        "this says how the architecture scales at initialisation, not how a trained model does"
        if loaded.random_weights
        else "real data may scale the blocks otherwise; give it with --data"
    )
    listed = " and ".join(filter(None, [", ".join(drawn[:-1]), drawn[-1]]))
    return f"From {listed}: {limit}. {advice}"
