"""How a length falls apart: factors, phases, orders, steps; imports NumPy and `errors` only."""
