"""Index maps of blocks and operations on tiles, without any memory or arrays of values.

`pieces` has the maps between the blocks of two layouts of an axis, as tables of boxes of digits.
`digits` has the digits of each dimension of a block, of which its pieces are boxes.
`program` has the operations of a round on a tile, in order.
`way` has the tiles of a block and the copies that are avoided, for the loop and its forecast.
`device` has a program in the form that GPUs run.
"""
