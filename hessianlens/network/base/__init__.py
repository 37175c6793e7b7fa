"""What planner and routes share: the question and its cost, hooks at a model's operations, probes, progress."""
