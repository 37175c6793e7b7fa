"""What the measurements say: series over repeats, fitted exponents, comparison with published numbers."""
