"""One folder a study, and all there is of it; as in `hessianlab.figures`, with presets "quick" and "full".

A folder `NAME` holds the experiment `study_NAME`:

- `measure.py`: `EXPERIMENT`. A training study is a `lab.trials.measure.Study`: arms, comparisons, a hypothesis.
- `findings.py`: `FINDINGS`, what the numbers say; those of a training study can be recorded for the claims.
- `pictures.py`: `draw_all(result, reference)`.
"""
