"""What training studies share: arms and their trials, paired comparisons, drawings."""
