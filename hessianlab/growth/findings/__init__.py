"""What growth curves say: series over repeats, fitted exponents, comparison with published numbers."""
