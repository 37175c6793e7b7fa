"""How large the query, key and value blocks are for every attention activation."""
