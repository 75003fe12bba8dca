"""Who decides: plans, the search for them, what they cost, and their explanation."""
