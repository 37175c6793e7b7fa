"""The published figures and tables, one file each."""
