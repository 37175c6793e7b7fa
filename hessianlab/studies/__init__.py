"""Studies, in modules as those of `hessianlab.figures`, with presets "quick" and "full".

A training study is a `hessianlab.studies.training_study.Study`: arms, comparisons, a hypothesis. Its findings can be
recorded for the claims.
"""
