"""The real scheduler and cache on hardware that is not there: replicas, routers, traffic, and what comes of it."""
