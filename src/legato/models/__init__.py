"""Model families as data. `find` reads config.json into an `Arch`; one file per family, named after `model_type`."""

from legato.models.find import find

__all__ = ["find"]
