"""Growth with the scale of the data by depth: linear MLPs against chains of linear attention, on one axis."""
