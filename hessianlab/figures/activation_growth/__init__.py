"""How every block grows with the scale of the tokens, by attention activation."""
