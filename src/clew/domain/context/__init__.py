"""Context of runs: contributions, states and failures of components, and reductions of histories."""
