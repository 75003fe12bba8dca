"""Specification of a transform: kind, axes, lengths, norm and dtypes."""
