"""What every layer uses: errors, codecs, settings, files, access control, metrics."""
