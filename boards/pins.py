"""Corrects the pins of amaranth-boards."""

from amaranth.build import *

__all__ = ["changed", "corrected"]


def changed(resource, attributes=(), *, parts=(), without=()):
    """Returns a copy of a resource that has subsignals.

    Parameters
    ----------
    resource : Resource
    attributes : dict
        Attributes that the copy has in addition.
    parts : tuple of str
        Names of the subsignals that get the attributes; empty: all of them.
    without : tuple of str
        Names of subsignals that the copy leaves out.
    """
    ios = [
        Subsignal(part.name, *part.ios, part.attrs,
                  Attrs(**dict(attributes if not parts or part.name in parts else ())))
        for part in resource.ios if part.name not in without
    ]
    return Resource(resource.name, resource.number, *ios, resource.attrs)


def corrected(platform, *resources):
    """Replaces a platform's resources of the same name and number, and returns the platform."""
    for resource in resources:
        platform.resources.pop((resource.name, resource.number), None)
    platform.add_resources(resources)
    return platform
