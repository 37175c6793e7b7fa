"""Calls of the public names with good and bad arguments: each gives a result or an `InputError`, nothing else."""
