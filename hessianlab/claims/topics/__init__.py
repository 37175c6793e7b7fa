"""The claims by topic: one small file a topic, each ending with its tuple ``CLAIMS``."""
