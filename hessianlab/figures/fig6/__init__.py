"""Figure 6 of the paper: every layer of Transformers of two to five blocks."""
