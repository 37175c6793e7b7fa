"""Studies, in modules as those of `hessianlab.figures`, with presets "quick" and "full".

A training study is a `hessianlab.studies.study_design.Study`: arms, comparisons, a hypothesis. Its findings can be
recorded for the claims.
"""
