"""What lazy arrays say of themselves: the plans in their graphs, and the names of their tasks."""

from collections import Counter

from dask.utils import key_split


def plans_of(array):
    """Return the plans of all transforms and shifts in a graph, in its order."""
    return [layer.plan for layer in array.dask.layers.values() if hasattr(layer, "plan")]


def plan_of(array):
    """Return the plan that makes the blocks of an array."""
    return array.dask.layers[array.name].plan


def task_names(array):
    """Return how many tasks a graph has of each name that Dask's dashboard shows."""
    return Counter(key_split(key) for key in dict(array.dask))


def is_shifted_alone(array):
    """Return whether an exchange of its own shifts an array, in no transform."""
    return any(name.startswith("bigfft_shift") for name in task_names(array))
