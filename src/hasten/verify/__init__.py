"""Stage 6. Is it still the same training?"""
