"""What the numbers say and how they are drawn: one module per experiment or family, `PRESENTATIONS` by name."""
