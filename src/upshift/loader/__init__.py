"""The data engine under the script's own DataLoader: same samples, same order."""
