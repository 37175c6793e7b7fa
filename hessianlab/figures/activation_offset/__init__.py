"""The same weights under every attention activation: what separates the blocks is a(0), not softmax."""
