"""Small models drawn at random, and whether windows solve them exactly."""
