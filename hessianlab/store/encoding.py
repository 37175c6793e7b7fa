"""Keys of cells, rows as JSON text and arrays as an npz file in memory; both come back bit by bit."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hessianlab.results import Measurement, Parameters, Row
from hessianlab.store.code import Code
from hessianlens.errors import InputError, expect

if TYPE_CHECKING:
    import numpy as np


def cell_key(experiment: str, parameters: Parameters, code: Code) -> str:
    """SHA-256 of the canonical JSON of everything that decides the numbers.

    >>> code = Code("0" * 64, "torch 2")
    >>> cell_key("fig1", {"a": 1, "b": 0.1}, code) == cell_key("fig1", {"b": 0.1, "a": 1}, code)
    True
    """
    text = canonical_json([experiment, check_scalars(experiment, parameters), code.digest, code.libraries])
    return hashlib.sha256(text.encode()).hexdigest()


def question_key(experiment: str, parameters: Parameters) -> str:
    """The same without the code: what was asked, whoever has answered it."""
    text = canonical_json([experiment, check_scalars(experiment, parameters)])
    return hashlib.sha256(text.encode()).hexdigest()


def canonical_json(value: Any) -> str:
    """One text for one value: sorted names, no spaces, shortest digits that give the same float back."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def check_scalars(experiment: str, named: Parameters) -> Parameters:
    """Every value is a JSON scalar, so that it comes back from the store as what it was."""
    for name, value in named.items():
        if not (value is None or isinstance(value, (str, int, float))):
            raise InputError(
                f"{experiment}: got {type(value).__name__} for {name!r}, expected a string, a number, a truth value or "
                "None; convert it, e.g. with .item(), or keep it as an array."
            )
    return named


_PREFIX = "array_"
"""In front of every name, since `numpy.savez` keeps a few names for itself."""


def check_storable(experiment: str, measurement: Measurement) -> None:
    """Refuse what would not come back from a store as it was."""
    import numpy as np

    for row in measurement.rows:
        check_scalars(experiment, row)
    for name, array in measurement.arrays.items():
        kind = f"{type(array).__name__} of dtype {getattr(array, 'dtype', None)}"
        expect(
            isinstance(array, np.ndarray) and not array.dtype.hasobject,
            f"{experiment}: got {kind} for the array {name!r}, expected a NumPy array of numbers, truth values or "
            "fixed-length text.",
        )


def encode_rows(rows: tuple[Row, ...]) -> str:
    """Rows as text; JSON's extension for nan and infinities keeps those too."""
    return json.dumps([dict(row) for row in rows], separators=(",", ":"), ensure_ascii=False)


def encode_arrays(arrays: Mapping[str, np.ndarray]) -> bytes | None:
    """Named arrays as one compressed npz file; None if there are none."""
    return npz_bytes({_PREFIX + name: array for name, array in arrays.items()}) if arrays else None


def npz_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """What `numpy.savez_compressed` would write, without the time of writing: the same arrays give the same bytes."""
    import zipfile

    import numpy as np

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.asanyarray(array), allow_pickle=False)
            member = zipfile.ZipInfo(f"{name}.npy")  # of the first day a zip file knows
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, content.getvalue())
    return buffer.getvalue()


def decode(rows: str, arrays: bytes | None) -> Measurement:
    """The measurement that was encoded."""
    return Measurement(tuple(json.loads(rows)), {} if arrays is None else _decode_arrays(arrays))


def _decode_arrays(content: bytes) -> dict[str, np.ndarray]:
    import zipfile

    import numpy as np

    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {name.removeprefix(_PREFIX): archive[name] for name in archive.files}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise InputError(f"got arrays that cannot be read ({error}), expected an npz file.") from error
