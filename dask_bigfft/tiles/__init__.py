"""Index maps of blocks and operations on tiles, without any memory or arrays of values.

`pieces` has the maps between the blocks of two layouts of an axis, as tables of boxes of digits.
`program` has the operations of a round on a tile, in order.
`way` has the tiles of a block and the copies that are avoided, for the loop and its forecast.
"""
