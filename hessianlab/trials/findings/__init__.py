"""How the trials of a study are read: paired differences with intervals, and what they would have found."""
