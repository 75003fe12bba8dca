"""The card: rounds worked piece by piece on a device while blocks stay in host memory."""
