"""What all parts use and nobody outside needs: checks, files, random numbers, array operations, progress."""
