"""Cells that other code has measured: counted, never used, deleted on demand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from hessianlab.store.checksums import seal_anew
from hessianlab.store.code import Code
from hessianlab.store.store import Store


@dataclass(frozen=True)
class Leftover:
    """Cells of other code.

    Attributes:
        commit: The repository's, where they were measured; None if that is not known.
    """

    cells: int
    code: Code
    commit: str | None

    def __str__(self) -> str:
        commit = f", commit {self.commit}" if self.commit else ""
        return f"{self.cells} cells of other code ({self.code}{commit}) are in the store and are not used"


def leftovers(store: Store, codes: Mapping[str, Code]) -> list[Leftover]:
    """What other code has measured of these experiments, the newest last.

    Args:
        store: Where to look.
        codes: Experiments, each with the code whose cells are used.
    """
    found: dict[tuple[Code, str | None], int] = {}
    for experiment, code in codes.items():
        for digest, libraries, content, count in store.query(
            "SELECT digest, libraries, content, count(*) FROM cells JOIN codes ON codes.id = code "
            "JOIN provenances ON provenances.id = provenance WHERE experiment = ? GROUP BY code, provenance "
            "ORDER BY code, provenance",
            (experiment,),
        ):
            other = Code(digest, libraries)
            if other != code:
                place = (other, json.loads(content)["commit"])
                found[place] = found.get(place, 0) + count
    return [Leftover(count, code, commit) for (code, commit), count in found.items()]


def prune(store: Store, codes: Mapping[str, Code]) -> int:
    """Delete every cell and run of these experiments that other code has made; returns the number of cells."""
    deleted = 0
    with store.transaction():
        for experiment, code in codes.items():
            values = (experiment, store.code_id(code))
            store.query("DELETE FROM runs WHERE experiment = ? AND code != ?", values)
            store.query("DELETE FROM cells WHERE experiment = ? AND code != ?", values)
            deleted += int(store.query("SELECT changes()")[0][0])
        used = "SELECT {0} FROM cells UNION SELECT {0} FROM runs"
        store.query(f"DELETE FROM codes WHERE id NOT IN ({used.format('code')})")
        store.query(f"DELETE FROM provenances WHERE id NOT IN ({used.format('provenance')})")
        seal_anew(store)
    store.query("VACUUM")
    return deleted
