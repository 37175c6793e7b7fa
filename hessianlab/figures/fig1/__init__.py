"""Figure 1 of the paper: the whole Hessian of a one-block Transformer, and how unlike its blocks are."""
