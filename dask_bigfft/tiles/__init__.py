"""Index maps of blocks, pure: where values lie in memory, without any memory.

`pieces` has the maps between the blocks of two layouts of an axis, as tables of boxes of digits.
"""
