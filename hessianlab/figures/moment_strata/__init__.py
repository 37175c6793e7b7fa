"""Attention moments and the blocks that depend on them, from uniform to one-hot attention."""
