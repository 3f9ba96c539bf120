"""From the configuration to a policy."""

from legato.core.config import SchedulerConfig
from legato.core.errors import ConfigError
from legato.scheduler.deadline import Deadline
from legato.scheduler.fair import Fair, parse_weights
from legato.scheduler.policies import Fcfs, Policy, Static
from legato.scheduler.priority import AGEING_S, Priority

__all__ = ["make_policy"]


def make_policy(config: SchedulerConfig) -> Policy:
    """ConfigError for a policy that is not known, or a setting of another one."""
    for name, policy in (("static_padding", "static"), ("priority_ageing_s", "priority"), ("tenant_weights", "fair")):
        if getattr(config, name) and config.policy != policy:
            raise ConfigError(f"{name} needs policy {policy}")
    match config.policy:
        case "fcfs":
            return Fcfs()
        case "priority":
            return Priority(config.priority_ageing_s or AGEING_S)
        case "fair":
            return Fair(parse_weights(config.tenant_weights))
        case "deadline":
            return Deadline()
        case "static":
            return Static(pads=config.static_padding)
        case other:
            raise ConfigError(f"policy {other!r} is not known")
