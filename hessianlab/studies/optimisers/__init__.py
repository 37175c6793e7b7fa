"""SGD with momentum against Adam, by attention activation and norm."""
