"""Benchmarks: exact Hessians against autograd. Run them with ``python -m benchmarks``; see README.md beside this."""
