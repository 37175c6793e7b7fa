"""Rows as JSON text and arrays as an npz file in memory; both come back bit by bit."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hessianlab.results import Measurement, Row
from hessianlab.store.keys import check_scalars
from hessianlens.errors import InputError, expect

if TYPE_CHECKING:
    import numpy as np

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
