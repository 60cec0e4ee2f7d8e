"""``pymc_deer.profile``: what a model costs, and what to choose for it."""
