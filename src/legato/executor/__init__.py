"""What runs a StepPlan: the native kernels, or the numpy reference."""
