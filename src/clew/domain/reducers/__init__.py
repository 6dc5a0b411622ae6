"""Reducers: what of a long history a model is sent, while the history itself stays as it is."""
