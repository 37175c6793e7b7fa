"""Products that are written by letters, as for `torch.einsum`."""

from __future__ import annotations


def as_product(equation: object, watched: list[bool]) -> tuple[str, str, str, str] | None:
    """Letters of ``a`` and W, those that are summed, and those that come out; None if it is no plain product of two.

    >>> as_product("bld,hde->bhle", [False, True])
    ('bld', 'hde', 'd', 'bhle')
    >>> as_product("bld,bde->ble", [False, True]) is None
    True
    """
    if not isinstance(equation, str) or "..." in equation or watched.count(True) != 1 or len(watched) != 2:
        return None
    given, arrow, out = equation.replace(" ", "").partition("->")
    first, comma, second = given.partition(",")
    if not arrow or not comma or any(len(set(letters)) != len(letters) for letters in (first, second, out)):
        return None
    a, W = (second, first) if watched[0] else (first, second)
    summed = "".join(x for x in W if x in a)
    rest = [x for x in a + W if x not in summed]
    plain = bool(summed) and not set(summed) & set(out) and sorted(rest) == sorted(out)
    return (a, W, summed, out) if plain and len(W) > len(summed) else None
