"""Powers of W_Q, W_K and W_V in every block: counted, in the limit of a small weight, and at the drawn weights."""
