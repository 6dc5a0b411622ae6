"""Reducers: they choose the part of a long history that a model is sent; the history itself does not change."""
