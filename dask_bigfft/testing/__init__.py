"""Oracles, strategies, fault injectors and simulated GPUs for tests of transforms."""
