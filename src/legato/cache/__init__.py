"""The block pool, block tables and prefixes of the KV cache. Integers only: the memory itself is the executor's."""
