"""Shared foundations: errors, codecs, settings, files, access control and metrics."""
