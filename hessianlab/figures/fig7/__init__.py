"""Figure 7 of the paper: chains of linear attention layers."""
