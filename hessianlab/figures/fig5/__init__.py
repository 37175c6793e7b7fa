"""Figure 5 of the paper: Figure 3a on linear axes."""
