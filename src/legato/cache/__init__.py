"""The block pool and block tables of the KV cache. Integers only: the memory itself is the executor's."""
