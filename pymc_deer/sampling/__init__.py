"""``pymc_deer.sample``: what is asked for, the run of all chains, and where its draws go."""
