"""One file per family of symptoms, each ending with `SYMPTOMS`."""
