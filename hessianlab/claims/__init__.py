"""The claims ledger: every checkable statement of the four documents, tested by computation."""
