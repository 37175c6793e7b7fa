"""What an experiment is, how experiments are found, and what several of them measure with."""
