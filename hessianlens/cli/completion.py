"""What the shell may complete: names that are known without torch, each looked up when it is asked for.

Typer drops what does not begin with the word typed so far; where nothing is left, the shell completes names of files.
"""

from __future__ import annotations


def models() -> list[tuple[str, str]]:
    """How the name of a model can begin, if it is not that of a folder."""
    return [("toy", "a small Transformer on the addition task"), ("config:", "random weights, e.g. config:gpt2")]


def parts(incomplete: str) -> list[str]:
    """Parts of the curvature, behind those that are written already."""
    from hessianlens.parts import PARTS

    written = incomplete.split(",")[:-1]
    return [",".join([*written, part]) for part in PARTS if part not in written]


def extras(incomplete: str) -> list[str]:
    """What can be measured beside the norms, behind what is written already."""
    from hessianlens.inspect.settings import EXTRAS

    written = incomplete.split(",")[:-1]
    return [",".join([*written, extra]) for extra in EXTRAS if extra not in written]


def methods() -> list[str]:
    """Ways to find a norm."""
    from hessianlens.parts import NORM_METHODS

    return list(NORM_METHODS)


def dtypes() -> list[str]:
    """Dtypes that a model can be measured in."""
    from hessianlens.inspect.settings import DTYPES

    return list(DTYPES)


def heads() -> list[str]:
    """What a Hugging Face model can be asked to predict."""
    from hessianlens.inspect.model_names import HEADS

    return ["auto", *HEADS]


def activations() -> list[str]:
    """Attention activations."""
    from hessianlens.notation import ACTIVATION_NAMES

    return list(ACTIVATION_NAMES)


def scene_names() -> list[tuple[str, str]]:
    """Interactive scenes, with their titles."""
    from hessianlens.explorer import SCENES

    return [(name, title) for name, (title, _) in SCENES.items()]
