"""Figure 3a of the paper: block norms of one Transformer block against the scale of the embeddings."""
