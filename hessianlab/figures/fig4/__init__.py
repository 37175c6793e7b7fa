"""Figure 4 of the paper: sizes of the entries of the query and value blocks, with softmax and without."""
