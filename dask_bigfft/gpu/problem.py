"""A round on a block as far as its crossings depend on it: what is transformed, and how it travels.

Imports the device's words for kinds of FFTs (`operations`).
"""

from dataclasses import dataclass

from dask_bigfft.gpu.operations import Kind


@dataclass(frozen=True)
class Line:
    """A dimension of a block that a round transforms.

    Parameters
    ----------
    dim : int
        Dimension of the block.
    length : int
        Length of the FFTs.
    kind : {"c2c", "r2c", "c2r"}
        Of the FFTs.
    filtered : bool
        Whether the transformed digit is multiplied by a spectrum, which then is on the device, too.
    whole : bool
        Whether one FFT may be as long as the line; else it has to fall apart if it can.
    real : bool
        Whether only the real parts of what is filtered go back.
    """

    dim: int
    length: int
    kind: Kind = "c2c"
    filtered: bool = False
    whole: bool = True
    real: bool = False

    def steps(self, digits: int) -> int:
        """Steps that transform so many digits: what is filtered is transformed back as well."""
        return 2 * digits - 1 if self.filtered else digits

    def digit(self, step: int, digits: int) -> int:
        """The digit that a step transforms.

        >>> [Line(0, 8, filtered=True).digit(step, 3) for step in range(5)]
        [0, 1, 2, 1, 0]
        """
        return min(step, 2 * (digits - 1) - step)


@dataclass(frozen=True)
class Problem:
    """A round on a block, as far as its crossings depend on it.

    Parameters
    ----------
    shape : tuple of int
        Of the block before the round.
    lines : tuple of Line
        What is transformed.
    itemsize : int
        Bytes of a complex number.
    inside : bool
        Whether no memory apart from the block may be used where the round keeps its shape.
    order : tuple of int
        Where nothing is transformed: dimensions in the order in which they are written.
    blocks : int
        Blocks that are done one after the other, so that one comes while another goes.
    shards : int
        Parts in which a piece comes, about: as many calls for each.
    mirrored : bool
        Whether some of them lie backwards in host memory, and are turned on the device.
    stores : int
        Parts in which a piece goes in the end: as many calls for each.
    """

    shape: tuple[int, ...]
    lines: tuple[Line, ...]
    itemsize: int
    inside: bool = False
    order: tuple[int, ...] = ()
    blocks: int = 1
    shards: int = 1
    mirrored: bool = False
    stores: int = 1
