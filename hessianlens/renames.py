"""Names of earlier versions, which still work and say what they are now."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from operator import attrgetter


def with_earlier_names(
    package: str, present: Callable[[str], object], earlier: Mapping[str, str]
) -> Callable[[str], object]:
    """``__getattr__`` of a package whose names have changed.

    Args:
        package: Its name.
        present: From a present name to what it names; an AttributeError if there is none.
        earlier: Earlier names, and where each is now: a present name, or one inside of a present module.

    >>> found = with_earlier_names("made_up", lambda name: name.upper(), {"edge": "boundary"})
    >>> found("boundary")
    'BOUNDARY'
    """

    def get(name: str) -> object:
        if name not in earlier:
            return present(name)
        warnings.warn(f"{package}.{name} is now {package}.{earlier[name]}", DeprecationWarning, stacklevel=2)
        module, _, inner = earlier[name].partition(".")
        return attrgetter(inner)(present(module)) if inner else present(module)

    return get


def present_value(argument: str, value: str, earlier: Mapping[str, str]) -> str:
    """The value of an argument under the name that it has now, with a warning where it was given another.

    Args:
        argument: Its name.
        value: What was given.
        earlier: Earlier values, and what each is now.

    >>> present_value("method", "exact", {"products": "hvp"})
    'exact'
    """
    if value not in earlier:
        return value
    warnings.warn(f"{argument}={value!r} is now {argument}={earlier[value]!r}", DeprecationWarning, stacklevel=4)
    return earlier[value]
