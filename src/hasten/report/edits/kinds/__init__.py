"""The kinds of edits: each function writes one lever into the files, or says why it does not."""
