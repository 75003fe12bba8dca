"""What is asked of a transform: its kind, axes, lengths, norm and dtypes."""
