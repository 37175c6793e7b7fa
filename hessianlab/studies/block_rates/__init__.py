"""One learning rate per block of the Hessian."""
