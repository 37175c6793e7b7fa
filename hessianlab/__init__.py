"""The laboratory: it measures with the library and reports what it found; the library never imports it."""
