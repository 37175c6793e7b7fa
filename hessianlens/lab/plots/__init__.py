"""Pictures of results: every function takes numbers and returns a matplotlib figure or SVG; nothing here measures."""
