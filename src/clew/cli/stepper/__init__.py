"""The stepper: one thread, version by version, in the whole terminal."""
