"""Makes tests/ the place that `import support` finds its helpers in. Property tests have no time limit per example."""

from hypothesis import settings

settings.register_profile("legato", deadline=None)
settings.load_profile("legato")
