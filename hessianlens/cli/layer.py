"""`hessianlens layer`: the page of a random attention layer."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hessianlens.cli import completion
from hessianlens.cli.application import app
from hessianlens.cli.exit_codes import FINDING, errors_as_exit_codes
from hessianlens.cli.options import AsJson, PageFolder
from hessianlens.cli.status_line import waiting

if TYPE_CHECKING:
    from hessianlens.layer.layer_check import BlockGrowth, LayerCheck, PartAgreement

MAX_WEIGHTS = 3072
"""The check forms the dense Hessian by autograd, so the layer has to be small."""

MAX_CHECK_ENTRIES = 5 * 10**7
"""Largest intermediate tensor of that check: weights x sequences x length squared."""

TEMPERATURES = (1e-3, 1e3)
"""Beyond them attention is one-hot or uniform to double precision."""

_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens layer[/cyan]    the default layer, into layer/index.html

[cyan]hessianlens layer --activation sigmoid --causal --seed 3 --out sigmoid[/cyan]

[cyan]hessianlens layer --length 9 --d-model 8 --d-k 4 --json > figures.json[/cyan]"""


@dataclass(frozen=True)
class LayerOptions:
    """A random attention layer, random tokens and random targets; refused before torch is loaded.

    >>> LayerOptions(length=5, d_model=4, d_k=3).weights
    40
    """

    seed: int = 0
    length: int = 17
    d_model: int = 16
    d_k: int = 8
    batch: int = 1
    activation: str = "softmax"
    causal: bool = False
    temperature: float = 1.0

    def __post_init__(self) -> None:
        from hessianlens.errors import check_choice, expect
        from hessianlens.notation import ACTIVATION_NAMES

        for name, least in (("length", 2), ("d_model", 1), ("d_k", 1), ("batch", 1)):
            value = getattr(self, name)
            expect(value >= least, f"{name}: got {value}, expected a whole number of at least {least}.")
        expect(0 <= self.seed < 2**63, f"seed: got {self.seed}, expected a whole number from 0 to 2^63 - 1.")
        low, high = TEMPERATURES
        expect(
            low <= self.temperature <= high,
            f"temperature: got {self.temperature:g}, expected a number from {low:g} to {high:g}; beyond, attention is "
            "one-hot or uniform to working precision.",
        )
        check_choice("activation", self.activation, ACTIVATION_NAMES)
        reason = "because every number is checked against the dense Hessian by autograd; choose smaller"
        expect(
            self.weights <= MAX_WEIGHTS,
            f"d_model and d_k: got {self.d_model} and {self.d_k}, a layer of {self.weights} weights, expected at most "
            f"{MAX_WEIGHTS}, {reason} widths.",
        )
        entries = self.weights * self.batch * self.length**2
        expect(
            entries <= MAX_CHECK_ENTRIES,
            f"length and batch: got {self.length} and {self.batch}, an intermediate tensor of {entries} entries for "
            f"{self.weights} weights, expected at most {MAX_CHECK_ENTRIES}, {reason} sizes.",
        )

    @property
    def weights(self) -> int:
        """Number of weights of the layer, the size of its Hessian."""
        return 2 * self.d_model * self.d_k + self.d_model**2


@app.command(name="layer", epilog=_EXAMPLES)
def show_layer(
    out: PageFolder = Path("layer"),
    seed: Annotated[int, typer.Option(help="Seed of the weights; tokens and targets take the next one.")] = 0,
    length: Annotated[int, typer.Option(help="Tokens in a sequence.")] = 17,
    d_model: Annotated[int, typer.Option(help="Width of a token and of the output.")] = 16,
    d_k: Annotated[int, typer.Option(help="Width of queries and keys.")] = 8,
    batch: Annotated[int, typer.Option(help="Sequences.")] = 1,
    activation: Annotated[
        str,
        typer.Option(help="softmax, linear, sigmoid, relu_normalised, ...", autocompletion=completion.activations),
    ] = "softmax",
    causal: Annotated[bool, typer.Option(help="Let a token see only itself and the tokens before it.")] = False,
    temperature: Annotated[float, typer.Option(help="Divides the scores.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Write the page of a random attention layer: its exact Hessian, checked against autograd.

    One self-contained file: agreement of closed form, HVPs and dense autograd, growth with the tokens' scale, then
    blocks, spectra, eigenvalue pairs and attention, as `H.page()` draws them.
    """
    with errors_as_exit_codes("the page is either complete or as it was before."):
        from hessianlens.files import check_directory

        check_directory(out)
        options = LayerOptions(seed, length, d_model, d_k, batch, activation, causal, temperature)
        with waiting("Loading the libraries"):
            from hessianlens.layer.layer_check import layer_check_sections
            from hessianlens.layer.page import hessian_page
        check = _random_check(options)
        with waiting("Comparing with autograd"):
            agreements, growth = check.agreements(), check.growth()
        sections, summary = layer_check_sections(agreements, growth)
        title = f"A random {options.activation}{', causal' if options.causal else ''} attention layer (seed {seed})"
        page = hessian_page(check.hessian, title, summary, sections)
        out.mkdir(parents=True, exist_ok=True)
        path = page.write(out / "index.html")
        if as_json:
            typer.echo(json.dumps(_figures(options, check, agreements, growth), indent=2, allow_nan=False))
        else:
            for name, sentence in page.short:
                typer.echo(f"{name}: {sentence}")
            typer.echo(f"\nPage: {path}")
    if not all(found.agree for found in agreements):
        typer.echo("hessianlens: closed form and autograd do not agree; see section 1 of the page.", err=True)
        raise typer.Exit(FINDING)


def _random_check(options: LayerOptions) -> LayerCheck:
    """Weights from N(0, 1/d), tokens and targets from N(0, 1)."""
    import torch

    from hessianlens.attention import SelfAttention
    from hessianlens.errors import expect
    from hessianlens.layer.layer_check import LayerCheck
    from hessianlens.losses import SquareLoss

    generator = torch.Generator().manual_seed(options.seed + 1)
    shape = (2, options.batch, options.length, options.d_model)
    X, Y = torch.randn(shape, generator=generator, dtype=torch.float64)
    layer = SelfAttention.random(
        d_model=options.d_model,
        d_k=options.d_k,
        seed=options.seed,
        dtype=torch.float64,
        activation=options.activation,
        causal=options.causal,
        temperature=options.temperature,
    )
    check = LayerCheck(layer, X, SquareLoss(Y))
    size = float(check.hessian.full.frobenius_norm())
    named = f"{options.activation} attention of temperature {options.temperature:g}"
    expect(math.isfinite(size), f"activation: {named} overflows on these tokens; raise the temperature.")
    expect(size > 0, f"activation: {named} is zero on these tokens, and so is its Hessian; change the seed or length.")
    return check


def _figures(
    options: LayerOptions, check: LayerCheck, agreements: list[PartAgreement], growth: list[BlockGrowth]
) -> dict[str, Any]:
    """Every number of the page."""
    from hessianlens.layer.page import hessian_spectra

    return {
        "config": asdict(options),
        "loss": float(check.loss.value(check.layer(check.X))),
        "agreements": [asdict(found) for found in agreements],
        "blocks": check.hessian.rows(),
        "curvatures": [spectrum.to_dict() for spectrum in hessian_spectra(check.hessian)],
        "growth": [{name: _json_number(value) for name, value in asdict(found).items()} for found in growth],
    }


def _json_number(value: Any) -> Any:
    """JSON has no number for what leaves the range of floating-point numbers."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
