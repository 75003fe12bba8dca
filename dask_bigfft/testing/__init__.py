"""Oracles and strategies for tests of transforms; may import anything, nothing imports it."""
