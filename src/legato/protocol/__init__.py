"""The OpenAI wire format: request bodies, errors, response bodies and server-sent events. Knows no engine."""
