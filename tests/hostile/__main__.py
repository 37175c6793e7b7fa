"""`python -m tests.hostile SEED`: one random module, every question. `python -m tests.hostile FIRST LAST`: a census."""

from __future__ import annotations

import sys
import warnings

from tests.hostile.examination import Census
from tests.hostile.generator import specimen
from tests.hostile.questions import Examiner


def main(arguments: list[str]) -> int:
    warnings.simplefilter("ignore")
    if len(arguments) == 2:
        census = Census()
        census.take(range(int(arguments[0]), int(arguments[1])))
        print(census)
        for seed, found in census.wrong.items():
            print(f"{seed} {', '.join(specimen(seed).traits)}: {found.wrong[0]}")
        return 1 if census.wrong else 0
    seed = int(arguments[0])
    shown = specimen(seed)
    print(shown.model)
    print(f"traits: {', '.join(shown.traits) or 'none'}")
    print(f"data: {[tuple(map(lambda t: tuple(t.shape), batch)) for batch in shown.data]}, loss: {shown.loss}")
    few, everything = Examiner(specimen(seed)).some(seed), Examiner(shown).everything()
    for question, why in {**few.refused, **everything.refused}.items():
        print(f"refused: {question}: {why}")
    for title, found in (("questions of the test", few), ("all questions", everything)):
        print(f"{title}: {len(found.wrong)} of {found.asked} answers are wrong")
        print(found)
    return 1 if few.wrong or everything.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
