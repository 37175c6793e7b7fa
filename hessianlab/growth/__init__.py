"""What the growth figures share: block norms against the scale of the embeddings, measured, judged and drawn."""
