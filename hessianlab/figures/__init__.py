"""Figures and tables: modules here measure, those of `presentation` have what their numbers say and how to draw them.

- `NAME.py`: the experiments of one family. It imports nothing that draws or judges.
- `presentation/NAME.py`: `PRESENTATIONS`, by experiment: findings in sentences, and `draw_...(result, reference)`, the
  drawings, each with its caption.

`hessianlab.experiments.registry` lists them by name and says in which module each is; both are loaded on request.
"""
