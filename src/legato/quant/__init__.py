"""Number formats of weights and activations, one row per format."""
