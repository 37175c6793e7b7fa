"""What several experiments share: problems and layers from a cell's parameters, statistics of entries and spectra."""
