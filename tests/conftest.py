"""Makes tests/ the place that `import support` finds its helpers in."""
