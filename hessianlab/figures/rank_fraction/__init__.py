"""The rank of the T-outer-product Hessian."""
