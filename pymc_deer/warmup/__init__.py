"""What warm-up learns: step size, metric, path length, and how slowly the chain forgets."""
