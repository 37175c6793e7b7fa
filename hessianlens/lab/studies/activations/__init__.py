"""Attention activations in training."""
