"""The exponents and block ratios of the paper, along training."""
