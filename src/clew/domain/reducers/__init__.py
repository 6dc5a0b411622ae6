"""Reducers: they choose the part of a long history that is sent to a model. The history itself does not change."""
