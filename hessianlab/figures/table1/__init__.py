"""Table 1 of the paper: what the Hessians of a linear MLP and of linear attention depend on."""
