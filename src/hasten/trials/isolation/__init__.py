"""Keep a trial from the files, the processes and the machine that are not its own."""
