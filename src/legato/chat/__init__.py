"""Chat: messages to a prompt through the model's own template."""
