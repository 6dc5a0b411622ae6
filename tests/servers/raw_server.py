"""The scripted HTTP server of ``clew.testing``, with the names that tests use."""

from clew.testing.scripted_server import CUT, STALL, RawServer, Reply, Request, Step, stream, whole

__all__ = ["CUT", "STALL", "RawServer", "Reply", "Request", "Step", "stream", "whole"]
