"""What is measured: one module per experiment or family; nothing here draws or judges."""
