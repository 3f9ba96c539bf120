"""The HTTP server: OpenAI's API over the engine client, in one process."""
