"""Scores divided by the square root of the head's width, or not."""
