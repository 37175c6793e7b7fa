"""Results as files for other programs: CSV, Parquet or JSON, arrays as npz, and the provenance with them."""

from hessianlab.store.export.export import FORMATS, export_run

__all__ = ["FORMATS", "export_run"]
