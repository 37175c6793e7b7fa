"""How growth is drawn: panels and lines, predicted slopes, published means."""
