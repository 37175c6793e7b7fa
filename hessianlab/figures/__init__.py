"""One folder a figure or table, and all there is of it: what is measured, what was found, and how it is drawn.

A folder `NAME` holds

- `measure.py`: `EXPERIMENT`, an `Experiment` of that name. It imports nothing that draws or judges.
- `findings.py`: `FINDINGS`, a `Findings`: what the numbers say.
- `pictures.py`: `draw_all(result, reference)`: the drawings, each with its caption.

A new folder is found by its name; nothing else has to know of it. `lab.experiments.registry` loads the first of the
three, `lab.telling` the other two, each when it is asked for.
"""
