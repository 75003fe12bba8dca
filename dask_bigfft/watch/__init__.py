"""Seeing how far a run is, and what it took: progress, and reports afterwards."""
