"""Between rounds: which parts of which blocks make up a block of the next round."""
