"""Raw data in: public archives and other people's tables become the atomic file that a run reads."""
