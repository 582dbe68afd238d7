"""Private modules that every other folder uses: checks, files, random numbers, array operations, progress."""
