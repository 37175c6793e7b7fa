"""Figure 3b of the paper: the block of Figure 3a with layer norms."""
